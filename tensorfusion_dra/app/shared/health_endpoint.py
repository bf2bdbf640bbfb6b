"""Answers probes over plain HTTP: whether this process works, and whether it may be called.

Anybody who reaches the port may connect, so the number of connections is bounded. A probe sends its
request at once and gets its answer whatever others do: if there are too many connections, the one
that has been waiting for its request longest is cut, not the newest. Besides, each has to send its
request within five seconds in all.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BufferedIOBase
from socket import (
    AF_INET,
    AF_INET6,
    IPPROTO_IPV6,
    IPV6_V6ONLY,
    SHUT_RDWR,
    has_dualstack_ipv6,
    socket,
)
from threading import Lock, Thread
from typing import Any, Final

import structlog

from tensorfusion_dra.core.errors import FatalError, RetryableError

log = structlog.get_logger()

_MOST_WAITING: Final = 32
"""Connections whose request is not here yet."""
_MOST_ANSWERED: Final = 16
"""Requests at a time; connections beyond are closed at once."""
_REQUEST_SECONDS: Final = 5.0
_MOST_REQUEST_BYTES: Final = 8192
_REMEMBERED_SECONDS: Final = 1.0
"""Nobody makes this process busy by asking often."""


class Check:
    """Asks a question at most once a second; may be asked from any thread."""

    def __init__(self, name: str, question: Callable[[], None]) -> None:
        """Asks nothing yet.

        Args:
            question: Returns if all is well, else raises RetryableError.
        """
        self._name: Final = name
        self._question: Final = question
        self._lock: Final = Lock()  # guards all below
        self._trouble: str | None = None
        self._asked = float("-inf")

    def trouble(self) -> str:
        """What is wrong; empty if nothing is."""
        with self._lock:
            if self._trouble is None or time.monotonic() - self._asked > _REMEMBERED_SECONDS:
                self._ask()
            return self._trouble or ""

    def _ask(self) -> None:
        before = self._trouble or ""
        try:
            self._question()
            self._trouble = ""
        except RetryableError as error:
            self._trouble = str(error)
        if self._trouble != before:
            log.info("health_changed", part=self._name, error=self._trouble or None)
        self._asked = time.monotonic()


class HealthEndpoint(ThreadingHTTPServer):
    """Serves each check under its path from start() to stop(): 200, or 503 with the trouble."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64
    address_family = AF_INET6 if has_dualstack_ipv6() else AF_INET

    def __init__(
        self, checks: Mapping[str, Callable[[], None]], *, host: str = "", port: int
    ) -> None:
        """Listens, but answers nobody yet.

        Args:
            checks: By path.
            host: The address to listen on; all of this machine's if empty.

        Raises:
            FatalError: The address cannot be had.
        """
        self.checks: Final = {
            path: Check(path.strip("/"), question) for path, question in checks.items()
        }
        self._guard: Final = Lock()  # guards both below
        self._waiting: Final[dict[socket, float]] = {}  # by connection, until when; oldest first
        self._answered: Final[set[socket]] = set()
        self._thread: Thread | None = None
        if host:
            self.address_family = AF_INET6 if ":" in host else AF_INET
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            raise FatalError(f"health-port {port}: {error.strerror or error}") from error

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self.server_address[1])

    def start(self) -> None:
        """Answers from now on."""
        self._thread = Thread(target=self.serve_forever, name="health-endpoint", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Answers nobody any more."""
        if self._thread is not None:
            self.shutdown()
            self._thread.join()
        self.server_close()

    def server_bind(self) -> None:
        """See socketserver; IPv4 and IPv6 with one socket."""
        if self.address_family == AF_INET6:
            self.socket.setsockopt(IPPROTO_IPV6, IPV6_V6ONLY, 0)
        # Not HTTPServer's, which asks the name service for this machine's name.
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    def process_request(self, request: Any, client_address: Any) -> None:
        """See socketserver; makes room for the connection, or closes it."""
        with self._guard:
            has_room = len(self._answered) < _MOST_ANSWERED
            if has_room:
                if len(self._waiting) >= _MOST_WAITING:
                    self._cut(next(iter(self._waiting)))
                self._waiting[request] = time.monotonic() + _REQUEST_SECONDS
        if has_room:
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """See socketserver."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._guard:
                self._waiting.pop(request, None)
                self._answered.discard(request)

    def service_actions(self) -> None:
        """See socketserver, which calls it several times a second: cuts what is overdue."""
        now = time.monotonic()
        with self._guard:
            for connection in [each for each, until in self._waiting.items() if until < now]:
                self._cut(connection)

    def request_is_here(self, connection: socket) -> None:
        """The connection is not cut any more: its request is answered now."""
        with self._guard:
            if self._waiting.pop(connection, None) is not None:
                self._answered.add(connection)

    def _cut(self, connection: socket) -> None:
        """Has the thread that reads from the connection come to an end."""
        del self._waiting[connection]
        with suppress(OSError):
            connection.shutdown(SHUT_RDWR)

    def handle_error(self, request: socket | tuple[bytes, socket], client_address: Any) -> None:
        """See socketserver; a client that goes away is nobody's error."""


class _Request:
    """The bytes of one request, which end where they are too many."""

    def __init__(self, source: BufferedIOBase) -> None:
        self._source: Final = source
        self._left = _MOST_REQUEST_BYTES

    def readline(self, limit: int) -> bytes:
        line = self._source.readline(min(limit, self._left))
        self._left -= len(line)
        return line

    def close(self) -> None:
        self._source.close()


class _Handler(BaseHTTPRequestHandler):
    server: HealthEndpoint
    timeout = _REQUEST_SECONDS
    server_version = "tensorfusion-dra"
    sys_version = ""

    def setup(self) -> None:
        """See socketserver."""
        super().setup()
        self.rfile = _Request(self.rfile)  # type: ignore[assignment]

    def do_GET(self) -> None:
        self.server.request_is_here(self.connection)
        check = self.server.checks.get(self.path.partition("?")[0])
        if check is None:
            self._answer(HTTPStatus.NOT_FOUND, f"expected one of {', '.join(self.server.checks)}")
            return
        trouble = check.trouble()
        status = HTTPStatus.SERVICE_UNAVAILABLE if trouble else HTTPStatus.OK
        self._answer(status, trouble or "ok")

    def _answer(self, status: HTTPStatus, text: str) -> None:
        content = f"{text}\n".encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        """Probes come all the time; what changes is logged by the check."""
