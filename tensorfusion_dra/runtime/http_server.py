"""HTTP server for a process's own pages (probes, metrics, status), its requests and responses.

Each connection carries one request and has a thread, as in the standard library. If there are too
many, the oldest is cut: a probe sends its request at once, so it is answered beside clients that
connect and send nothing. A thread whose connection was cut ends when its answer is made, which may
take a while, so threads have a bound of their own.
"""

import contextlib
import io
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import BoundedSemaphore, Thread
from typing import Any, Final

import structlog

from tensorfusion_dra.core.errors import InputError

log = structlog.get_logger()

_HEAD_BYTES: Final = 8192
_CONNECTIONS: Final = 48
_THREADS: Final = 64
_SECONDS: Final = 10.0
"""Time for a client to send or read anything at all."""
_CHECK_SECONDS: Final = 0.2
_BACKLOG: Final = 1024
"""Connections that wait to be accepted. Linux drops a further one, and its client tries again after
a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One HTTP request; a header that is missing is "".

    Attributes:
        path: The target without its query.
        query: What follows the question mark; "" if there is none.
        host: The Host header. A page for loopback only has to compare it with loopback's names: a
            browser on this machine can be made to ask for any host.
        from_loopback: True if the client's address is one of this machine's loopback.
        arrived: When its head had arrived, by time.monotonic().
    """

    path: str
    method: str = "GET"
    query: str = ""
    content_type: str = ""
    accept: str = ""
    host: str = ""
    from_loopback: bool = False
    body: bytes = b""
    arrived: float = field(default_factory=time.monotonic)


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """The answer to a request.

    Attributes:
        content_type: With its charset.
        headers: Headers besides those of content type and length.
    """

    body: bytes
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = "text/plain; charset=utf-8"
    headers: Mapping[str, str] = field(default_factory=dict)


Respond = Callable[[Request], Response]
"""Answers requests, from any thread. If it raises, the answer is 500."""


def text_response(status: HTTPStatus, text: str) -> Response:
    """Return an answer of one line of text."""
    return Response(status=status, body=f"{text}\n".encode(errors="replace"))


def is_loopback(address: str) -> bool:
    """Return True for an address of loopback, as the kernel writes it for a connected socket."""
    # On a socket for both families an IPv4 client is written as an IPv6 address.
    return address == "::1" or address.removeprefix("::ffff:").startswith("127.")


def listener(host: str, port: int, *, setting: str) -> socket.socket:
    """Return a socket that listens and never blocks; an empty host is all addresses.

    Args:
        setting: Name of the port's setting, for the error.

    Raises:
        InputError: The address cannot be bound.
    """
    is_dual = not host and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if is_dual or ":" in host else socket.AF_INET
    try:
        found = socket.create_server(
            (host, port), family=family, backlog=_BACKLOG, dualstack_ipv6=is_dual
        )
    except OSError as error:
        text = (error.strerror or str(error)).partition(" (while")[0]  # names the address again
        raise InputError(f"{setting} {port}: {text}") from error
    found.settimeout(0)  # a client may disconnect between select and accept
    return found


class PageServer(ThreadingHTTPServer):
    """HTTP server that answers from its construction until it is stopped, in threads of its own.

    Attributes:
        port: The port it listens on.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(
        self, respond: Respond, *, host: str, port: int, setting: str, seconds: float = _SECONDS
    ) -> None:
        """Listen on the address.

        Args:
            host: The address to listen on; empty for all addresses of this machine.
            port: 0 for any free port.
            setting: Name of the port's setting, for the error.
            seconds: Time for a client to send or read anything at all.

        Raises:
            InputError: The address cannot be bound.
        """
        super().__init__(("", 0), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener(host, port, setting=setting)
        self.port: Final = int(self.socket.getsockname()[1])
        self.respond: Final = respond
        self._seconds: Final = seconds
        self._open: Final[dict[socket.socket, None]] = {}  # oldest first
        self._free: Final = BoundedSemaphore(_THREADS)
        self._thread: Final = Thread(
            target=self.serve_forever, args=(_CHECK_SECONDS,), name="pages", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Accept no new connections, and cut those that are open."""
        self.shutdown()
        self._cut_all_but(0)
        self.server_close()
        self._thread.join()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread of its own, after cutting the oldest connection if there are many.

        While there are too many threads, the connection is closed instead.
        """
        self._cut_all_but(_CONNECTIONS - 1)
        self._open[request] = None
        request.settimeout(self._seconds)
        if self._free.acquire(timeout=_CHECK_SECONDS):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, then free the thread for another request."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def close_request(self, request: Any) -> None:
        """Forget the connection."""
        self._open.pop(request, None)
        super().close_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log an error, but not that a client has gone or was cut."""
        if not isinstance(sys.exception(), OSError):
            log.error("request_failed", error=repr(sys.exception()), exc_info=True)

    def _cut_all_but(self, most: int) -> None:
        """Shut the oldest connections down; a thread that reads or writes gets an error."""
        found = [*self._open]
        for oldest in found[: max(0, len(found) - most)]:
            self._open.pop(oldest, None)
            with contextlib.suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)


class _Head(socket.SocketIO):
    """The beginning of what a client sends; a request that is longer has an early end."""

    _left = _HEAD_BYTES

    def readinto(self, buffer: Any) -> int | None:
        read = super().readinto(memoryview(buffer)[: self._left])
        self._left -= read or 0
        return read


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    wbufsize = -1  # headers and body in one write

    def setup(self) -> None:
        """Bound the bytes of the request."""
        super().setup()
        self.rfile = io.BufferedReader(_Head(self.connection, "r"))

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        response = self.server.respond(
            Request(
                path=path,
                method=self.command,
                query=query,
                accept=", ".join(self.headers.get_all("Accept", [])),
                host=self.headers.get("Host", ""),
                from_loopback=is_loopback(self.client_address[0]),
            )
        )
        headers = {"Content-Type": response.content_type, "Content-Length": len(response.body)}
        self.send_response_only(response.status)
        for name, value in {**headers, **response.headers}.items():
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(b"" if self.command == "HEAD" else response.body)

    do_HEAD = do_POST = do_PUT = do_DELETE = do_PATCH = do_GET  # noqa: N815

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base's name
        """Log nothing here; probes are frequent."""
