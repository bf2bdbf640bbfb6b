"""Answers probes over plain HTTP: whether this process works, and whether it may be called."""

import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import AF_INET, AF_INET6, IPPROTO_IPV6, IPV6_V6ONLY, has_dualstack_ipv6, socket
from threading import Lock, Semaphore, Thread
from typing import Any, Final

import structlog

from tensorfusion_dra.core.errors import FatalError, RetryableError

log = structlog.get_logger()

_CONNECTIONS: Final = 8
"""At a time; more are closed at once."""
_CONNECTION_SECONDS: Final = 5.0
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
        self._free: Final = Semaphore(_CONNECTIONS)
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
        """See socketserver; closes what is too much."""
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """See socketserver."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: socket | tuple[bytes, socket], client_address: Any) -> None:
        """See socketserver; a client that goes away is nobody's error."""


class _Handler(BaseHTTPRequestHandler):
    server: HealthEndpoint
    timeout = _CONNECTION_SECONDS
    server_version = "tensorfusion-dra"
    sys_version = ""

    def do_GET(self) -> None:
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
