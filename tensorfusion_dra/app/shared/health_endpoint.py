"""HTTP endpoint for liveness and readiness probes, and for pages such as the metrics.

Any client that reaches the port may connect, so the number of connections is bounded. A connection
is waiting until its request has arrived, and answered afterwards. The kubelet's probe sends its
request at once, so it gets an answer even while other clients hold connections open: if too many
connections wait, the one that has waited longest is closed, not the newest. A request that takes
longer than five seconds to arrive is cut off as well.

Pages are larger than the answers to probes, and their readers may be slow. So fewer pages than
connections are answered at a time (pages.py), and probes find room beside them.
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
    SO_REUSEADDR,
    SOL_SOCKET,
    has_dualstack_ipv6,
    socket,
)
from threading import Lock, Thread
from typing import Any, Final

import structlog

from tensorfusion_dra.app.shared.pages import (
    Page,
    PageAnswer,
    PageRequest,
    Pages,
    is_loopback,
    text_answer,
)
from tensorfusion_dra.core.errors import FatalError, RetryableError

log = structlog.get_logger()

_MOST_WAITING: Final = 32
"""Connections whose request has not arrived yet."""
_MOST_ANSWERED: Final = 16
"""Requests that are answered at a time; connections beyond this limit are closed at once."""
_REQUEST_SECONDS: Final = 5.0
_MOST_REQUEST_BYTES: Final = 8192
_REMEMBERED_SECONDS: Final = 1.0
"""Time for which a result is reused, so that frequent probes cost no work."""


class Check:
    """Check that runs at most once a second and reuses its result; safe for all threads."""

    def __init__(self, name: str, question: Callable[[], None]) -> None:
        """Store the question; it is not called yet.

        Args:
            question: Returns if all is well, else raises RetryableError.
        """
        self._name: Final = name
        self._question: Final = question
        self._lock: Final = Lock()  # guards all below
        self._trouble: str | None = None
        self._last_run = float("-inf")

    def trouble(self) -> str:
        """Return the text of the error; empty if all is well."""
        with self._lock:
            if self._trouble is None or time.monotonic() - self._last_run > _REMEMBERED_SECONDS:
                self._run()
            return self._trouble or ""

    def _run(self) -> None:
        before = self._trouble or ""
        try:
            self._question()
            self._trouble = ""
        except RetryableError as error:
            self._trouble = str(error)
        if self._trouble != before:
            log.info("health_changed", part=self._name, error=self._trouble or None)
        self._last_run = time.monotonic()


class HealthEndpoint(ThreadingHTTPServer):
    """HTTP server that answers each check's path with 200, or with 503 and the error text.

    Other paths may have pages, which answer for themselves.
    """

    daemon_threads = True
    # Linux drops connections beyond this; their clients, such as probes, try again after a second.
    request_queue_size = 1024
    address_family = AF_INET6 if has_dualstack_ipv6() else AF_INET

    def __init__(
        self,
        checks: Mapping[str, Callable[[], None]],
        pages: Mapping[str, Page] | None = None,
        *,
        host: str = "",
        port: int,
        setting: str = "health-port",
    ) -> None:
        """Listen on the port; requests are answered only after start().

        Args:
            checks: By path.
            pages: By path.
            host: The address to listen on; all addresses if empty.
            port: 0 for any.
            setting: Name of the port's setting, for the error.

        Raises:
            FatalError: The address cannot be bound.
        """
        self.checks: Final = {
            path: Check(path.strip("/"), question) for path, question in checks.items()
        }
        self.pages: Final = Pages(pages or {})
        self._guard: Final = Lock()  # guards both below
        self._waiting: Final[dict[socket, float]] = {}  # deadline by connection; oldest first
        self._answered: Final[set[socket]] = set()
        self._thread: Thread | None = None
        if host:
            self.address_family = AF_INET6 if ":" in host else AF_INET
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            raise FatalError(f"{setting} {port}: {error.strerror or error}") from error

    @property
    def port(self) -> int:
        """Return the port that the server listens on."""
        return int(self.server_address[1])

    def start(self) -> None:
        """Answer requests in a thread of its own."""
        self._thread = Thread(target=self.serve_forever, name="health-endpoint", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop answering and close the socket."""
        if self._thread is not None:
            self.shutdown()
            self._thread.join()
        self.server_close()

    def server_bind(self) -> None:
        """Bind one socket for IPv4 and IPv6."""
        if self.address_family == AF_INET6:
            self.socket.setsockopt(IPPROTO_IPV6, IPV6_V6ONLY, 0)
        # Else a process that is restarted could not bind for a minute after the last probe.
        self.socket.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
        # HTTPServer.server_bind() would query the name service for this machine's name.
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Make room for a new connection, or close it."""
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
        """Handle one connection, and forget it when it ends."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._guard:
                self._waiting.pop(request, None)
                self._answered.discard(request)

    def service_actions(self) -> None:
        """Cut connections whose request is overdue; called at least twice a second."""
        now = time.monotonic()
        with self._guard:
            for connection in [each for each, until in self._waiting.items() if until < now]:
                self._cut(connection)

    def request_arrived(self, connection: socket) -> None:
        """Mark a connection as answered, so that it is no longer cut."""
        with self._guard:
            if self._waiting.pop(connection, None) is not None:
                self._answered.add(connection)

    def _cut(self, connection: socket) -> None:
        """Shut a waiting connection down, which ends the thread that reads from it."""
        del self._waiting[connection]
        with suppress(OSError):
            connection.shutdown(SHUT_RDWR)

    def handle_error(self, request: socket | tuple[bytes, socket], client_address: Any) -> None:
        """Ignore errors of one connection: a client that goes away is normal."""


class _Request:
    """Reader of one request that reports the end after _MOST_REQUEST_BYTES."""

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
        """Limit the bytes that are read from the connection."""
        super().setup()
        self.rfile = _Request(self.rfile)  # type: ignore[assignment]

    def do_GET(self) -> None:
        self.server.request_arrived(self.connection)
        path, _, query = self.path.partition("?")
        check = self.server.checks.get(path)
        if check is not None:
            trouble = check.trouble()
            status = HTTPStatus.SERVICE_UNAVAILABLE if trouble else HTTPStatus.OK
            self._send(text_answer(status, trouble or "ok"))
        elif path in self.server.pages.paths:
            self.server.pages.answer(self._page_request(path, query), self._send)
        else:
            paths = ", ".join((*self.server.checks, *self.server.pages.paths))
            self._send(text_answer(HTTPStatus.NOT_FOUND, f"expected one of {paths}"))

    do_HEAD = do_GET  # noqa: N815 - the base's name

    def _page_request(self, path: str, query: str) -> PageRequest:
        return PageRequest(
            path=path,
            query=query,
            accept=", ".join(self.headers.get_all("Accept", [])),
            host=self.headers.get("Host", ""),
            from_loopback=is_loopback(self.client_address[0]),
        )

    def _send(self, answer: PageAnswer) -> None:
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        """Log nothing for a request: probes are frequent, and Check logs each change."""
