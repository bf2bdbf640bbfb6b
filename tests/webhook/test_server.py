"""The server for reviews bounds everything that a client controls, and goes on for all others."""

import contextlib
import gc
import selectors
import socket
import ssl
from asyncio import sslproto
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from http import HTTPStatus
from threading import Event, Thread

import pytest

from tensorfusion_dra.core.errors import InputError
from tensorfusion_dra.runtime.http_server import Request, Response
from tensorfusion_dra.webhook.certificates import Certificates
from tensorfusion_dra.webhook.server import USUAL, Bounds, ReviewServer
from tests.support.https import HOST, Files, connection, posted, serving
from tests.support.waiting import FOREVER, PATIENCE_SECONDS, eventually

CHUNKED = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
HALF = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nx"
LARGE = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 600000\r\n\r\n"
REFUSED = b"GET /refused HTTP/1.1\r\nHost: a\r\n\r\n"


def echo(request: Request) -> Response:
    return Response(
        status=HTTPStatus.NOT_FOUND if request.path == "/refused" else HTTPStatus.OK,
        body=f"{request.method} {request.path} {request.query} ".encode() + request.body,
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


@contextmanager
def secured(server: ReviewServer, files: Files) -> Iterator[ssl.SSLSocket]:
    """Open a connection for a client that sends what it likes, and whose kernel keeps little."""
    with socket.socket() as plain:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        plain.settimeout(PATIENCE_SECONDS)
        plain.connect((HOST, server.port))
        with files.trusting().wrap_socket(plain, server_hostname=HOST) as found:
            yield found


def raw(server: ReviewServer, files: Files, text: bytes) -> bytes:
    """Send a text that may not be a request; return the complete answer."""
    with secured(server, files) as client:
        client.sendall(text)
        answer = b""
        while part := client.recv(65536):
            answer += part
        return answer


def status_of(server: ReviewServer, files: Files, body: bytes = b"x") -> int:
    """Return the status of a review by a new client."""
    with closing(connection(server.port, files.trusting())) as client:
        return posted(client, "/", body)[0]


@pytest.mark.parametrize(
    ("text", "status"),
    [
        (b"nonsense\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1_0\r\n\r\n", b"400"),
        (b"GET /".ljust(16_385, b"a"), b"400"),
    ],
)
def test_bad_request_gets_an_error_and_closes_the_connection(
    files: Files, text: bytes, status: bytes
) -> None:
    with serving(echo, files) as server:
        answer = raw(server, files, text)

    assert answer.split(b" ")[1] == status
    assert b"\r\nconnection: close\r\n" in answer.lower()


@pytest.mark.parametrize(
    "text",
    [
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 6291457\r\n\r\n",
        CHUNKED + b"600001\r\n" + b"x" * 0x600001,
    ],
    ids=["announced", "chunked"],
)
def test_body_above_the_maximum_size_is_refused(files: Files, text: bytes) -> None:
    with serving(echo, files) as server, secured(server, files) as client:
        client.sendall(text)

        assert client.recv(12) == b"HTTP/1.1 413"


def test_body_of_the_maximum_size_is_accepted(files: Files) -> None:
    with (
        serving(echo, files) as server,
        closing(connection(server.port, files.trusting())) as client,
    ):
        status, answer = posted(client, "/", b"x" * USUAL.body_bytes)

    assert (status, len(answer)) == (200, USUAL.body_bytes + len("POST /  "))


def test_large_reviews_wait_for_each_other_but_small_ones_do_not(files: Files) -> None:
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

    with serving(respond, files) as server:
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
    bounds = Bounds(handshake_seconds=0.1)

    with (
        serving(echo, files, bounds) as server,
        socket.create_connection((HOST, server.port), 5) as silent,
    ):
        assert silent.recv(1) == b""


def test_client_that_drips_a_body_is_cut(files: Files) -> None:
    with (
        serving(echo, files, Bounds(request_seconds=0.5)) as server,
        secured(server, files) as slow,
    ):
        slow.sendall(LARGE)

        def is_cut() -> bool:
            try:
                slow.sendall(b"x")
            except OSError:
                return True
            return False

        assert eventually(is_cut)


def test_client_that_does_not_read_its_answer_is_cut(files: Files) -> None:
    answer = b"x" * 2**24
    with (
        serving(lambda _: Response(body=answer), files, Bounds(request_seconds=0.5)) as server,
        secured(server, files) as slow,
    ):
        slow.sendall(HALF + b"x" * 9)
        assert eventually(lambda: not server.connections)
        read = 0
        with contextlib.suppress(OSError):
            while part := slow.recv(2**20):
                read += len(part)

    assert read < len(answer)


def test_idle_client_is_cut(files: Files) -> None:
    with serving(echo, files, Bounds(idle_seconds=0.2)) as server:
        answer = raw(server, files, b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n")

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


def test_many_clients_can_connect_at_once(files: Files) -> None:
    """A server that has not accepted any of them yet needs no second attempt of a client."""
    context = Certificates(files.certificate, files.key).context
    server = ReviewServer(echo, host=HOST, port=0, context=context)
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
        ReviewServer(echo, host=HOST, port=server.port, context=ssl.create_default_context)


def test_http_2_is_not_offered(files: Files) -> None:
    context = files.trusting()
    context.set_alpn_protocols(["h2", "http/1.1"])
    with (
        serving(echo, files) as server,
        socket.create_connection((HOST, server.port), timeout=PATIENCE_SECONDS) as plain,
        context.wrap_socket(plain, server_hostname=HOST) as client,
    ):
        assert client.selected_alpn_protocol() == "http/1.1"
        client.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        assert client.recv(9) == b"HTTP/1.1 "


@pytest.mark.parametrize("sent", [b"", b"x" * 300_000], ids=["announced", "half"])
def test_bodies_that_do_not_arrive_take_no_worker(files: Files, sent: bytes) -> None:
    with serving(echo, files) as server, ExitStack() as opened:
        for _ in range(60):
            opened.enter_context(secured(server, files)).sendall(LARGE + sent)

        assert status_of(server, files, b"x" * 600_000) == 200
        assert [status_of(server, files) for _ in range(8)] == [200] * 8


def unread(server: ReviewServer) -> int:
    """Return the number of answers that are held for their clients."""
    return sum(size == 210_000 for size in [*server.held.values()])


def test_answers_that_are_not_read_take_no_worker(files: Files) -> None:
    bounds = Bounds(large_workers=1, small_workers=1)
    answer = b"x" * 210_000
    with (
        serving(lambda _: Response(body=answer), files, bounds) as server,
        ExitStack() as opened,
    ):
        for number in range(30):
            client = opened.enter_context(secured(server, files))
            client.sendall((LARGE + b"x" * 600_000) if number % 2 else (HALF + b"x" * 9))

        assert eventually(lambda: unread(server) == 30)
        assert status_of(server, files, b"x" * 600_000) == 200
        assert [status_of(server, files) for _ in range(8)] == [200] * 8


def test_slow_bodies_that_hold_too_much_are_cut_and_not_one_that_arrives(files: Files) -> None:
    with (
        serving(echo, files, Bounds(held_bytes=2**20)) as server,
        ExitStack() as opened,
    ):
        slow = [opened.enter_context(secured(server, files)) for _ in range(6)]
        for each in slow:
            each.sendall(LARGE + b"x" * 400_000)

        assert status_of(server, files, b"x" * 600_000) == 200
        with contextlib.suppress(ConnectionResetError):  # as some of what it sent is not read
            assert slow[0].recv(1) == b""
        assert sum([*server.held.values()]) <= 2**20


def test_more_large_reviews_than_may_be_held_are_told_to_come_again(files: Files) -> None:
    received, go_on = Event(), Event()

    def respond(request: Request) -> Response:
        received.set()
        go_on.wait(PATIENCE_SECONDS)
        return echo(request)

    with (
        serving(respond, files, Bounds(held_bytes=2**20)) as server,
        secured(server, files) as first,
    ):
        first.sendall(LARGE + b"x" * 600_000)
        received.wait(PATIENCE_SECONDS)
        second = status_of(server, files, b"x" * 600_000)
        go_on.set()
        assert first.recv(15) == b"HTTP/1.1 200 OK"

    assert second == 503


def test_bodies_of_clients_that_have_gone_count_until_they_were_worked_on(files: Files) -> None:
    received, go_on = Event(), Event()

    def respond(_: Request) -> Response:
        received.set()
        go_on.wait(PATIENCE_SECONDS)
        return Response(body=b"")

    with (
        serving(respond, files, Bounds(held_bytes=2 * 2**20)) as server,
        secured(server, files) as first,
    ):
        first.sendall(LARGE + b"x" * 600_000)
        received.wait(PATIENCE_SECONDS)
        for number in (2, 3):
            with secured(server, files) as gone:
                gone.sendall(LARGE + b"x" * 600_000)
                assert eventually(lambda: [*server.held.values()].count(600_000) == number)  # noqa: B023
        assert eventually(lambda: len(server.connections) == 1)
        refused = status_of(server, files, b"x" * 600_000)
        go_on.set()

        assert eventually(lambda: not server.held)
        assert status_of(server, files, b"x" * 600_000) == 200

    assert refused == 503


def test_no_answer_waits_for_the_acknowledgement_of_its_beginning(files: Files) -> None:
    with (
        serving(echo, files) as server,
        closing(connection(server.port, files.trusting())) as client,
    ):
        posted(client, "/", b"x")
        (accepted,) = server.connections
        own = accepted.tcp.get_extra_info("socket")

        assert own.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_review_that_nobody_waits_for_is_not_worked_on(files: Files) -> None:
    received, go_on = Event(), Event()
    paths = []

    def respond(request: Request) -> Response:
        paths.append(request.path)
        received.set()
        go_on.wait(PATIENCE_SECONDS)
        return echo(request)

    with (
        serving(respond, files, Bounds(small_workers=1)) as server,
        secured(server, files) as first,
    ):
        first.sendall(HALF + b"x" * 9)
        received.wait(PATIENCE_SECONDS)
        with secured(server, files) as gone:
            gone.sendall(HALF.replace(b"/", b"/gone", 1) + b"x" * 9)
            assert eventually(lambda: [*server.held.values()].count(10) == 2)
        assert eventually(lambda: len(server.connections) == 1)
        go_on.set()

        assert status_of(server, files) == 200

    assert paths == ["/", "/"]


def test_client_in_its_handshake_is_not_cut_for_others_that_were_refused(files: Files) -> None:
    """The API server and a client that connects as often as it can, behind one address."""
    with (
        serving(echo, files, Bounds(connections=16)) as server,
        ExitStack() as opened,
        closing(connection(server.port, files.trusting())) as kept,
    ):
        statuses = [posted(kept, "/", b"")[0]]
        refused = [opened.enter_context(secured(server, files)) for _ in range(15)]
        for client in refused:
            client.sendall(REFUSED)
            assert client.recv(12) == b"HTTP/1.1 404"
        plain = opened.enter_context(socket.create_connection((HOST, server.port)))
        for _ in range(12):
            opened.enter_context(socket.create_connection((HOST, server.port)))
            for client in refused[13:]:
                client.sendall(REFUSED)
        with files.trusting().wrap_socket(plain, server_hostname=HOST) as honest:
            honest.sendall(HALF + b"x" * 9)
            assert honest.recv(15) == b"HTTP/1.1 200 OK"
        statuses += [posted(kept, "/", b"")[0]]

    assert statuses == [200, 200]


def test_client_in_its_handshake_is_not_cut_for_others_whose_reviews_were_answered(
    files: Files,
) -> None:
    with serving(echo, files, Bounds(connections=16)) as server, ExitStack() as opened:
        for _ in range(16):
            client = opened.enter_context(secured(server, files))
            client.sendall(HALF + b"x" * 9)
            assert client.recv(12) == b"HTTP/1.1 200"
        plain = opened.enter_context(socket.create_connection((HOST, server.port)))
        for _ in range(6):
            opened.enter_context(socket.create_connection((HOST, server.port)))
        with files.trusting().wrap_socket(plain, server_hostname=HOST) as honest:
            honest.sendall(HALF + b"x" * 9)
            assert honest.recv(15) == b"HTTP/1.1 200 OK"


def test_connection_whose_review_is_worked_on_is_not_cut(files: Files) -> None:
    received, go_on = Event(), Event()

    def respond(request: Request) -> Response:
        received.set()
        go_on.wait(PATIENCE_SECONDS)
        return echo(request)

    with (
        serving(respond, files, Bounds(connections=1)) as server,
        secured(server, files) as first,
    ):
        first.sendall(HALF + b"x" * 9)
        received.wait(PATIENCE_SECONDS)
        with socket.create_connection((HOST, server.port), timeout=PATIENCE_SECONDS) as plain:
            go_on.set()
            assert first.recv(15) == b"HTTP/1.1 200 OK"
            with files.trusting().wrap_socket(plain, server_hostname=HOST) as second:
                second.sendall(HALF + b"x" * 9)
                assert second.recv(15) == b"HTTP/1.1 200 OK"


def test_connections_that_have_ended_are_collected_before_there_are_many(files: Files) -> None:
    gc.collect()
    gc.disable()
    try:
        with serving(echo, files, Bounds(connections=16)) as server, ExitStack() as opened:
            for _ in range(400):
                opened.enter_context(socket.create_connection((HOST, server.port)))
            assert status_of(server, files) == 200
            kept = sum(isinstance(each, sslproto.SSLProtocol) for each in gc.get_objects())
    finally:
        gc.enable()

    assert kept <= 150
