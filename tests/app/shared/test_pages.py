"""Pages beside the checks of the health endpoint."""

import http.client
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from threading import Event, Thread

import pytest
from structlog.testing import capture_logs

from tensorfusion_dra.app.shared import pages
from tensorfusion_dra.app.shared.health_endpoint import HealthEndpoint
from tensorfusion_dra.app.shared.pages import Page, PageAnswer, PageRequest
from tests.support.waiting import PATIENCE_SECONDS, eventually


def echo(request: PageRequest) -> PageAnswer:
    """Answer with the facts of the request."""
    facts = {
        "path": request.path,
        "query": request.query,
        "accept": request.accept,
        "host": request.host,
        "from_loopback": request.from_loopback,
    }
    return PageAnswer(
        body=json.dumps(facts).encode(),
        content_type="application/json",
        headers={"Cache-Control": "no-store"},
    )


def failing(_request: PageRequest) -> PageAnswer:
    raise KeyError("secret of the page")


@contextmanager
def serving(by_path: Mapping[str, Page], *, host: str = "127.0.0.1") -> Iterator[HealthEndpoint]:
    endpoint = HealthEndpoint({"/healthz": lambda: None}, by_path, host=host, port=0)
    endpoint.start()
    try:
        yield endpoint
    finally:
        endpoint.stop()


def ask(
    port: int, path: str, *, method: str = "GET", headers: Mapping[str, str] | None = None
) -> tuple[int, Mapping[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_SECONDS)
    try:
        connection.request(method, path, headers=dict(headers or {}))
        response = connection.getresponse()
        return response.status, dict(response.getheaders()), response.read()
    finally:
        connection.close()


def test_a_page_learns_the_facts_of_its_request() -> None:
    with serving({"/echo": echo}) as endpoint:
        headers = {"Accept": "text/html", "Host": "node.example:8080"}
        status, answered, body = ask(endpoint.port, "/echo?a=1&b", headers=headers)

    assert status == 200
    assert answered["Content-Type"] == "application/json"
    assert answered["Cache-Control"] == "no-store"
    assert json.loads(body) == {
        "path": "/echo",
        "query": "a=1&b",
        "accept": "text/html",
        "host": "node.example:8080",
        "from_loopback": True,
    }


def test_ipv4_loopback_is_recognised_on_a_socket_for_both_families() -> None:
    with serving({"/echo": echo}, host="") as endpoint:
        assert json.loads(ask(endpoint.port, "/echo")[2])["from_loopback"] is True


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("10.127.0.1", False),
        ("::ffff:10.0.0.1", False),
        ("fe80::1", False),
        ("1::1", False),
    ],
)
def test_only_loopback_is_loopback(address: str, expected: bool) -> None:
    assert pages.is_loopback(address) is expected


def test_head_gets_the_headers_of_get_without_the_body() -> None:
    with serving({"/echo": echo}) as endpoint:
        got = ask(endpoint.port, "/echo")
        status, headers, body = ask(endpoint.port, "/echo", method="HEAD")

    assert (status, body) == (200, b"")
    assert headers["Content-Length"] == str(len(got[2]))
    assert headers["Content-Type"] == "application/json"


def test_a_probe_may_use_head() -> None:
    with serving({}) as endpoint:
        assert ask(endpoint.port, "/healthz", method="HEAD")[::2] == (200, b"")


def test_a_failing_page_answers_500_and_is_logged_and_probes_go_on() -> None:
    with serving({"/bad": failing, "/echo": echo}) as endpoint, capture_logs() as logged:
        status, _, body = ask(endpoint.port, "/bad")
        again = ask(endpoint.port, "/bad")[0]

        assert (status, again) == (500, 500)
        assert body == b"KeyError, see the log\n"
        assert ask(endpoint.port, "/healthz")[0] == 200
        assert ask(endpoint.port, "/echo")[0] == 200

    failed = [line for line in logged if line["event"] == "page_failed"]
    assert [line["path"] for line in failed] == ["/bad"]


def test_an_unknown_path_names_checks_and_pages() -> None:
    with serving({"/echo": echo}) as endpoint:
        assert ask(endpoint.port, "/x")[::2] == (404, b"expected one of /healthz, /echo\n")


def test_a_page_may_answer_an_error_of_its_own() -> None:
    def forbidden(_request: PageRequest) -> PageAnswer:
        return pages.text_answer(HTTPStatus.FORBIDDEN, "only from this machine")

    with serving({"/page": forbidden}) as endpoint:
        assert ask(endpoint.port, "/page")[::2] == (403, b"only from this machine\n")


def test_probes_find_room_beside_as_many_pages_as_are_answered_at_a_time() -> None:
    go_on = Event()
    arrived: list[str] = []

    def slow(request: PageRequest) -> PageAnswer:
        arrived.append(request.path)
        assert go_on.wait(PATIENCE_SECONDS)
        return PageAnswer(body=b"slow")

    with serving({"/slow": slow}) as endpoint:
        readers = [
            Thread(target=ask, args=(endpoint.port, "/slow")) for _ in range(pages._MOST_ANSWERED)
        ]
        for reader in readers:
            reader.start()
        assert eventually(lambda: len(arrived) == pages._MOST_ANSWERED)

        refused = ask(endpoint.port, "/slow")
        probed = ask(endpoint.port, "/healthz")
        go_on.set()
        for reader in readers:
            reader.join(PATIENCE_SECONDS)
        afterwards = ask(endpoint.port, "/slow")

    assert refused[0] == 503
    assert probed[0] == 200
    assert afterwards[::2] == (200, b"slow")
