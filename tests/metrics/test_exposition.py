"""Formats in which metrics are written, and what a client may ask for."""

import pytest

from tensorfusion_dra.metrics.node_metrics import NodeMetrics
from tests.metrics.scraped import from_openmetrics, from_text
from tests.support.builders.node_views import node_view

PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)


def written(accept: str) -> tuple[str, bytes]:
    return NodeMetrics().written(node_view, accept=accept, most_shares=10)


@pytest.mark.parametrize("accept", [PROMETHEUS_3, "application/openmetrics-text"])
def test_openmetrics_if_the_client_accepts_it(accept: str) -> None:
    content_type, body = written(accept)

    assert content_type.startswith("application/openmetrics-text; version=1.0.0; charset=utf-8")
    assert body.endswith(b"# EOF\n")
    assert from_openmetrics(body).value("cards_known") == 1


@pytest.mark.parametrize("accept", ["", "*/*", "text/html", "text/plain;version=0.0.4"])
def test_text_format_for_all_others(accept: str) -> None:
    content_type, body = written(accept)

    assert content_type == "text/plain; version=0.0.4; charset=utf-8"
    assert b"# EOF" not in body
    assert from_text(body).value("cards_known") == 1


@pytest.mark.parametrize(
    "accept",
    [
        "application/openmetrics-text;version=x",
        "application/openmetrics-text;version=1.0.0\r\n Set-Cookie: a=b",
        "application/openmetrics-text;version=9.\x1b[31m",
        "text/plain;version=" + "9" * 5000,
        ";;;,,,===",
    ],
)
def test_any_accept_header_gets_an_answer_with_a_plain_content_type(accept: str) -> None:
    content_type, body = written(accept)

    assert content_type.isprintable()
    assert len(content_type) < 200
    assert b"tensorfusion_dra_cards_known 1.0\n" in body


def test_a_sum_of_counts_is_exact_in_both_formats() -> None:
    metrics = NodeMetrics()
    for _ in range(1000):
        metrics.api_requests.answered("GET", 200, "", path="/api/v1/nodes/n")

    _, body = metrics.written(node_view, accept="", most_shares=10)

    labels = {"verb": "get", "resource": "nodes", "code": "200"}
    assert from_text(body).value("api_requests_total", **labels) == 1000
