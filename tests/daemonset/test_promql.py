"""The check of queries finds what Prometheus itself would answer with nothing or with an error."""

import pytest

from tests.support import promql
from tests.support.promql import QueryError

KNOWN = {
    "share": frozenset({"node", "gpu", "pod", "namespace"}),
    "card": frozenset({"node", "gpu", "model"}),
    "calls_total": frozenset({"node", "verb"}),
    "seconds_bucket": frozenset({"node", "verb", "le"}),
}


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("share", {"node", "gpu", "pod", "namespace"}),
        ("sum by (node) (share)", {"node"}),
        ("sum without (pod) (share)", {"node", "gpu", "namespace"}),
        ("sum(share)", set()),
        ("share / on (node, gpu) group_left (model) card", KNOWN["share"] | {"model"}),
        ("rate(calls_total[5m]) > 0", {"node", "verb"}),
        (
            "histogram_quantile(0.99, sum by (le, node) (rate(seconds_bucket[5m])))",
            {"node"},
        ),
        ('label_replace(share, "uuid", "$1", "gpu", "(.+)")', KNOWN["share"] | {"uuid"}),
        ("count by (node) (card) - on (node) sum by (node) (share)", {"node"}),
        ("share unless on (node) card", KNOWN["share"]),
        ('absent(card{node="a"})', {"node"}),
        ("sum(share) or vector(0)", set()),
        ("topk(3, card)", KNOWN["card"]),
        ("time() - max by (gpu) (card)", {"gpu"}),
    ],
)
def test_labels_of_a_result(query: str, expected: set[str]) -> None:
    assert promql.labels(query, KNOWN) == expected


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ("sum by (node (share)", "unclosed left parenthesis"),
        ("rate(share)", "expected type matrix"),
        ("shares", "shares: no such metric"),
        ('share{card="a"}', r"expected also \['card'\]"),
        ("sum by (card) (share)", r"expected also \['card'\]"),
        ("share / card", r"expected on\(\)"),
        ("share / on (node, gpu) card", "several series for one match"),
        ("share / on (gpu) group_left card", "several series for one match"),
        ("share / on (node, uuid) group_left card", r"expected also \['uuid'\]"),
        ("card / on (node, gpu) group_left (pod) sum by (node, gpu) (share)", "group_left"),
        ("histogram_quantile(0.9, sum by (node) (seconds_bucket))", "histogram_quantile"),
        ('label_replace(share, "uuid", "$1", "UUID", "(.+)")', "label_replace"),
    ],
)
def test_error_names_what_is_wrong(query: str, error: str) -> None:
    with pytest.raises(QueryError, match=error):
        promql.labels(query, KNOWN)
