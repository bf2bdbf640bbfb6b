"""HTTPS server for reviews, whose clients may be slow, silent, many and anybody.

uvicorn speaks HTTP/1.1 with each client; here is who may stay connected, and what is held for whom:

    accepted ──> TLS handshake ──> waits ──> body arrives ──> worked on ──> answer is read ──> waits

Only a request that has arrived as a whole takes a worker, and its answer is sent without one. So a
slow client costs a socket, and the bytes that are held for it. Both are bounded over all clients,
by cutting those that have been slow for longest. No address has a bound of its own: the API server
may share one with anybody.
"""

import asyncio
import socket
import ssl
import time
from asyncio.sslproto import SSLProtocol
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from threading import Event, Lock
from typing import Any, Final

import structlog
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from tensorfusion_dra.runtime.http_server import (
    Request,
    Respond,
    Response,
    listener,
    text_response,
)

log = structlog.get_logger()

_LARGE_BODY_BYTES: Final = 32 * 2**10
_PIECE_BYTES: Final = 16 * 2**10
"""Bytes that are read and written at a time, and those of the largest head of a request."""
_SOCKET_BYTES: Final = 64 * 2**10
"""Bytes that the kernel keeps for a client that does not read. By itself it keeps up to 4 MiB."""
_CHECK_SECONDS: Final = 0.02
_CLOSING_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Bounds on what clients can occupy.

    A review of 6 MiB takes up to 65 MiB of memory, one of 32 KiB up to 3 MiB: mostly the lists and
    strings that are parsed, and the copy that is changed.

    Attributes:
        connections: Largest number of open connections.
        body_bytes: Largest size of a body. The API server accepts objects of 3 MiB in JSON
            (apiserver's server/config.go, by etcd's limit of 1.5 MiB in protobuf), and the review
            of an update has the old object too.
        held_bytes: Largest size of all bodies and answers together.
        large_workers: Number of reviews of more than 32 KiB that are worked on at a time.
        small_workers: Number of other reviews.
        handshake_seconds: Time for the TLS handshake.
        request_seconds: Time for a body to arrive, and again for the client to read its answer.
        idle_seconds: Time between requests. It is longer than the 90 s for which the API server
            keeps an unused connection. One that has sent none yet stays until there are too many.
    """

    connections: int = 512
    body_bytes: int = 6 * 2**20
    held_bytes: int = 32 * 2**20
    large_workers: int = 1
    small_workers: int = 8
    handshake_seconds: float = 3.0
    request_seconds: float = 10.0
    idle_seconds: float = 120.0


USUAL: Final = Bounds()


class _Connection(SSLProtocol):
    """One open connection: its TLS, above which uvicorn speaks HTTP.

    Attributes:
        since: When its handshake began, then when that ended, and once it is known when its last
            request began or was answered. Among others of its kind the oldest is cut first, so one
            in its handshake only after half as many others have come as there may be.
        is_known: True once a review was answered on it. Requests that were refused do not count.
        is_worked_on: True while its request, which has arrived, is worked on or waits for that. It
            is not cut then.
    """

    max_size = _PIECE_BYTES  # of the buffer for reading, 256 KiB by itself
    tcp: asyncio.Transport
    is_known = is_worked_on = False

    def __init__(self, server: "ReviewServer", config: Config) -> None:
        loop, bounds = asyncio.get_running_loop(), server.bounds
        self.since = time.monotonic()
        self.http = H11Protocol(config, ServerState(), {"connection": self})
        self._connections: Final = server.connections
        handshake: asyncio.Future[None] = loop.create_future()
        handshake.add_done_callback(self._end_handshake)
        super().__init__(
            *(loop, self.http, server.context(), handshake),
            server_side=True,
            ssl_handshake_timeout=bounds.handshake_seconds,  # type: ignore[arg-type]
            ssl_shutdown_timeout=_CLOSING_SECONDS,
        )

    def connection_made(self, transport: Any) -> None:
        """Begin the handshake."""
        self.tcp = transport
        self._connections.add(self)
        super().connection_made(transport)

    def connection_lost(self, exc: Any) -> None:
        """Forget the connection."""
        self._connections.discard(self)
        super().connection_lost(exc)
        del self.http  # without this cycle, 80 KiB are freed at once

    def cut(self) -> None:
        """End the connection at once."""
        self._connections.discard(self)
        self.tcp.abort()

    def _end_handshake(self, handshake: asyncio.Future[None]) -> None:
        self.since, error = time.monotonic(), handshake.exception()
        # For example, a client that does not trust the certificate; but not one that has gone.
        if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError):
            log.warning("tls_handshake_failed", error=str(error))


class ReviewServer:
    """HTTPS server that listens from its construction and answers while run() runs.

    Attributes:
        port: The port it listens on.
        is_leaving: Set before the server stops. Answers then carry "Connection: close", so that
            clients connect to another server.
        connections: Those that are open; only for the thread that runs run().
        held: Bytes in memory for each request, oldest first; for the same thread. Its client may
            have gone.
    """

    def __init__(
        self,
        respond: Respond,
        *,
        host: str,
        port: int,
        context: Callable[[], ssl.SSLContext],
        bounds: Bounds = USUAL,
        on_error: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Listen on the address; requests are answered by run().

        Args:
            respond: Answers with OK only if the request is a review.
            host: The address to listen on; empty for all addresses of this machine.
            port: 0 for any free port.
            context: Returns the TLS context for a new connection.
            on_error: Called with the HTTP status of each answer that is an error. Texts that are
                not HTTP are not counted.

        Raises:
            InputError: The address cannot be bound.
        """
        self.bounds: Final = bounds
        self.context: Final = context
        self.is_leaving: Final = Event()
        self.connections: Final[set[_Connection]] = set()
        self.held: Final[dict[_Connection, int]] = {}
        self._respond: Final = respond
        self._on_error: Final = on_error
        self._stopping: Final = Event()
        self._running: Final = Lock()
        self._grace_seconds = 0.0
        self._small: Final = ThreadPoolExecutor(bounds.small_workers, "review")
        self._large: Final = ThreadPoolExecutor(bounds.large_workers, "large-review")
        self._listener: Final = listener(host, port, setting="port")
        # Accepted sockets have the same options.
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BYTES)
        self._listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.port: Final = int(self._listener.getsockname()[1])

    def run(self) -> None:
        """Serve until stopped."""
        with self._running:
            asyncio.run(self._serve())

    def stop(self, *, grace_seconds: float) -> None:
        """Accept no new connections; return once every request is answered or cut."""
        self._grace_seconds = grace_seconds
        self.is_leaving.set()
        self._stopping.set()
        with suppress(OSError):  # if it was stopped before
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        if self._running.acquire(timeout=grace_seconds + _CLOSING_SECONDS):
            self._running.release()
        self._listener.close()

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        config = Config(
            self._answer,
            interface="asgi3",
            lifespan="off",
            ws="none",
            log_config=None,
            log_level="critical",  # its warnings are of texts that are no HTTP
            access_log=False,
            proxy_headers=False,
            timeout_keep_alive=self.bounds.idle_seconds,  # type: ignore[arg-type]
            h11_max_incomplete_event_size=_PIECE_BYTES,
        )
        while not self._stopping.is_set():
            try:
                accepted, _ = await loop.sock_accept(self._listener)
            except OSError as error:  # for example, no file descriptors left
                if not self._stopping.is_set():
                    log.warning("accept_failed", error=str(error))
                await asyncio.sleep(_CHECK_SECONDS)
                continue
            await self._make_room()
            await loop.connect_accepted_socket(partial(_Connection, self, config), accepted)
        for each in [*self.connections]:
            leave = each.http.shutdown if each in self.held else each.cut
            leave()  # after the answer, if it waits for one
        last = time.monotonic() + self._grace_seconds
        while self.connections and time.monotonic() < last:
            await asyncio.sleep(_CHECK_SECONDS)
        for each in [*self.connections]:
            each.cut()

    async def _make_room(self) -> None:
        """Cut a connection if there are too many; while all are worked on, wait.

        Neither strangers nor clients with reviews can take more than half from the others.
        """
        most = self.bounds.connections
        while len(self.connections) >= most and not self._stopping.is_set():
            idle = [each for each in self.connections if not each.is_worked_on]
            strange, known = ([c for c in idle if c.is_known is has] for has in (False, True))
            if found := strange if len(strange) > most / 2 else known or strange:
                min(found, key=lambda each: each.since).cut()
            else:
                await asyncio.sleep(_CHECK_SECONDS)

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request, as an ASGI application."""
        connection: _Connection = scope["state"]["connection"]
        connection.http.transport.set_write_buffer_limits(1)  # a write waits for those before
        self._hold(connection, 0)
        if connection.is_known:
            connection.since = time.monotonic()
        try:
            async with asyncio.timeout(self.bounds.request_seconds):
                found = await self._read(scope, receive, connection)
            if isinstance(found, Request):
                connection.is_worked_on = True
                workers = self._large if len(found.body) > _LARGE_BODY_BYTES else self._small
                found = await asyncio.get_running_loop().run_in_executor(
                    workers, self._work, connection, found
                )
                connection.is_worked_on = False
            self._hold(connection, len(found.body))
            async with asyncio.timeout(self.bounds.request_seconds):
                await self._send(found, send)
            if found.status == HTTPStatus.OK:
                connection.is_known, connection.since = True, time.monotonic()
        except OSError:  # also TimeoutError
            connection.cut()
        finally:
            self.held.pop(connection, None)

    async def _read(self, scope: Any, receive: Any, connection: _Connection) -> Request | Response:
        """Return a request with its whole body, or the answer that refuses it.

        Raises:
            ConnectionError: The client has gone.
        """
        headers = {name.decode(): text.decode("latin-1") for name, text in scope["headers"]}
        body, most, has_more = bytearray(), self.bounds.body_bytes, True
        while has_more:
            if max(int(headers.get("content-length", "0")), len(body)) > most:
                return text_response(
                    HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"expected at most {most} bytes"
                )
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ConnectionError
            body += message["body"]
            has_more = message["more_body"]
            if not self._hold(connection, len(body)):
                return text_response(
                    HTTPStatus.SERVICE_UNAVAILABLE, "expected fewer large requests at a time"
                )
        return Request(
            path=scope["path"],
            method=scope["method"],
            query=scope["query_string"].decode("latin-1"),
            content_type=headers.get("content-type", ""),
            body=bytes(body),
        )

    def _hold(self, connection: _Connection, size: int) -> bool:
        """Count bytes for a request; return False if too many are held.

        Before, slow clients are cut, first those with the oldest requests.
        """
        self.held[connection] = size
        while sum(self.held.values()) > self.bounds.held_bytes:
            slow = [each for each in self.held if each is not connection and not each.is_worked_on]
            if not slow:
                return False
            slow[0].cut()
            del self.held[slow[0]]
        return True

    def _work(self, connection: _Connection, request: Request) -> Response:
        """Return the answer to a request.

        Raises:
            ConnectionError: The client did not wait.
        """
        if connection.tcp.is_closing():
            raise ConnectionError
        try:
            return self._respond(request)
        except Exception as error:
            # One request that the rules cannot cope with must not end the connection or the server.
            log.error("request_failed", error=repr(error), exc_info=True)
            return text_response(
                HTTPStatus.INTERNAL_SERVER_ERROR, f"{type(error).__name__}, see the log"
            )

    async def _send(self, response: Response, send: Any) -> None:
        if response.status >= HTTPStatus.BAD_REQUEST:
            self._on_error(response.status.value)
        status, body = response.status.value, response.body
        headers = [
            (b"content-type", response.content_type.encode()),
            (b"content-length", b"%d" % len(body)),
            *([(b"connection", b"close")] if self.is_leaving.is_set() else []),
        ]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        for piece in (body[at : at + _PIECE_BYTES] for at in range(0, len(body), _PIECE_BYTES)):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body"})
