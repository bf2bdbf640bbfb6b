"""A server on loopback that sends the bytes of a test, as slowly as the test requires."""

import socket
import socketserver
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Lock
from typing import Any, Final

from tests.support.servers import serving, url, write_kubeconfig
from tests.support.waiting import eventually

HANG_UP: Final = b""
"""As a piece of an answer: the server closes the connection."""
_UNSEEN: Final = b"\x04"
"""FIN_WAIT1: the state of a closed connection until the client's kernel has acknowledged it."""


class RawServer(socketserver.ThreadingTCPServer):
    """Server that sends the pieces of an answer with pauses, until the client hangs up.

    Attributes:
        answer: Returns the pieces of the answer to a request.
        requests: The first lines of all requests so far.
        headers: The headers of the last request, by name in lower case.
        bytes_sent: Number of bytes in all answers together.
        accepted, connected: Number of connections so far, and of those that clients see as open.
    """

    daemon_threads = True
    allow_reuse_address = True
    # With the default of 5, Linux drops connections of a burst, whose retries take up to a minute.
    request_queue_size = 128

    def __init__(self, answer: Callable[[], Iterable[bytes]], *, pause_seconds: float) -> None:
        self.answer = answer
        self.pause_seconds = pause_seconds
        self.requests: list[str] = []
        self.headers: dict[str, str] = {}
        self.accepted = self.connected = 0
        self.counting = Lock()  # guards accepted and connected
        self.bytes_sent = 0
        self.closing = Event()
        super().__init__(("127.0.0.1", 0), _Handler)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection, and count it as closed once the client's kernel knows that."""
        with suppress(OSError):  # the client may have gone first
            request.shutdown(socket.SHUT_WR)
        eventually(lambda: request.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1) != _UNSEEN)
        self.close_request(request)
        with self.counting:
            self.connected -= 1

    def kubeconfig(self, folder: Path, user: Mapping[str, Any] | None = None) -> Path:
        """Write a kubeconfig for this server and user, and return its path."""
        return write_kubeconfig(folder / "kubeconfig", user, server=url(self))


class _Handler(socketserver.StreamRequestHandler):
    server: RawServer

    def setup(self) -> None:
        super().setup()
        with self.server.counting:
            self.server.accepted += 1
            self.server.connected += 1

    def handle(self) -> None:
        while line := self.rfile.readline().strip():
            lines = iter(lambda: self.rfile.readline().strip().decode(), "")
            headers = {name.lower(): value for name, _, value in (x.partition(": ") for x in lines)}
            self.rfile.read(int(headers.get("content-length", "0")))
            self.server.headers = headers
            self.server.requests.append(line.decode())
            try:
                for piece in self.server.answer():
                    if piece == HANG_UP:
                        return
                    self.wfile.write(piece)
                    self.server.bytes_sent += len(piece)
                    if self.server.closing.wait(self.server.pause_seconds):
                        return
            except OSError:
                return


@contextmanager
def served(
    answer: Callable[[], Iterable[bytes]], *, pause_seconds: float = 0.0
) -> Iterator[RawServer]:
    """Run a server during the block.

    Args:
        answer: Called for each request; returns the pieces of the answer.
        pause_seconds: The pause after each piece.
    """
    server = RawServer(answer, pause_seconds=pause_seconds)
    with serving(server):
        try:
            yield server
        finally:
            server.closing.set()


def head(*lines: str, status: int = 200) -> bytes:
    """Return the status line and headers of an answer in JSON."""
    all_lines = [f"HTTP/1.1 {status} X", "Content-Type: application/json", *lines, "", ""]
    return "\r\n".join(all_lines).encode()


def chunk(content: bytes) -> bytes:
    """Return one chunk of a chunked body."""
    return f"{len(content):x}\r\n".encode() + content + b"\r\n"
