"""HTTP/1.1 server over TLS with bounded connections, each with its own thread and deadlines."""

import contextlib
import selectors
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from threading import Event, Semaphore, Thread
from typing import Any, Final

import structlog

from tensorfusion_dra.core.errors import InputError
from tensorfusion_dra.webhook.certificates import Certificates
from tensorfusion_dra.webhook.connections import Connections

log = structlog.get_logger()

MOST_BODY_BYTES: Final = 6 * 2**20
"""The API server accepts objects of 3 MiB in JSON (apiserver's server/config.go, by etcd's limit of
1.5 MiB in protobuf), and an update has the old object too."""
_LARGE_BODY_BYTES: Final = 32 * 2**10
_BACKLOG: Final = 1024
"""Connections that wait to be accepted. Linux drops a further one, and its client tries again after
a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Bounds on the server's resources that clients can occupy.

    A review of 6 MiB takes up to 65 MiB of memory, one of 32 KiB up to 3 MiB: mostly the lists and
    strings that are parsed, and the copy that is changed.

    Attributes:
        connections: Largest number of open connections.
        large_bodies: Number of large bodies processed at a time; further ones wait.
        small_bodies: Number of other bodies processed at a time.
        handshake_seconds: Time for the TLS handshake.
        request_seconds: Time for a complete request to arrive, and again for its answer.
        idle_seconds: Time between requests. It is longer than the 90 s for which the API server
            keeps an unused connection.
        look_seconds: Interval at which the deadlines are checked.
    """

    connections: int = 256
    large_bodies: int = 1
    small_bodies: int = 16
    handshake_seconds: float = 5.0
    request_seconds: float = 10.0
    idle_seconds: float = 120.0
    look_seconds: float = 1.0


USUAL: Final = Bounds()


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One HTTP request.

    Attributes:
        target: Path and query.
    """

    method: str
    target: str
    content_type: str
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """The answer to a request."""

    status: HTTPStatus
    body: bytes
    content_type: str = "text/plain; charset=utf-8"


Respond = Callable[[Request], Response]


class Server:
    """HTTPS server that listens from its construction and answers while run() runs.

    Attributes:
        bounds: The bounds on its connections.
        port: The port it listens on.
        respond: Called from many threads at a time.
        is_leaving: Set before the server stops. Answers then carry "Connection: close", so that
            clients connect to another server.
    """

    def __init__(
        self,
        respond: Respond,
        certificates: Certificates,
        *,
        host: str,
        port: int,
        bounds: Bounds = USUAL,
        on_error: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Listen on the address; requests are answered by run().

        Args:
            host: The address to listen on; empty for all addresses of this machine.
            port: 0 for any free port.
            on_error: Called with the HTTP status of each answer that is an error.

        Raises:
            InputError: The address cannot be bound.
        """
        self.respond: Final = respond
        self.on_error: Final = on_error
        self.is_leaving: Final = Event()
        self.bounds: Final = bounds
        self.connections: Final = Connections(most=bounds.connections)
        self.large_bodies: Final = Semaphore(bounds.large_bodies)
        self.small_bodies: Final = Semaphore(bounds.small_bodies)
        self._certificates: Final = certificates
        self._stopping: Final = Event()
        try:
            self._listener: Final = _listener(host, port)
            self._listener.settimeout(0)  # a client may disconnect between select and accept
        except OSError as error:
            raise InputError(f"port {port}: {error.strerror or error}") from error
        self.port: Final = int(self._listener.getsockname()[1])

    def run(self) -> None:
        """Serve until stopped."""
        with selectors.DefaultSelector() as ready:
            ready.register(self._listener, selectors.EVENT_READ)
            while not self._stopping.is_set():
                self.connections.cut_overdue()
                look_seconds = self.bounds.look_seconds
                if ready.select(look_seconds) and self.connections.has_room(
                    wait_seconds=look_seconds
                ):
                    self._accept()
        self._listener.close()

    def stop(self, *, grace_seconds: float) -> None:
        """Accept no new connections; return once every request is answered or cut."""
        self.is_leaving.set()
        self._stopping.set()
        with contextlib.suppress(OSError):  # if it was stopped before
            self._listener.shutdown(socket.SHUT_RDWR)
        self.connections.end(seconds=grace_seconds)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError as error:  # for example, no file descriptors left
            if not self._stopping.is_set():
                log.warning("accept_failed", error=str(error))
                self._stopping.wait(0.1)
            return
        self.connections.add(connection, seconds=self.bounds.handshake_seconds)
        Thread(target=self._serve, args=(connection,), name="connection", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # The handshake comes after wrapped(), so that the connection can be cut during it.
            secured = self._certificates.context().wrap_socket(
                connection, server_side=True, do_handshake_on_connect=False
            )
            self.connections.wrapped(connection, secured)
            connection = secured
            secured.do_handshake()
            _Handler(secured, ("", 0), self)  # type: ignore[arg-type] # uses nothing of HTTPServer
        except ssl.SSLEOFError:
            log.debug("connection_ended")  # before the handshake, as some probes do
        except ssl.SSLError as error:
            # For example, a client that does not trust the certificate; both sides should log it.
            log.warning("tls_handshake_failed", error=str(error))
        except OSError:
            log.debug("connection_ended")
        finally:
            self.connections.remove(connection)
            with contextlib.suppress(OSError):
                connection.close()


class _Handler(BaseHTTPRequestHandler):
    server: Server  # type: ignore[assignment]
    protocol_version = "HTTP/1.1"

    def handle(self) -> None:
        self._set_idle()  # a client may open a connection and never use it
        super().handle()

    def parse_request(self) -> bool:
        """Parse the headers within request_seconds, now that the request line has arrived."""
        self.server.connections.allow(self.connection, seconds=self.server.bounds.request_seconds)
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
        self.server.connections.use(self.connection, seconds=self.server.bounds.request_seconds)
        request = Request(
            method=self.command,
            target=self.path,
            content_type=self.headers.get("Content-Type", ""),
            body=body,
        )
        try:
            response = self.server.respond(request)
        except Exception as error:
            # One object that the rules cannot cope with must not end the connection or the server.
            log.error("request_failed", error=repr(error), exc_info=True)
            text = f"{type(error).__name__}, see the log of the webhook\n"
            response = Response(status=HTTPStatus.INTERNAL_SERVER_ERROR, body=text.encode())
        self._answer(response)

    do_GET = do_PUT = do_DELETE = do_PATCH = do_HEAD = do_POST  # noqa: N815

    def _length(self) -> int | None:
        """Return the length of the body; None if the request was answered with an error."""
        length = self.headers.get("Content-Length", "0")
        if "Transfer-Encoding" in self.headers or not (length.isascii() and length.isdigit()):
            self._refuse(HTTPStatus.LENGTH_REQUIRED, "expected a Content-Length")
            return None
        if len(length) > 18 or int(length) > MOST_BODY_BYTES:
            text = f"expected at most {MOST_BODY_BYTES} bytes"
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, text)
            return None
        return int(length)

    def _refuse(self, status: HTTPStatus, text: str) -> None:
        """Answer with an error and close the connection: the next request's start is unknown."""
        self.close_connection = True
        self._answer(Response(status=status, body=f"{text}\n".encode()))

    def _answer(self, response: Response) -> None:
        if response.status >= HTTPStatus.BAD_REQUEST:
            self.server.on_error(response.status.value)
        self.close_connection |= self.server.is_leaving.is_set()
        headers = {
            "Content-Type": response.content_type,
            "Content-Length": str(len(response.body)),
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
        seconds = self.server.bounds.idle_seconds
        self.server.connections.allow(self.connection, seconds=seconds, is_idle=True)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base's name
        """Log nothing here; Reviews logs each review."""


def _listener(host: str, port: int) -> socket.socket:
    if host or not socket.has_dualstack_ipv6():
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    address = ("", port)
    return socket.create_server(
        address, family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=True
    )
