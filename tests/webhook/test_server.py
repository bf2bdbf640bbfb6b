"""The server for reviews bounds what a client controls, and goes on for others; its certificate."""

import contextlib
import gc
import selectors
import socket
import ssl
import subprocess
import threading
import time
from asyncio import sslproto
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from threading import Event, Semaphore

import pytest
import trustme

from tensorfusion_dra.core.errors import InputError, RetryableError
from tensorfusion_dra.runtime.http_server import Request, Response
from tensorfusion_dra.webhook.certificates import Certificates
from tensorfusion_dra.webhook.server import USUAL, ReviewServer
from tests.support.https import HOST, PATIENT, Files, connection, posted, serving
from tests.support.waiting import FOREVER, PATIENCE_SECONDS, eventually

CHUNKED = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
HALF = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nx"
LARGE = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 600000\r\n\r\n"
REVIEW, LARGE_REVIEW = HALF + b"x" * 9, LARGE + b"x" * 600_000
REFUSED = b"GET /refused HTTP/1.1\r\nHost: a\r\n\r\n"


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """A certificate and its key for each test."""
    return Files(tmp_path)


def echo(request: Request) -> Response:
    return Response(
        status=HTTPStatus.NOT_FOUND if request.path == "/refused" else HTTPStatus.OK,
        body=f"{request.method} {request.path} {request.query} ".encode() + request.body,
    )


class HeldEcho:
    """Answers as `echo` does; the first answer waits until the test lets it go on."""

    def __init__(self) -> None:
        self.received, self.go_on = Event(), Event()
        self.paths: list[str] = []

    def __call__(self, request: Request) -> Response:
        self.paths.append(request.path)
        if len(self.paths) == 1:
            self.received.set()
            self.go_on.wait(PATIENCE_SECONDS)
        return echo(request)

    def wait(self) -> None:
        """Wait until the first request has arrived."""
        assert self.received.wait(PATIENCE_SECONDS)


def test_several_requests_share_one_connection_which_delays_no_answer(files: Files) -> None:
    with (
        serving(echo, files) as server,
        closing(connection(server.port, files.trusting())) as client,
    ):
        answers = [posted(client, f"/{n}?timeout=5s", b"x" * n) for n in range(3)]
        (accepted,) = server.connections
        own = accepted.tcp.get_extra_info("socket")

        # No answer waits for the acknowledgement of its beginning.
        assert own.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

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
def secured(server: ReviewServer, files: Files, address: str = HOST) -> Iterator[ssl.SSLSocket]:
    """Open a connection for a client that sends what it likes, and whose kernel keeps little."""
    with socket.socket() as plain:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        plain.settimeout(PATIENCE_SECONDS)
        plain.bind((address, 0))
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


def status_of(server: ReviewServer, files: Files, body: bytes = b"x", path: str = "/") -> int:
    """Return the status of a review by a new client."""
    with closing(connection(server.port, files.trusting())) as client:
        return posted(client, path, body)[0]


def held(server: ReviewServer, size: int) -> int:
    """Return the number of bodies and answers of this size that the server holds."""
    return [*server.held.values()].count(size)


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


def test_body_above_the_maximum_size_is_refused(files: Files) -> None:
    with serving(echo, files) as server, secured(server, files) as client:
        client.sendall(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 6291457\r\n\r\n")

        assert client.recv(12) == b"HTTP/1.1 413"


def calls_to_refuse(text: bytes, files: Files) -> int:
    """Return the calls of functions by which the server answers 411 to a text and closes."""
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    threading.setprofile(count)
    try:
        with serving(echo, files) as server:
            answer = raw(server, files, text)
    finally:
        threading.setprofile(None)
    assert answer.startswith(b"HTTP/1.1 411 ")
    return calls


@pytest.mark.parametrize("chunk", [b"1\r\nx\r\n", b"1;a=b\r\nx\r\n"], ids=["plain", "extended"])
def test_body_in_chunks_is_refused_and_none_of_them_is_read(files: Files, chunk: bytes) -> None:
    """The API server announces the length of its bodies."""
    one, many = (calls_to_refuse(CHUNKED + chunk * count, files) for count in (1, 1_000))

    assert many - one < 1_000


def test_body_of_the_maximum_size_is_accepted(files: Files) -> None:
    with (
        serving(echo, files) as server,
        closing(connection(server.port, files.trusting())) as client,
    ):
        status, answer = posted(client, "/", b"x" * USUAL.body_bytes)

    assert (status, len(answer)) == (200, USUAL.body_bytes + len("POST /  "))


def test_large_reviews_wait_for_each_other_but_small_ones_do_not(files: Files) -> None:
    respond, large = HeldEcho(), b"x" * 2**20
    with serving(respond, files) as server, ThreadPoolExecutor(2) as threads:
        threads.submit(status_of, server, files, large, "/first")
        respond.wait()
        threads.submit(status_of, server, files, large, "/second")
        assert eventually(lambda: held(server, len(large)) == 2)
        status_of(server, files, path="/small")
        respond.go_on.set()

    assert respond.paths == ["/first", "/small", "/second"]


def body(namespace: str, size: int = 0) -> bytes:
    """Return a body that begins like a review of an object in a namespace."""
    return f'{{"request":{{"name":"a","namespace":"{namespace}","object":"'.encode().ljust(
        size, b"x"
    )


def request(path: str, text: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(text)}\r\n\r\n"
    return head.encode() + text


@pytest.mark.parametrize("size", [0, 2**17], ids=["small", "large"])
def test_namespaces_and_addresses_have_turns(files: Files, size: int) -> None:
    respond = HeldEcho()
    bounds = replace(PATIENT, small_workers=1, large_workers=1)
    came = [(HOST, "a")] * 4 + [(HOST, "b")] * 2 + [("127.0.0.2", "a")]
    with serving(respond, files, bounds) as server, ExitStack() as opened:
        for number, (address, namespace) in enumerate(came):
            client = opened.enter_context(secured(server, files, address))
            path = f"/{namespace if address == HOST else 'other'}"
            text = body(namespace, size)
            client.sendall(request(path, text))
            assert eventually(lambda: held(server, len(text)) > number)  # noqa: B023
            respond.wait()
        respond.go_on.set()
        assert eventually(lambda: len(respond.paths) == len(came))

    assert respond.paths == ["/a", "/a", "/other", "/b", "/a", "/b", "/a"]


@pytest.mark.parametrize("size", [0, 2**17], ids=["small", "large"])
def test_reviews_of_a_namespace_that_take_long_leave_workers_to_others(
    files: Files, size: int
) -> None:
    go_on, begun = Event(), Semaphore(0)

    def respond(asked: Request) -> Response:
        if asked.path == "/slow":
            begun.release()
            go_on.wait(FOREVER)
        return echo(asked)

    with serving(respond, files) as server, ExitStack() as opened:
        opened.callback(go_on.set)
        for _ in range(9):
            client = opened.enter_context(secured(server, files))
            client.sendall(request("/slow", body("a", size)))
        assert begun.acquire(timeout=PATIENCE_SECONDS)
        assert eventually(lambda: len(server.held) == 9)

        assert status_of(server, files, body("b", size)) == 200


def test_small_review_of_many_elements_waits_with_the_large_ones(files: Files) -> None:
    respond = HeldEcho()
    with (
        serving(respond, files, replace(PATIENT, large_workers=1)) as server,
        ThreadPoolExecutor(2) as threads,
    ):
        threads.submit(status_of, server, files, b"x" * 2**20, "/first")
        respond.wait()
        threads.submit(status_of, server, files, b"," * 2_001, "/second")
        assert eventually(lambda: held(server, 2_001) == 1)
        status_of(server, files, b"," * 2_000, path="/small")
        respond.go_on.set()

    assert respond.paths == ["/first", "/small", "/second"]


def test_request_arrived_before_it_waited_for_a_worker(files: Files) -> None:
    respond, arrived = HeldEcho(), list[float]()

    def recorded(asked: Request) -> Response:
        answer = respond(asked)
        arrived.append(asked.arrived)
        return answer

    with (
        serving(recorded, files, replace(PATIENT, small_workers=1)) as server,
        ThreadPoolExecutor(2) as threads,
    ):
        threads.submit(status_of, server, files)
        respond.wait()
        threads.submit(status_of, server, files, b"xx")
        assert eventually(lambda: held(server, 2) == 1)
        until = time.monotonic()
        respond.go_on.set()

    assert sorted(arrived) == arrived
    assert arrived[1] <= until


def test_request_arrived_before_its_body(files: Files) -> None:
    arrived = list[float]()

    def recorded(asked: Request) -> Response:
        arrived.append(asked.arrived)
        return Response(body=b"{}")

    with serving(recorded, files) as server, secured(server, files) as client:
        text = request("/", b"xx")
        client.sendall(text[:-2])
        assert eventually(lambda: held(server, 0) == 1)
        until = time.monotonic()
        client.sendall(text[-2:])
        assert client.recv(100)

    assert arrived[0] <= until


def test_exception_in_one_request_does_not_affect_the_next(files: Files) -> None:
    def respond(request: Request) -> Response:
        if request.path == "/odd":
            raise KeyError("odd")
        return echo(request)

    with (
        serving(respond, files) as server,
        closing(connection(server.port, files.trusting())) as client,
    ):
        assert posted(client, "/odd", b"") == (500, b"KeyError, see the log\n")
        assert posted(client, "/usual", b"")[0] == 200


def test_client_that_sends_nothing_is_cut(files: Files) -> None:
    with (
        serving(echo, files, replace(PATIENT, handshake_seconds=0.1)) as server,
        socket.create_connection((HOST, server.port), 5) as silent,
    ):
        assert silent.recv(1) == b""


def test_client_that_drips_a_body_is_cut(files: Files) -> None:
    with (
        serving(echo, files, replace(PATIENT, request_seconds=0.5)) as server,
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
    answer, read = Response(body=b"x" * 2**24), 0
    with (
        serving(lambda _: answer, files, replace(PATIENT, request_seconds=0.5)) as server,
        secured(server, files) as slow,
    ):
        slow.sendall(REVIEW)
        assert eventually(lambda: not server.connections)
        with contextlib.suppress(OSError):
            while part := slow.recv(2**20):
                read += len(part)

    assert read < 2**24


def test_idle_client_is_cut(files: Files) -> None:
    with serving(echo, files, replace(PATIENT, idle_seconds=0.2)) as server:
        answer = raw(server, files, b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n")

    assert answer.startswith(b"HTTP/1.1 200 OK")


def test_longest_idle_connection_is_cut_if_there_are_too_many(files: Files) -> None:
    with serving(echo, files, replace(PATIENT, connections=3)) as server, ExitStack() as opened:
        made = [connection(server.port, files.trusting()) for _ in range(4)]
        first, second, *_ = [opened.enter_context(closing(client)) for client in made]
        assert [posted(client, "/", b"")[0] for client in made] == [200] * 4

        with pytest.raises((ssl.SSLError, ConnectionError)):
            posted(first, "/", b"")
        assert posted(second, "/", b"")[0] == 200


@pytest.mark.parametrize("sent", [None, b"", HALF], ids=["no handshake", "no request", "half"])
def test_connections_without_a_request_make_room_for_others(
    files: Files, sent: bytes | None
) -> None:
    with (
        serving(echo, files, replace(PATIENT, connections=4)) as server,
        closing(connection(server.port, files.trusting())) as kept,
        ExitStack() as opened,
    ):
        assert posted(kept, "/", b"")[0] == 200
        for _ in range(12):
            if sent is None:
                opened.enter_context(socket.create_connection((HOST, server.port)))
            else:
                opened.enter_context(secured(server, files)).sendall(sent)

        assert status_of(server, files) == 200
        assert posted(kept, "/", b"")[0] == 200


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


def test_request_in_flight_at_the_stop_is_answered(files: Files) -> None:
    respond = HeldEcho()
    with serving(respond, files) as server, ThreadPoolExecutor(2) as threads:
        status = threads.submit(status_of, server, files)
        respond.wait()
        threads.submit(server.stop, grace_seconds=FOREVER)
        assert server.is_leaving.wait(PATIENCE_SECONDS)
        respond.go_on.set()

        assert status.result() == 200


def test_leaving_server_closes_connections_but_still_accepts_requests(files: Files) -> None:
    with (
        serving(echo, files) as server,
        closing(connection(server.port, files.trusting())) as client,
    ):
        assert posted(client, "/", b"")[0] == 200
        server.is_leaving.set()
        client.request("POST", "/", b"")
        answer = client.getresponse()
        answer.read()

        assert answer.getheader("Connection") == "close"
        assert status_of(server, files) == 200


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


def test_answers_that_are_not_read_take_no_worker(files: Files) -> None:
    answer = Response(body=b"x" * 210_000)
    with (
        serving(
            lambda _: answer, files, replace(PATIENT, large_workers=1, small_workers=1)
        ) as server,
        ExitStack() as opened,
    ):
        for text in [REVIEW, LARGE_REVIEW] * 15:
            opened.enter_context(secured(server, files)).sendall(text)

        assert eventually(lambda: held(server, 210_000) == 30)
        assert status_of(server, files, b"x" * 600_000) == 200
        assert [status_of(server, files) for _ in range(8)] == [200] * 8


def test_slow_bodies_that_hold_too_much_are_cut_and_not_one_that_arrives(files: Files) -> None:
    with (
        serving(echo, files, replace(PATIENT, held_bytes=2**20)) as server,
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
    respond = HeldEcho()
    with (
        serving(respond, files, replace(PATIENT, held_bytes=2**20)) as server,
        secured(server, files) as first,
    ):
        first.sendall(LARGE_REVIEW)
        respond.wait()
        assert status_of(server, files, b"x" * 600_000) == 503
        respond.go_on.set()
        assert first.recv(15) == b"HTTP/1.1 200 OK"


def test_bodies_of_clients_that_have_gone_count_while_they_are_worked_on(files: Files) -> None:
    respond = HeldEcho()
    with (
        serving(respond, files, replace(PATIENT, held_bytes=2**20, large_workers=1)) as server,
        secured(server, files) as first,
    ):
        first.sendall(LARGE_REVIEW)
        respond.wait()
        first.close()  # it reads none of its answer
        assert eventually(lambda: not server.connections)
        assert status_of(server, files, b"x" * 600_000) == 503
        for _ in range(9):
            with secured(server, files) as gone:
                gone.sendall(request("/gone", body("a", 100_000)))
                assert eventually(lambda: held(server, 100_000) == 1)
            assert eventually(lambda: not held(server, 100_000))
        respond.go_on.set()

        assert eventually(lambda: not server.held)
        assert status_of(server, files, b"x" * 600_000) == 200

    assert "/gone" not in respond.paths


@pytest.mark.parametrize("heavy", [(HOST, "a"), ("127.0.0.2", "b")], ids=["namespace", "address"])
def test_bodies_of_whoever_holds_most_give_way_to_those_of_others(
    files: Files, heavy: tuple[str, str]
) -> None:
    respond = HeldEcho()
    address, namespace = heavy
    bounds = replace(PATIENT, held_bytes=2 * 2**20, large_workers=1)
    with serving(respond, files, bounds) as server, ExitStack() as opened:
        several = [opened.enter_context(secured(server, files, address)) for _ in range(3)]
        for number, client in enumerate(several):
            client.sendall(request("/heavy", body(namespace, 600_000)))
            assert eventually(lambda: held(server, 600_000) > number)  # noqa: B023
            respond.wait()
        other = opened.enter_context(secured(server, files))
        other.sendall(request("/other", body("b", 500_000)))

        assert several[1].recv(12) == b"HTTP/1.1 503"
        respond.go_on.set()
        answered = (several[0], several[2], other)
        assert [each.recv(12) for each in answered] == [b"HTTP/1.1 200"] * 3


def test_slow_bodies_of_many_addresses_give_way_to_whoever_waits_for_an_answer(
    files: Files,
) -> None:
    respond = HeldEcho()
    bounds = replace(PATIENT, held_bytes=2 * 2**20, large_workers=1)
    with serving(respond, files, bounds) as server, ExitStack() as opened:
        for number in range(8):
            slow = opened.enter_context(secured(server, files, f"127.0.0.{number + 2}"))
            slow.sendall(LARGE + b"x" * 200_000)
        assert eventually(lambda: held(server, 200_000) == 8)
        for each in server.held:
            each.awaited_since -= 1.1
        several = [opened.enter_context(secured(server, files)) for _ in range(3)]
        for number, client in enumerate(several):
            client.sendall(LARGE_REVIEW)
            assert eventually(lambda: held(server, 600_000) > number)  # noqa: B023
        respond.wait()
        respond.go_on.set()

        assert [each.recv(12) for each in several] == [b"HTTP/1.1 200"] * 3


def test_requests_that_wait_make_room_for_the_connections_of_others(files: Files) -> None:
    respond = HeldEcho()
    bounds = replace(PATIENT, connections=8, small_workers=1)
    with serving(respond, files, bounds) as server, ExitStack() as opened:
        for _ in range(16):
            client = opened.enter_context(secured(server, files, "127.0.0.2"))
            client.sendall(REVIEW)
            respond.wait()
        with ThreadPoolExecutor(1) as threads:
            status = threads.submit(status_of, server, files, b"x", "/other")
            assert eventually(lambda: bool(held(server, 1)))
            respond.go_on.set()

        assert status.result() == 200
        assert respond.paths.index("/other") <= 2


@pytest.mark.parametrize(
    ("address", "namespaces", "is_answered"),
    [(HOST, "abcd", False), (HOST, "aaab", True), ("127.0.0.2", "abcd", True)],
    ids=["the same address", "one namespace", "another address"],
)
def test_reviews_that_wait_do_not_give_way_to_the_next_connection_of_their_address(
    files: Files, address: str, namespaces: str, *, is_answered: bool
) -> None:
    respond = HeldEcho()
    bounds = replace(PATIENT, connections=8, small_workers=1)
    with serving(respond, files, bounds) as server, ExitStack() as opened:
        for number in range(8):
            client = opened.enter_context(secured(server, files))
            client.sendall(request("/", body(namespaces[number % 4])))
            assert eventually(lambda: len(server.held) > number)  # noqa: B023
        respond.wait()
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            last = opened.enter_context(secured(server, files, address))
            last.sendall(request("/last", body("z")))
            assert is_answered
        respond.go_on.set()
        assert eventually(lambda: len(respond.paths) == 8)

    assert ("/last" in respond.paths) is is_answered
    assert respond.paths.count("/") == (7 if is_answered else 8)


def test_connections_that_come_at_once_have_as_many_requests_make_room(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    respond, go_on = HeldEcho(), Event()
    bounds = replace(PATIENT, connections=8, small_workers=1)

    def context() -> ssl.SSLContext:
        go_on.wait(FOREVER)
        return Certificates(files.certificate, files.key).context()

    with serving(respond, files, bounds) as server, ExitStack() as opened:
        for _ in range(8):
            opened.enter_context(secured(server, files, "127.0.0.2")).sendall(REVIEW)
            respond.wait()
        assert eventually(lambda: len(server.held) == 8)
        monkeypatch.setattr(server, "context", context)
        for _ in range(40):
            opened.enter_context(socket.create_connection((HOST, server.port), PATIENCE_SECONDS))
        go_on.set()
        respond.go_on.set()

        assert status_of(server, files, b"x", "/other") == 200


def silence(server: ReviewServer) -> str:
    """Return the error of the server's check; "" if there is none."""
    try:
        server.check()
    except RetryableError as error:
        return str(error)
    return ""


def test_check_fails_while_the_servers_thread_does_not_go_on(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tensorfusion_dra.webhook.server._BEAT_SECONDS", 0.01)
    monkeypatch.setattr("tensorfusion_dra.webhook.server._SILENT_SECONDS", 0.2)
    go_on = Event()

    def context() -> ssl.SSLContext:
        go_on.wait(FOREVER)
        return Certificates(files.certificate, files.key).context()

    server = ReviewServer(echo, host=HOST, port=0, context=context)
    assert silence(server) == ""
    with ExitStack() as opened:
        opened.callback(server.stop, grace_seconds=0)
        opened.callback(go_on.set)
        opened.enter_context(ThreadPoolExecutor(1)).submit(server.run)
        assert eventually(lambda: server.alive_at < float("inf"))
        opened.enter_context(socket.create_connection((HOST, server.port), PATIENCE_SECONDS))

        assert eventually(lambda: silence(server).startswith("reviews: found none read for 0."))
        go_on.set()
        assert eventually(lambda: silence(server) == "")
        server.stop(grace_seconds=0)


def assert_answered(plain: socket.socket, files: Files) -> None:
    """Check that a connection whose handshake is still to come is answered."""
    with files.trusting().wrap_socket(plain, server_hostname=HOST) as honest:
        honest.sendall(REVIEW)
        assert honest.recv(15) == b"HTTP/1.1 200 OK"


def test_client_in_its_handshake_is_not_cut_for_others_that_were_refused(files: Files) -> None:
    """The API server and a client that connects as often as it can, behind one address."""
    with (
        serving(echo, files, replace(PATIENT, connections=16)) as server,
        ExitStack() as opened,
        closing(connection(server.port, files.trusting())) as kept,
    ):
        assert posted(kept, "/", b"")[0] == 200
        refused = [opened.enter_context(secured(server, files)) for _ in range(15)]
        for client in refused:
            client.sendall(REFUSED)
            assert client.recv(12) == b"HTTP/1.1 404"
        plain = opened.enter_context(socket.create_connection((HOST, server.port)))
        for _ in range(12):
            opened.enter_context(socket.create_connection((HOST, server.port)))
            for client in refused[13:]:
                client.sendall(REFUSED)

        assert_answered(plain, files)
        assert posted(kept, "/", b"")[0] == 200


def test_client_in_its_handshake_is_not_cut_for_others_whose_reviews_were_answered(
    files: Files,
) -> None:
    with serving(echo, files, replace(PATIENT, connections=16)) as server, ExitStack() as opened:
        for _ in range(16):
            client = opened.enter_context(secured(server, files))
            client.sendall(REVIEW)
            assert client.recv(12) == b"HTTP/1.1 200"
        plain = opened.enter_context(socket.create_connection((HOST, server.port)))
        for _ in range(6):
            opened.enter_context(socket.create_connection((HOST, server.port)))

        assert_answered(plain, files)


def test_connection_whose_review_is_worked_on_is_not_cut(files: Files) -> None:
    respond = HeldEcho()
    with (
        serving(respond, files, replace(PATIENT, connections=1)) as server,
        secured(server, files) as first,
    ):
        first.sendall(REVIEW)
        respond.wait()
        with socket.create_connection((HOST, server.port), timeout=PATIENCE_SECONDS) as plain:
            respond.go_on.set()
            assert first.recv(15) == b"HTTP/1.1 200 OK"
            assert_answered(plain, files)


def test_connections_that_have_ended_are_collected_before_there_are_many(files: Files) -> None:
    gc.collect()
    gc.disable()
    try:
        with (
            serving(echo, files, replace(PATIENT, connections=16)) as server,
            ExitStack() as opened,
        ):
            for _ in range(400):
                opened.enter_context(socket.create_connection((HOST, server.port)))
            assert status_of(server, files) == 200
            kept = sum(isinstance(each, sslproto.SSLProtocol) for each in gc.get_objects())
    finally:
        gc.enable()

    assert kept <= 150


def ok(_: Request) -> Response:
    return Response(status=HTTPStatus.OK, body=b"ok")


def presented(port: int, files: Files) -> bytes:
    """Return the certificate that a new connection receives."""
    with (
        socket.create_connection((HOST, port), timeout=PATIENCE_SECONDS) as plain,
        files.trusting().wrap_socket(plain, server_hostname=HOST) as secured,
    ):
        found = secured.getpeercert(binary_form=True)
        assert found is not None
        return found


def leaf(file: Path) -> bytes:
    """Return the first certificate of a PEM file, in DER."""
    text = file.read_text()
    end = "-----END CERTIFICATE-----"
    return ssl.PEM_cert_to_DER_cert(text[: text.index(end) + len(end)])


def test_renewed_certificate_is_for_new_connections_and_old_ones_go_on(files: Files) -> None:
    with serving(ok, files) as server, closing(connection(server.port, files.trusting())) as old:
        before = presented(server.port, files)
        posted(old, "/", b"")

        files.renew()

        assert presented(server.port, files) == leaf(files.certificate) != before
        assert posted(old, "/", b"") == (200, b"ok")


def test_certificate_without_its_new_key_is_not_used_yet(files: Files) -> None:
    issued = files.authority.issue_cert(HOST)
    with serving(ok, files) as server:
        before = presented(server.port, files)

        files.certificate.write_bytes(issued.cert_chain_pems[0].bytes())
        assert presented(server.port, files) == before

        files.key.write_bytes(issued.private_key_pem.bytes())
        assert presented(server.port, files) == leaf(files.certificate) != before


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_text("no PEM")])
def test_unreadable_files_keep_the_previous_certificate(
    files: Files, damage: Callable[[Path], object]
) -> None:
    with serving(ok, files) as server:
        before = presented(server.port, files)

        damage(files.certificate)

        assert presented(server.port, files) == before


def test_symlink_switch_of_a_secret_is_detected(files: Files, tmp_path: Path) -> None:
    for version in ("1", "2"):
        (folder := tmp_path / f"..version_{version}").mkdir()
        files.renew()
        files.certificate.rename(folder / "tls.crt")
        files.key.rename(folder / "tls.key")
    (tmp_path / "..data").symlink_to("..version_1")
    for path in (files.certificate, files.key):
        path.symlink_to(f"..data/{path.name}")

    with serving(ok, files) as server:
        before = presented(server.port, files)
        (tmp_path / "..data_tmp").symlink_to("..version_2")
        (tmp_path / "..data_tmp").replace(tmp_path / "..data")

        assert presented(server.port, files) == leaf(files.certificate) != before


ENCRYPTED = (
    "-----BEGIN ENCRYPTED PRIVATE KEY-----\n"
    "MIGjMF8GCSqGSIb3DQEFDTBSMDEGCSqGSIb3DQEFDDAkBBBkAAAAAAAAAAAAAAAA\n"
    "-----END ENCRYPTED PRIVATE KEY-----\n"
)


@pytest.mark.parametrize(
    ("file", "text", "error"),
    [
        ("certificate", None, r"tls\.crt: No such file or directory"),
        ("key", None, r"tls\.key: No such file or directory"),
        ("key", trustme.CA().issue_cert(HOST).private_key_pem.bytes(), "KEY_VALUES_MISMATCH"),
        ("key", ENCRYPTED.encode(), r"tls\.key: "),  # without a prompt for its password
        ("client_ca", None, r"clients\.crt: "),
        ("client_ca", b"", r"clients\.crt: "),
        ("client_ca", b"no certificate", r"clients\.crt: "),
    ],
)
def test_file_that_cannot_be_used_is_an_input_error(
    files: Files, tmp_path: Path, file: str, text: bytes | None, error: str
) -> None:
    files.client_ca = tmp_path / "clients.crt"
    files.authority.cert_pem.write_to_path(str(files.client_ca))
    path: Path = getattr(files, file)
    path.unlink()
    if text is not None:
        path.write_bytes(text)

    with pytest.raises(InputError, match=error):
        Certificates(files.certificate, files.key, files.client_ca)


def status(server: ReviewServer, files: Files, authority: trustme.CA | None) -> int:
    """Return the status for a client with a certificate of this authority; 0 if it is cut off."""
    context = files.trusting()
    if authority is not None:
        authority.issue_cert("api-server").configure_cert(context)
    with closing(connection(server.port, context)) as client:
        try:
            return posted(client, "/", b"")[0]
        except OSError:
            return 0


def test_only_clients_with_a_certificate_of_the_client_ca_are_served(
    files: Files, tmp_path: Path
) -> None:
    first, second = trustme.CA(), trustme.CA()
    files.client_ca = tmp_path / "clients.crt"
    first.cert_pem.write_to_path(str(files.client_ca))

    with serving(ok, files) as server:
        every = (first, second, files.authority, None)
        assert [status(server, files, each) for each in every] == [200, 0, 0, 0]
        second.cert_pem.write_to_path(str(files.client_ca))
        assert [status(server, files, each) for each in (first, second)] == [0, 200]


def renew(files: Files, not_after: datetime) -> None:
    """Replace certificate and key by new ones with this end."""
    issued = files.authority.issue_cert(
        "localhost", not_before=datetime(2000, 1, 1, tzinfo=UTC), not_after=not_after
    )
    issued.private_key_pem.write_to_path(str(files.key))
    files.certificate.write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))


@pytest.mark.parametrize(
    "not_after",
    [
        datetime(2001, 2, 28, 23, 59, 58, tzinfo=UTC),  # long ago
        datetime(2049, 12, 31, 23, 59, 59, tzinfo=UTC),  # the last UTCTime
        datetime(2050, 1, 1, tzinfo=UTC),  # the first GeneralizedTime
        datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC),  # no end (RFC 5280, 4.1.2.5)
    ],
)
@pytest.mark.parametrize("needs_client_certificate", [False, True])
def test_end_of_the_certificate_in_use_follows_the_files(
    files: Files, tmp_path: Path, not_after: datetime, needs_client_certificate: bool
) -> None:
    client_ca = tmp_path / "ca.crt"
    files.authority.cert_pem.write_to_path(str(client_ca))
    used = client_ca if needs_client_certificate else None
    certificates = Certificates(files.certificate, files.key, used)
    assert certificates.expires_at() not in (None, not_after)

    renew(files, not_after)

    assert certificates.expires_at() == not_after


@pytest.mark.process
def test_end_of_a_certificate_that_signed_itself(tmp_path: Path) -> None:
    files = [tmp_path / "tls.crt", tmp_path / "tls.key"]
    names = ("-subj", "/CN=webhook", "-days", "30", "-out", str(files[0]), "-keyout", str(files[1]))
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc")
    subprocess.run(["openssl", "req", "-x509", *key, *names], check=True, capture_output=True)

    shown = subprocess.check_output(["openssl", "x509", "-noout", "-enddate", "-in", files[0]])
    seconds = ssl.cert_time_to_seconds(shown.decode().strip().removeprefix("notAfter="))

    assert Certificates(*files).expires_at() == datetime.fromtimestamp(seconds, UTC)
