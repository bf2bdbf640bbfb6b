"""The server of a process's own pages answers beside clients that are slow, silent or many."""

import contextlib
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from threading import Event

import pytest

from tensorfusion_dra.runtime import http_server
from tensorfusion_dra.runtime.http_server import PageServer, Request, Respond, Response
from tests.support.logs import capture_logs
from tests.support.waiting import FOREVER, PATIENCE_SECONDS

HOST = "127.0.0.1"
ASK = b"GET /a?b HTTP/1.1\r\nHost: c\r\n\r\n"


def echo(request: Request) -> Response:
    if request.path == "/odd":
        raise KeyError("odd")
    return Response(body=f"{request.method} {request.path} {request.query}".encode())


@contextmanager
def serving(respond: Respond = echo, *, seconds: float = 10) -> Iterator[int]:
    server = PageServer(respond, host=HOST, port=0, setting="port", seconds=seconds)
    try:
        yield server.port
    finally:
        server.stop()


def opened(port: int, text: bytes) -> socket.socket:
    """Connect, and send a text that may not be a request."""
    client = socket.create_connection((HOST, port), PATIENCE_SECONDS)
    client.sendall(text)
    return client


def raw(port: int, text: bytes) -> bytes:
    """Send a text; return the complete answer."""
    with opened(port, text) as client, client.makefile("rb") as answer:
        return answer.read()


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (ASK, b"HTTP/1.0 200 OK"),
        (b"nonsense /\r\n\r\n", b"Error code: 400"),
        (b"BREW / HTTP/1.1\r\n\r\n", b"HTTP/1.0 501 "),
    ],
)
def test_each_connection_has_one_answer(text: bytes, answer: bytes) -> None:
    with serving() as port:
        assert answer in raw(port, text)


def test_request_is_read_no_further_than_its_head_may_be_long() -> None:
    head = ASK[:-2] + b"X: y\r\n" * 2000
    with serving() as port, contextlib.suppress(ConnectionError), opened(port, head) as client:
        assert b" 431 " in client.recv(100)  # not because of its 2000 headers


def test_fault_of_one_answer_is_logged_and_ends_only_its_connection() -> None:
    with serving() as port, capture_logs() as logged:
        assert raw(port, b"GET /odd HTTP/1.1\r\n\r\n") == b""
        assert raw(port, ASK).endswith(b"GET /a b")

    assert [line["event"] for line in logged] == ["request_failed"]


@pytest.mark.parametrize("sent", [b"", b"GET /"], ids=["silent", "half"])
def test_client_that_sends_nothing_for_long_is_cut(sent: bytes) -> None:
    with serving(seconds=0.3) as port:
        assert raw(port, sent) == b""


@pytest.mark.parametrize("sent", [b"", b"GET /", ASK], ids=["silent", "half", "does not read"])
def test_probe_is_answered_beside_any_number_of_slow_clients(sent: bytes) -> None:
    def respond(request: Request) -> Response:
        return Response(body=b"x" * (2**24 if request.path == "/a" else 2))

    with serving(respond) as port, ExitStack() as clients:
        for _ in range(100):
            clients.enter_context(opened(port, sent))

        assert raw(port, b"GET /healthz HTTP/1.1\r\n\r\n").endswith(b"\r\n\r\nxx")


def test_answers_that_are_never_ready_take_a_bounded_number_of_threads() -> None:
    go_on = Event()

    def respond(_: Request) -> Response:
        go_on.wait(FOREVER)
        return Response(body=b"late")

    with serving(respond) as port:
        clients = [opened(port, ASK) for _ in range(64)]
        late = opened(port, ASK)
        with contextlib.suppress(ConnectionError), late:
            assert late.recv(1) == b""
        go_on.set()

        assert raw(port, ASK).endswith(b"late")
        for client in clients:
            client.close()


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
    assert http_server.is_loopback(address) is expected
