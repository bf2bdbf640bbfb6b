"""The HTTP server parses strictly and bounds everything that a client controls."""

import selectors
import socket
import ssl
from contextlib import ExitStack, closing
from threading import Event, Thread

import pytest

from tensorfusion_dra.core.errors import InputError
from tensorfusion_dra.runtime import http_server
from tensorfusion_dra.runtime.http_server import USUAL, Bounds, Request, Response, Server
from tests.support.https import HOST, Files, connection, posted, serving
from tests.support.waiting import FOREVER, PATIENCE_SECONDS, eventually

HALF = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nx"


def echo(request: Request) -> Response:
    return Response(
        body=f"{request.method} {request.path} {request.query} ".encode() + request.body
    )


def test_several_requests_share_one_connection(files: Files) -> None:
    with (
        serving(echo, files) as server,
        closing(connection(server.port, files.trusting())) as client,
    ):
        answers = [posted(client, f"/{n}?timeout=5s", b"x" * n) for n in range(3)]

    assert answers == [(200, f"POST /{n} timeout=5s {'x' * n}".encode()) for n in range(3)]


def test_tls_1_1_is_rejected(files: Files) -> None:
    context = files.trusting()
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1"):
        context.minimum_version = ssl.TLSVersion.TLSv1
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1

    with serving(echo, files) as server, pytest.raises((ssl.SSLError, ConnectionError)):
        connection(server.port, context).connect()


def raw(port: int, files: Files, text: bytes) -> bytes:
    """Send a text that may not be a request; return the complete answer."""
    with (
        socket.create_connection((HOST, port), timeout=PATIENCE_SECONDS) as plain,
        files.trusting().wrap_socket(plain, server_hostname=HOST) as secured,
    ):
        secured.sendall(text)
        answer = b""
        while part := secured.recv(65536):
            answer += part
        return answer


@pytest.mark.parametrize(
    ("text", "status"),
    [
        (b"nonsense\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", b"411"),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1_0\r\n\r\n", b"411"),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", b"411"),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 6291457\r\n\r\n", b"413"),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: " + b"9" * 30 + b"\r\n\r\n", b"413"),
        # As many bytes as the server reads of a line: more would reset the connection.
        (b"GET /".ljust(65_537, b"a"), b"414"),
        (b"BREW / HTTP/1.1\r\nHost: a\r\n\r\n", b"501"),
    ],
)
def test_bad_request_gets_an_error_and_closes_the_connection(
    files: Files, text: bytes, status: bytes
) -> None:
    with serving(echo, files) as server:
        answer = raw(server.port, files, text)

    assert answer.split(b" ")[1] == status
    assert b"Connection: close" in answer


def test_body_of_the_maximum_size_is_accepted(files: Files) -> None:
    with (
        serving(echo, files) as server,
        closing(connection(server.port, files.trusting())) as client,
    ):
        status, answer = posted(client, "/", b"x" * USUAL.body_bytes)

    assert (status, len(answer)) == (200, USUAL.body_bytes + len("POST /  "))


def test_large_bodies_wait_for_each_other_but_small_ones_do_not(files: Files) -> None:
    received, go_on = Event(), Event()

    def respond(request: Request) -> Response:
        if request.path == "/first":
            received.set()
            go_on.wait(PATIENCE_SECONDS)
        return Response(body=request.path.encode())

    large = b"x" * 2**20
    order: list[bytes] = []

    def send(path: str, text: bytes) -> None:
        with closing(connection(server.port, files.trusting())) as client:
            order.append(posted(client, path, text)[1])

    with serving(respond, files, Bounds(large_bodies=1)) as server:
        first = Thread(target=send, args=("/first", large))
        first.start()
        received.wait(PATIENCE_SECONDS)
        second = Thread(target=send, args=("/second", large))
        second.start()
        send("/small", b"x")
        go_on.set()
        first.join()
        second.join()

    assert order[0] == b"/small"
    assert sorted(order) == [b"/first", b"/second", b"/small"]


def test_exception_in_one_request_does_not_affect_the_next(files: Files) -> None:
    def respond(request: Request) -> Response:
        if request.path == "/odd":
            raise KeyError("odd")
        return echo(request)

    with (
        serving(respond, files) as server,
        closing(connection(server.port, files.trusting())) as client,
    ):
        odd, usual = posted(client, "/odd", b""), posted(client, "/usual", b"")

    assert odd == (500, b"KeyError, see the log\n")
    assert usual[0] == 200


def test_client_that_sends_nothing_is_cut(files: Files) -> None:
    bounds = Bounds(handshake_seconds=0.1, check_seconds=0.05)

    with (
        serving(echo, files, bounds) as server,
        socket.create_connection((HOST, server.port), 5) as silent,
    ):
        assert silent.recv(1) == b""


def test_client_that_drips_a_request_is_cut(files: Files) -> None:
    bounds = Bounds(request_seconds=0.5, check_seconds=0.05)
    with (
        serving(echo, files, bounds) as server,
        socket.create_connection((HOST, server.port), PATIENCE_SECONDS) as plain,
        files.trusting().wrap_socket(plain, server_hostname=HOST) as slow,
    ):
        slow.sendall(b"GET / HTTP/1.1\r\nX: ")

        def is_cut() -> bool:
            try:
                slow.sendall(b"x")
            except OSError:
                return True
            return False

        assert eventually(is_cut)


def test_head_beyond_the_bound_ends_the_connection_and_each_request_counts_anew(
    files: Files,
) -> None:
    with (
        serving(echo, files, Bounds(head_bytes=1000)) as server,
        closing(connection(server.port, files.trusting())) as client,
    ):
        statuses = [posted(client, "/", b"")[0] for _ in range(20)]
        client.request("POST", "/", headers={f"X-{n}": "x" * 100 for n in range(20)})
        with pytest.raises(OSError, match=r"closed|EOF|reset|violation"):
            client.getresponse()

    assert statuses == [200] * 20


def test_idle_client_is_cut(files: Files) -> None:
    with serving(echo, files, Bounds(idle_seconds=0.2, check_seconds=0.05)) as server:
        answer = raw(server.port, files, b"POST / HTTP/1.1\r\nContent-Length: 0\r\n\r\n")

    assert answer.startswith(b"HTTP/1.1 200 OK")


def test_longest_idle_connection_is_cut_if_there_are_too_many(files: Files) -> None:
    with serving(echo, files, Bounds(connections=3)) as server:
        clients = [connection(server.port, files.trusting()) for _ in range(4)]
        statuses = [posted(client, "/", b"")[0] for client in clients]
        first = clients[0].sock
        assert first is not None
        ended = first.recv(1)
        again = posted(clients[1], "/", b"")[0]
        for client in clients:
            client.close()

    assert statuses == [200] * 4
    assert ended == b""
    assert again == 200


@pytest.mark.parametrize("sent", [None, b"", HALF], ids=["no handshake", "no request", "half"])
def test_connections_without_a_request_make_room_for_others(
    files: Files, sent: bytes | None
) -> None:
    with (
        serving(echo, files, Bounds(connections=4)) as server,
        closing(connection(server.port, files.trusting())) as kept,
        closing(connection(server.port, files.trusting())) as new,
        ExitStack() as opened,
    ):
        statuses = [posted(kept, "/", b"")[0]]
        for _ in range(12):
            silent = opened.enter_context(socket.create_connection((HOST, server.port)))
            if sent is not None:
                silent = files.trusting().wrap_socket(silent, server_hostname=HOST)
                opened.enter_context(silent).sendall(sent)
        statuses += [posted(client, "/", b"")[0] for client in (new, kept)]

    assert statuses == [200] * 3


def test_many_clients_can_connect_at_once() -> None:
    """A server that has not accepted any of them yet needs no second attempt of a client."""
    server = Server(echo, host=HOST, port=0)
    with ExitStack() as opened, selectors.DefaultSelector() as pending:
        opened.callback(server.stop, grace_seconds=0)
        for _ in range(300):
            client = opened.enter_context(socket.socket())
            client.settimeout(0)
            client.connect_ex((HOST, server.port))
            pending.register(client, selectors.EVENT_WRITE)

        assert len(pending.select(timeout=0)) == 300


def test_request_in_flight_at_the_stop_is_answered(
    files: Files,
) -> None:
    received, go_on = Event(), Event()
    answers = []

    def respond(_: Request) -> Response:
        received.set()
        go_on.wait(PATIENCE_SECONDS)
        return Response(body=b"late")

    with (
        serving(respond, files) as server,
        closing(connection(server.port, files.trusting())) as client,
    ):
        sending = Thread(target=lambda: answers.append(posted(client, "/", b"")))
        sending.start()
        received.wait(PATIENCE_SECONDS)
        stopping = Thread(target=server.stop, kwargs={"grace_seconds": FOREVER})
        stopping.start()
        server.is_leaving.wait(PATIENCE_SECONDS)
        go_on.set()
        sending.join()
        stopping.join()

    assert answers == [(200, b"late")]


def test_leaving_server_closes_connections_but_still_accepts_requests(files: Files) -> None:
    with (
        serving(echo, files) as server,
        closing(connection(server.port, files.trusting())) as client,
        closing(connection(server.port, files.trusting())) as later,
    ):
        assert posted(client, "/", b"")[0] == 200
        server.is_leaving.set()
        client.request("POST", "/", b"")
        answer = client.getresponse()
        answer.read()
        status, _ = posted(later, "/", b"")

    assert answer.getheader("Connection") == "close"
    assert status == 200


def test_stop_ends_used_and_unused_idle_connections_at_once(files: Files) -> None:
    with (
        serving(echo, files) as server,
        closing(connection(server.port, files.trusting())) as used,
        closing(connection(server.port, files.trusting())) as unused,
    ):
        unused.connect()
        posted(used, "/", b"")
        server.stop(grace_seconds=FOREVER)
        ended = [client.sock.recv(1) for client in (used, unused)]

    assert ended == [b"", b""]


def test_port_in_use_is_an_input_error(files: Files) -> None:
    with (
        serving(echo, files) as server,
        pytest.raises(InputError, match=f"^port {server.port}: Address already in use$"),
    ):
        Server(echo, host=HOST, port=server.port)


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
