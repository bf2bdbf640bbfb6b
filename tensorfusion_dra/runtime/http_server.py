"""HTTP/1.1 server, with TLS or without, for clients that may be slow, silent or many.

Each connection has a thread and a deadline for its next step; one that is late is cut:

    accepted ──> TLS handshake ──> idle ──> request arrives ──> answered ──> idle ──> ...

If there are too many connections, one is cut for each new one: first the oldest of those that have
never sent a whole request, then the one that has been idle longest. So clients that connect and
send nothing make room for each other, and a probe, which sends its request at once, is answered
beside them.
"""

import contextlib
import selectors
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from io import BufferedIOBase
from threading import Condition, Event, Semaphore, Thread
from typing import Any, Final

import structlog

from tensorfusion_dra.core.errors import InputError

log = structlog.get_logger()

_LARGE_BODY_BYTES: Final = 32 * 2**10
_BACKLOG: Final = 1024
"""Connections that wait to be accepted. Linux drops a further one, and its client tries again after
a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Bounds on the server's resources that clients can occupy; by default those of the webhook.

    A review of 6 MiB takes up to 65 MiB of memory, one of 32 KiB up to 3 MiB: mostly the lists and
    strings that are parsed, and the copy that is changed.

    Attributes:
        connections: Largest number of open connections.
        head_bytes: Largest size of a request without its body.
        body_bytes: Largest size of a body. The API server accepts objects of 3 MiB in JSON
            (apiserver's server/config.go, by etcd's limit of 1.5 MiB in protobuf), and the review
            of an update has the old object too.
        large_bodies: Number of large bodies processed at a time; further ones wait.
        small_bodies: Number of other requests processed at a time.
        handshake_seconds: Time for the TLS handshake.
        request_seconds: Time for a complete request to arrive, and again for its answer.
        idle_seconds: Time between requests. It is longer than the 90 s for which the API server
            keeps an unused connection.
        check_seconds: Interval at which the deadlines are checked.
    """

    connections: int = 256
    head_bytes: int = 128 * 2**10
    body_bytes: int = 6 * 2**20
    large_bodies: int = 1
    small_bodies: int = 16
    handshake_seconds: float = 5.0
    request_seconds: float = 10.0
    idle_seconds: float = 120.0
    check_seconds: float = 1.0


USUAL: Final = Bounds()


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One HTTP request; a header that is missing is "".

    Attributes:
        path: The target without its query.
        query: What follows the question mark; "" if there is none.
        host: The Host header. A page for loopback only has to compare it with loopback's names: a
            browser on this machine can be made to ask for any host.
        from_loopback: True if the client's address is one of this machine's loopback.
    """

    path: str
    method: str = "GET"
    query: str = ""
    content_type: str = ""
    accept: str = ""
    host: str = ""
    from_loopback: bool = False
    body: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """The answer to a request.

    Attributes:
        content_type: With its charset.
        headers: Headers besides those of content type and length.
        on_sent: Called once it was sent, or could not be.
    """

    body: bytes
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = "text/plain; charset=utf-8"
    headers: Mapping[str, str] = field(default_factory=dict)
    on_sent: Callable[[], None] = lambda: None


Respond = Callable[[Request], Response]
"""Answers requests, from any thread. If it raises, the answer is 500."""


def text_response(status: HTTPStatus, text: str) -> Response:
    """Return an answer of one line of text."""
    return Response(status=status, body=f"{text}\n".encode(errors="replace"))


def is_loopback(address: str) -> bool:
    """Return True for an address of loopback, as the kernel writes it for a connected socket."""
    # On a socket for both families an IPv4 client is written as an IPv6 address.
    return address == "::1" or address.removeprefix("::ffff:").startswith("127.")


@dataclass(eq=False, slots=True)
class _Connection:
    """One open connection.

    Attributes:
        deadline: On the monotonic clock. The connection is cut after it.
        is_idle: True if no byte of a request has arrived since the last answer.
        is_used: True if a whole request has arrived at any time.
    """

    socket: socket.socket
    address: str
    deadline: float
    is_idle: bool = False
    is_used: bool = False

    def cut(self) -> None:
        """Shut the connection down; a thread that reads or writes gets an error."""
        # Not the TLS socket's own shutdown, which discards state that the reading thread still
        # uses.
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self.socket, socket.SHUT_RDWR)


class Server:
    """HTTP server that listens from its construction and answers while run() runs.

    Attributes:
        port: The port it listens on.
        is_leaving: Set before the server stops. Answers then carry "Connection: close", so that
            clients connect to another server.
    """

    def __init__(
        self,
        respond: Respond,
        *,
        host: str,
        port: int,
        context: Callable[[], ssl.SSLContext] | None = None,
        bounds: Bounds = USUAL,
        on_error: Callable[[int], None] = lambda _: None,
        setting: str = "port",
    ) -> None:
        """Listen on the address; requests are answered by run().

        Args:
            host: The address to listen on; empty for all addresses of this machine.
            port: 0 for any free port.
            context: Returns the TLS context for a new connection; None serves without TLS.
            on_error: Called with the HTTP status of each answer that is an error.
            setting: Name of the port's setting, for the error.

        Raises:
            InputError: The address cannot be bound.
        """
        self.respond: Final = respond
        self.on_error: Final = on_error
        self.is_leaving: Final = Event()
        self.bounds: Final = bounds
        self.large_bodies: Final = Semaphore(bounds.large_bodies)
        self.small_bodies: Final = Semaphore(bounds.small_bodies)
        self._context: Final = context
        self._stopping: Final = Event()
        self._changed: Final = Condition()  # guards _open and the states in it
        self._open: Final[dict[_Connection, None]] = {}  # oldest first
        try:
            self._listener: Final = _listener(host, port)
            self._listener.settimeout(0)  # a client may disconnect between select and accept
        except OSError as error:
            text = (error.strerror or str(error)).partition(" (while")[0]  # names the address again
            raise InputError(f"{setting} {port}: {text}") from error
        self.port: Final = int(self._listener.getsockname()[1])

    def run(self) -> None:
        """Serve until stopped."""
        with selectors.DefaultSelector() as ready:
            if not self._stopping.is_set():
                ready.register(self._listener, selectors.EVENT_READ)
            while not self._stopping.is_set():
                now = time.monotonic()
                with self._changed:
                    for overdue in (each for each in self._open if each.deadline < now):
                        overdue.cut()
                if ready.select(self.bounds.check_seconds) and self._has_room():
                    self._accept()

    def stop(self, *, grace_seconds: float) -> None:
        """Accept no new connections; return once every request is answered or cut."""
        self.is_leaving.set()
        self._stopping.set()
        with contextlib.suppress(OSError):  # if it was stopped before
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._changed:
            for connection in self._open:
                if connection.is_idle:
                    connection.cut()
            if not self._changed.wait_for(lambda: not self._open, grace_seconds):
                for connection in self._open:
                    connection.cut()
                self._changed.wait_for(lambda: not self._open, 1)

    def allow(self, connection: _Connection, *, seconds: float, is_idle: bool = False) -> None:
        """Set a connection's new deadline and whether it is idle.

        An idle connection is cut at once if the server is stopping.
        """
        with self._changed:
            connection.deadline, connection.is_idle = time.monotonic() + seconds, is_idle
            if is_idle and self._stopping.is_set():
                connection.cut()

    def _has_room(self) -> bool:
        """Return True if one more connection may be added, after cutting one if necessary."""
        with self._changed:
            if len(self._open) < self.bounds.connections:
                return True
            unused = next((each for each in self._open if not each.is_used), None)
            idle = [each for each in self._open if each.is_idle]
            if unused is not None:
                unused.cut()
            elif idle:
                min(idle, key=lambda each: each.deadline).cut()
            return self._changed.wait_for(
                lambda: len(self._open) < self.bounds.connections, self.bounds.check_seconds
            )

    def _accept(self) -> None:
        try:
            accepted, address = self._listener.accept()
        except BlockingIOError:
            return
        except OSError as error:  # for example, no file descriptors left
            if not self._stopping.is_set():
                log.warning("accept_failed", error=str(error))
                self._stopping.wait(0.1)
            return
        deadline = time.monotonic() + self.bounds.handshake_seconds
        connection = _Connection(accepted, address[0], deadline)
        with self._changed:
            self._open[connection] = None
        Thread(target=self._serve, args=(connection,), name="connection", daemon=True).start()

    def _serve(self, connection: _Connection) -> None:
        try:
            connection.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._context is not None:
                secured = self._context().wrap_socket(
                    connection.socket, server_side=True, do_handshake_on_connect=False
                )
                with self._changed:
                    connection.socket = secured  # before the handshake, which may have to be cut
                secured.do_handshake()
            _Handler(connection, self)
        except ssl.SSLEOFError:
            log.debug("connection_ended")  # before the handshake, as some probes do
        except ssl.SSLError as error:
            # For example, a client that does not trust the certificate; both sides should log it.
            log.warning("tls_handshake_failed", error=str(error))
        except OSError:
            log.debug("connection_ended")
        finally:
            with self._changed:
                del self._open[connection]
                self._changed.notify_all()
            with contextlib.suppress(OSError):
                connection.socket.close()


class _Requests:
    """Reader of requests that raises an error if the head of one is too large."""

    def __init__(self, source: BufferedIOBase, most: int) -> None:
        self.read: Final = source.read
        self.close: Final = source.close
        self._readline: Final = source.readline
        self._most: Final = most
        self.begin()

    def begin(self) -> None:
        """Count from the beginning, for the next request."""
        self._left = self._most

    def readline(self, limit: int) -> bytes:
        line = self._readline(min(limit, self._left))
        self._left -= len(line)
        if self._left <= 0:
            raise OSError("the head of a request is too large")
        return line


class _Handler(BaseHTTPRequestHandler):
    server: Server  # type: ignore[assignment]
    protocol_version = "HTTP/1.1"

    def __init__(self, connection: _Connection, server: Server) -> None:
        self._held = connection
        super().__init__(connection.socket, (connection.address, 0), server)  # type: ignore[arg-type]

    def setup(self) -> None:
        """Bound the bytes of each request's head."""
        super().setup()
        self._requests = _Requests(self.rfile, self.server.bounds.head_bytes)
        self.rfile = self._requests  # type: ignore[assignment]

    def handle(self) -> None:
        self._set_idle()  # a client may open a connection and never use it
        super().handle()

    def parse_request(self) -> bool:
        """Parse the headers within request_seconds, now that the request line has arrived."""
        self.server.allow(self._held, seconds=self.server.bounds.request_seconds)
        return super().parse_request()

    def do_POST(self) -> None:
        length = self._length()
        if length is None:
            return
        if length > _LARGE_BODY_BYTES:
            with self.server.large_bodies:
                self._respond(self.rfile.read(length), length)
        else:
            # A slow client must not keep others waiting, so the body is read before.
            body = self.rfile.read(length)
            with self.server.small_bodies:
                self._respond(body, length)

    def _respond(self, body: bytes, length: int) -> None:
        if len(body) < length:
            return
        self._held.is_used = True
        self.server.allow(self._held, seconds=self.server.bounds.request_seconds)
        path, _, query = self.path.partition("?")
        request = Request(
            path=path,
            method=self.command,
            query=query,
            content_type=self.headers.get("Content-Type", ""),
            accept=", ".join(self.headers.get_all("Accept", [])),
            host=self.headers.get("Host", ""),
            from_loopback=is_loopback(self._held.address),
            body=body,
        )
        try:
            response = self.server.respond(request)
        except Exception as error:
            # One request that the rules cannot cope with must not end the connection or the server.
            log.error("request_failed", error=repr(error), exc_info=True)
            text = f"{type(error).__name__}, see the log"
            response = text_response(HTTPStatus.INTERNAL_SERVER_ERROR, text)
        try:
            self._answer(response)
        finally:
            response.on_sent()

    do_GET = do_PUT = do_DELETE = do_PATCH = do_HEAD = do_POST  # noqa: N815

    def _length(self) -> int | None:
        """Return the length of the body; None if the request was answered with an error."""
        length = self.headers.get("Content-Length", "0")
        if "Transfer-Encoding" in self.headers or not (length.isascii() and length.isdigit()):
            self._refuse(HTTPStatus.LENGTH_REQUIRED, "expected a Content-Length")
            return None
        most = self.server.bounds.body_bytes
        if len(length) > 18 or int(length) > most:
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"expected at most {most} bytes")
            return None
        return int(length)

    def _refuse(self, status: HTTPStatus, text: str) -> None:
        """Answer with an error and close the connection: the next request's start is unknown."""
        self.close_connection = True
        self._answer(text_response(status, text))

    def _answer(self, response: Response) -> None:
        if response.status >= HTTPStatus.BAD_REQUEST:
            self.server.on_error(response.status.value)
        self.close_connection |= self.server.is_leaving.is_set()
        headers = {
            "Content-Type": response.content_type,
            "Content-Length": str(len(response.body)),
            **response.headers,
            **({"Connection": "close"} if self.close_connection else {}),
        }
        lines = [f"HTTP/1.1 {response.status.value} {response.status.phrase}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        body = b"" if self.command == "HEAD" else response.body
        # One write, so that no delayed ACK separates headers and body.
        self.wfile.write("\r\n".join((*lines, "", "")).encode() + body)
        self._set_idle()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer a request that http.server cannot parse, in the form of this server's errors."""
        del explain
        self.command = getattr(self, "command", None) or "GET"
        self._refuse(HTTPStatus(code), message or HTTPStatus(code).phrase)

    def _set_idle(self) -> None:
        self._requests.begin()
        self.server.allow(self._held, seconds=self.server.bounds.idle_seconds, is_idle=True)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base's name
        """Log nothing here; probes are frequent, and each review is logged by its rule."""


def _listener(host: str, port: int) -> socket.socket:
    if host or not socket.has_dualstack_ipv6():
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    address = ("", port)
    return socket.create_server(
        address, family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=True
    )
