"""Connections to the API server: used again, shared by threads, and replaced when they end."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from tensorfusion_dra.cluster.api import Api
from tensorfusion_dra.core.errors import RetryableError
from tests.support.answers import SLICES_PATH, failing
from tests.support.raw_server import HANG_UP, head, served
from tests.support.waiting import PATIENCE_SECONDS, eventually

EMPTY = head("Content-Length: 2") + b"{}"


def call_at_a_time(api: Api, number: int) -> None:
    """Send this number of requests, each in a thread of its own."""
    with ThreadPoolExecutor(number) as threads:
        assert list(threads.map(lambda _: api.call("GET", SLICES_PATH), range(number))) == (
            [{}] * number
        )


def together(number: int) -> Callable[[], Iterable[bytes]]:
    """Return a server's answer that waits until this number of requests has arrived."""
    arrived = Barrier(number, timeout=PATIENCE_SECONDS)

    def answer() -> Iterable[bytes]:
        arrived.wait()
        return [EMPTY]

    return answer


def test_requests_use_one_connection(tmp_path: Path) -> None:
    with served(lambda: [EMPTY]) as server:
        api = Api(server.kubeconfig(tmp_path), user_agent="agent/1")
        for _ in range(5):
            api.call("GET", SLICES_PATH, query={"fieldSelector": "spec.driver=a b,c!=d"})

        assert server.accepted == 1
        assert (
            server.requests
            == [f"GET {SLICES_PATH}?fieldSelector=spec.driver%3Da%20b%2Cc%21%3Dd HTTP/1.1"] * 5
        )
        host = f"127.0.0.1:{server.server_address[1]}"
        assert server.headers == {
            "host": host,
            "user-agent": "agent/1",
            "accept": "application/json",
            "accept-encoding": "identity",
        }


def test_64_requests_at_a_time_keep_their_connections(tmp_path: Path) -> None:
    with served(together(64)) as server:
        api = Api(server.kubeconfig(tmp_path))
        for _ in range(2):
            call_at_a_time(api, 64)

        assert server.accepted == 64


def test_login_that_was_rejected_leaves_no_connections(tmp_path: Path) -> None:
    with served(together(4)) as server:
        api = Api(server.kubeconfig(tmp_path))
        call_at_a_time(api, 4)
        server.answer = lambda: [head("Content-Length: 2", status=401), b"{}"]

        failing(api)

        assert eventually(lambda: server.connected == 0)


@pytest.mark.parametrize("method", ["GET", "PATCH"])
def test_connection_that_ended_while_idle_is_not_used(tmp_path: Path, method: str) -> None:
    with served(lambda: [EMPTY, HANG_UP]) as server:
        api = Api(server.kubeconfig(tmp_path))
        for _ in range(3):
            assert api.call(method, SLICES_PATH, body={"a": "b"}) == {}
            assert eventually(lambda: server.connected == 0)

        assert server.accepted == len(server.requests) == 3
        assert server.headers["content-type"] == "application/json"


@pytest.mark.parametrize(("method", "tries"), [("GET", 2), ("DELETE", 2), ("POST", 1)])
def test_request_without_an_answer_is_repeated_once_if_it_may_be(
    tmp_path: Path, method: str, tries: int
) -> None:
    with served(lambda: [HANG_UP]) as server:
        api = Api(server.kubeconfig(tmp_path))

        with pytest.raises(RetryableError, match="connection closed before the end of the answer"):
            api.call(method, SLICES_PATH)

        assert len(server.requests) == tries


def test_body_that_ends_early_is_an_error(tmp_path: Path) -> None:
    with served(lambda: [head("Content-Length: 3"), b"{}", HANG_UP]) as server:
        api = Api(server.kubeconfig(tmp_path))

        with pytest.raises(RetryableError, match="connection closed before the end of the answer"):
            api.call("GET", SLICES_PATH)

        assert len(server.requests) == 1


def test_malformed_answer_is_retryable_and_requested_once(tmp_path: Path) -> None:
    with served(lambda: [b"SSH-2.0-OpenSSH\r\n\r\n"]) as server:
        api = Api(server.kubeconfig(tmp_path))

        with pytest.raises(RetryableError, match="SSH-2\\.0-OpenSSH"):
            api.call("GET", SLICES_PATH)

        assert (server.accepted, len(server.requests)) == (1, 1)


def test_path_with_a_line_break_stays_one_request(tmp_path: Path) -> None:
    with served(lambda: [EMPTY]) as server:
        Api(server.kubeconfig(tmp_path)).call("GET", "/a HTTP/1.1\r\nHost: b")

        assert server.requests == ["GET /a%20HTTP/1.1%0D%0AHost:%20b HTTP/1.1"]
