"""HTTP/1.1 over TLS with a bounded number of connections, each with a thread and deadlines."""

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
"""An object is at most 3 MiB, and an update brings the old one as well."""
_LARGE_BODY_BYTES: Final = 256 * 2**10


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How much of the server its clients can hold.

    Attributes:
        connections: At a time.
        large_bodies: At a time; others wait, as a large one takes a multiple of its size in memory.
        handshake_seconds: For a connection to become a secure one.
        request_seconds: For a request to come in whole, and again for its answer.
        idle_seconds: Between requests; longer than the API server keeps a connection that it does
            not use, which is 90 s.
        look_seconds: How often these times are looked after.
    """

    connections: int = 256
    large_bodies: int = 2
    handshake_seconds: float = 5.0
    request_seconds: float = 10.0
    idle_seconds: float = 120.0
    look_seconds: float = 1.0


USUAL: Final = Bounds()


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What came.

    Attributes:
        target: Path and query.
    """

    method: str
    target: str
    content_type: str
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """What is answered."""

    status: HTTPStatus
    body: bytes
    content_type: str = "text/plain; charset=utf-8"


Respond = Callable[[Request], Response]


class Server:
    """Listens from its construction, answers while run() runs.

    Attributes:
        bounds: Of its connections.
        port: The port it listens on.
        respond: Called from many threads at a time.
        is_leaving: Set when clients are to look for another server; answers say so then.
    """

    def __init__(
        self,
        respond: Respond,
        certificates: Certificates,
        *,
        host: str,
        port: int,
        bounds: Bounds = USUAL,
    ) -> None:
        """Answers nobody yet.

        Args:
            host: The address to listen on; all of this machine's if empty.
            port: 0 for any free one.

        Raises:
            InputError: The address cannot be had.
        """
        self.respond: Final = respond
        self.is_leaving: Final = Event()
        self.bounds: Final = bounds
        self.connections: Final = Connections(most=bounds.connections)
        self.large_bodies: Final = Semaphore(bounds.large_bodies)
        self._certificates: Final = certificates
        self._stopping: Final = Event()
        try:
            self._listener: Final = _listener(host, port)
            self._listener.settimeout(0)  # a client may be gone between select and accept
        except OSError as error:
            raise InputError(f"port {port}: {error.strerror or error}") from error
        self.port: Final = int(self._listener.getsockname()[1])

    def run(self) -> None:
        """Serves until stopped."""
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
        """Accepts nobody any more; returns once every request that came is answered, or cut."""
        self.is_leaving.set()
        self._stopping.set()
        with contextlib.suppress(OSError):  # it was stopped before
            self._listener.shutdown(socket.SHUT_RDWR)
        self.connections.end(seconds=grace_seconds)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError as error:  # such as no descriptors left
            if not self._stopping.is_set():
                log.warning("connection_lost", error=str(error))
                self._stopping.wait(0.1)
            return
        self.connections.add(connection, seconds=self.bounds.handshake_seconds)
        Thread(target=self._serve, args=(connection,), name="connection", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # The handshake comes later, when the connection can be cut by its new socket.
            secured = self._certificates.context().wrap_socket(
                connection, server_side=True, do_handshake_on_connect=False
            )
            self.connections.wrapped(connection, secured)
            connection = secured
            secured.do_handshake()
            _Handler(secured, ("", 0), self)  # type: ignore[arg-type] # it looks at none of a server's
        except ssl.SSLEOFError:
            log.debug("connection_ended")  # before the handshake, as some probes do
        except ssl.SSLError as error:
            # Such as a client that does not trust the certificate: worth a line, to both sides.
            log.warning("handshake_refused", error=str(error))
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
        self._rest()  # clients open connections that they may never use
        super().handle()

    def parse_request(self) -> bool:
        """The request line is there: the rest has to come soon."""
        self.server.connections.allow(self.connection, seconds=self.server.bounds.request_seconds)
        return super().parse_request()

    def do_POST(self) -> None:
        length = self._length()
        if length is None:
            return
        is_large = length > _LARGE_BODY_BYTES
        with self.server.large_bodies if is_large else contextlib.nullcontext():
            body = self.rfile.read(length)
            if len(body) == length:
                self._respond(body)

    def _respond(self, body: bytes) -> None:
        self.server.connections.allow(self.connection, seconds=self.server.bounds.request_seconds)
        request = Request(
            method=self.command,
            target=self.path,
            content_type=self.headers.get("Content-Type", ""),
            body=body,
        )
        try:
            response = self.server.respond(request)
        except Exception as error:
            # One odd object is no reason to answer nobody any more.
            log.error("request_failed", error=repr(error), exc_info=True)
            text = f"{type(error).__name__}, see the log of the webhook\n"
            response = Response(status=HTTPStatus.INTERNAL_SERVER_ERROR, body=text.encode())
        self._answer(response)

    do_GET = do_PUT = do_DELETE = do_PATCH = do_HEAD = do_POST  # noqa: N815

    def _length(self) -> int | None:
        """The length of the request's body; None if the request was answered without it."""
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
        """Answers and ends the connection, for nobody knows where the next request begins."""
        self.close_connection = True
        self._answer(Response(status=status, body=f"{text}\n".encode()))

    def _answer(self, response: Response) -> None:
        self.close_connection |= self.server.is_leaving.is_set()
        headers = {
            "Content-Type": response.content_type,
            "Content-Length": str(len(response.body)),
            **({"Connection": "close"} if self.close_connection else {}),
        }
        lines = [f"HTTP/1.1 {response.status.value} {response.status.phrase}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        body = b"" if self.command == "HEAD" else response.body
        # In one piece, so that no delayed ACK comes in between.
        self.wfile.write("\r\n".join((*lines, "", "")).encode() + body)
        self._rest()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What http.server cannot read, answered in our form."""
        del explain
        self.command = getattr(self, "command", None) or "GET"
        self._refuse(HTTPStatus(code), message or HTTPStatus(code).phrase)

    def _rest(self) -> None:
        seconds = self.server.bounds.idle_seconds
        self.server.connections.allow(self.connection, seconds=seconds, is_idle=True)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base's name
        """Each review is logged by who answers it."""


def _listener(host: str, port: int) -> socket.socket:
    if host or not socket.has_dualstack_ipv6():
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=128)
    address = ("", port)
    return socket.create_server(address, family=socket.AF_INET6, backlog=128, dualstack_ipv6=True)
