"""HTTP/1.1 listener of the API server on a loopback socket."""

import contextlib
import select
import socket
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Lock, Thread
from typing import Any, Final

from dra_simulator.api import failures, faults
from dra_simulator.api.faults import Action, Faults, RequestCounts
from dra_simulator.api.rendering import Watch
from dra_simulator.api.requests import Asked, Request, route
from dra_simulator.api.service import Answer, Service, answer_of

_POLL_SECONDS: Final = 0.05


class Listener(ThreadingHTTPServer):
    """The listening socket, with one thread for each connection.

    Attributes:
        stopping: Set when the server stops; it ends every long wait.
    """

    daemon_threads = False
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(
        self, service: Service, faults_: Faults, counts: RequestCounts, *, port: int
    ) -> None:
        self.service: Final = service
        self.faults: Final = faults_
        self.counts: Final = counts
        self.stopping: Final = Event()
        self._sockets: set[socket.socket] = set()
        self._sockets_lock = Lock()  # guards _sockets
        self._thread: Thread | None = None
        super().__init__(("127.0.0.1", port), _Handler)

    @property
    def port(self) -> int:
        """Port that the server listens on."""
        return int(self.server_address[1])

    def start(self) -> None:
        """Start to accept connections."""
        self._thread = Thread(target=self._accept, name="apiserver")
        self._thread.start()

    def _accept(self) -> None:
        # Not serve_forever, which checks only periodically if it should end.
        while not self.stopping.is_set():
            try:
                connection, address = self.get_request()
            except OSError:
                self.stopping.wait(_POLL_SECONDS)
                continue
            with self._sockets_lock:
                self._sockets.add(connection)
            self.process_request(connection, address)

    def stop(self) -> None:
        """Close all connections and join all threads."""
        self.stopping.set()
        self.service.store.close()
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        if self._thread is not None:
            self._thread.join()
        with self._sockets_lock:
            for connection in self._sockets:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        self.server_close()

    def closed(self, connection: socket.socket) -> None:
        """Forget a connection that ended."""
        with self._sockets_lock:
            self._sockets.discard(connection)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print a traceback to stderr, unless the client just disconnected."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Listener

    def finish(self) -> None:
        self.server.closed(self.connection)
        super().finish()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Log nothing."""

    def do_GET(self) -> None:
        self._serve()

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815

    def _serve(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length) if length else b""
        request = Request.of(self.command, self.path, dict(self.headers.items()), body)
        found = route(request.path)
        action: Action | None = None
        asked = None if found is None else Asked.of(request, found)
        if asked is not None:
            self.server.counts.add(asked)
            action = self.server.faults.take(asked.verb, asked.resource, asked.name)
        match action:
            case faults.Refuse(code, message, retry_after):
                self._send(answer_of(failures.refused(code, message, retry_after)))
                return
            case faults.Forge(body):
                self._send(Answer(200, body))
                return
            case faults.Delay(seconds):
                self.server.stopping.wait(seconds)
            case faults.Cut(carried_out=False):
                self._cut()
                return
            case faults.HalfOpen() if not request.flag("watch"):
                self._hang()
                return
        answer = self.server.service.answer(request)
        if isinstance(answer, Watch):
            self._stream(answer, action)
        elif isinstance(action, faults.Cut):
            self._cut()
        else:
            if asked is not None:
                self.server.counts.add_answered(asked)
            self._send(answer)

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.code)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        for name, value in answer.headers:
            self.send_header(name, value)
        self._flush(answer.body)

    def _flush(self, body: bytes) -> None:
        """Send headers and body in one piece, so that no delayed ACK comes between them."""
        self._headers_buffer: list[bytes]
        self._headers_buffer.append(b"\r\n")
        self.wfile.write(b"".join(self._headers_buffer) + body)
        self._headers_buffer = []

    def _cut(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def _hang(self) -> None:
        """Send nothing more until the client disconnects or the server stops."""
        while not self.server.stopping.is_set() and not self._client_is_gone():
            self.server.stopping.wait(_POLL_SECONDS)
        self.close_connection = True

    def _stream(self, watch: Watch, action: Action | None) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self._flush(b"")
        match action:
            case faults.HalfOpen():
                self._hang()
            case faults.Expire():
                error = failures.expired(1, self.server.service.store.version)
                self._chunk(watch.error_line(error))
            case faults.Garble():
                self._chunk(b"\x00 this is no JSON\n")
            case _:
                for line in watch.lines():
                    if line and isinstance(action, faults.Cut):
                        half = line[: len(line) // 2]
                        self.wfile.write(b"%x\r\n%s" % (len(line), half))
                        self._cut()
                        return
                    if line:
                        self._chunk(line)
                    elif self._client_is_gone():
                        self.close_connection = True
                        return
        self.wfile.write(b"0\r\n\r\n")

    def _chunk(self, line: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))

    def _client_is_gone(self) -> bool:
        readable, _, _ = select.select([self.connection], [], [], 0)
        if not readable:
            return False
        try:
            peeked: bytes = self.connection.recv(1, socket.MSG_PEEK)
        except OSError:
            return True
        return not peeked
