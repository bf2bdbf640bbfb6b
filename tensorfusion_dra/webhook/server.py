"""HTTPS server for reviews; its clients may be slow, silent, many and unknown.

uvicorn speaks HTTP/1.1 with each client; this module bounds connections and memory:

    accepted ──> TLS handshake ──> idle ──> body arrives ──> waits for its turn ──> worked on
                                     ^                                                  v
                                     └───────────────────────────────────────── answer is read

Only a request that has arrived as a whole takes a worker, and its answer is sent without one. So a
slow client costs a socket, and the bytes that are held for it. Both are bounded over all clients:
whose address, and there whose namespace, has most gives way, first the slowest. Workers come in
turn (turns.py). No address has a fixed part: the API server may share one with anybody.
"""

import asyncio
import math
import re
import socket
import ssl
import time
from asyncio.sslproto import SSLProtocol
from collections import Counter
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from threading import Event, Lock
from typing import Any, Final

import h11
import structlog
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.core.kubernetes import untyped_json
from tensorfusion_dra.runtime.http_server import (
    Request,
    Respond,
    Response,
    listener,
    text_response,
)
from tensorfusion_dra.webhook.turns import QueuedRequest, Turns

log = structlog.get_logger()

_SMALL_BYTES: Final = 32 * 2**10
_SMALL_ELEMENTS: Final = 2_000
_ELEMENT_BYTES: Final = 100
"""Bytes of a string that take as much memory as an element."""
_HEAD_BYTES: Final = 4 * 2**10
"""Beginning of a body in which the API server names the namespace: before all that others write but
the object's name (AdmissionRequest in k8s.io/api/admission/v1)."""
_CROWDED: Final = "expected fewer bytes of requests at a time"
_NAMESPACE: Final = re.compile(rb'"namespace":\s*"([^"]+)"')
_PIECE_BYTES: Final = 16 * 2**10
"""Bytes that are read and written at a time, and those of the largest head of a request."""
_SOCKET_BYTES: Final = 64 * 2**10
"""Bytes that the kernel keeps for a client that does not read. By itself it keeps up to 4 MiB."""
_CHECK_SECONDS: Final = 0.02
_MAX_CONNECTING: Final = 16
_CLOSING_SECONDS: Final = 1.0
_SLOW_SECONDS: Final = 1.0
_BEAT_SECONDS: Final = 1.0
_SILENT_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Bounds on what clients can occupy.

    Reviews of 6 MiB together take up to 60 MiB of memory, a small one up to 1 MiB: mostly the lists
    and strings that are parsed, and the copy that is changed.

    Attributes:
        connections: Largest number of open connections.
        body_bytes: Largest size of a body. The API server accepts objects of 3 MiB in JSON
            (apiserver's server/config.go, by etcd's limit of 1.5 MiB in protobuf), and the review
            of an update has the old object too.
        held_bytes: Largest size of all bodies and answers together.
        large_workers: Number of reviews that are not small and are worked on at a time, of
            body_bytes together.
        small_workers: Number of small ones.
        handshake_seconds: Time for the TLS handshake.
        request_seconds: Time for a body to arrive, and again for the client to read its answer.
        idle_seconds: Time between requests. It is longer than the 90 s for which the API server
            keeps an unused connection. One that has sent none yet stays until there are too many.
    """

    connections: int = 512
    body_bytes: int = 6 * 2**20
    held_bytes: int = 32 * 2**20
    large_workers: int = 3
    small_workers: int = 4
    handshake_seconds: float = 3.0
    request_seconds: float = 10.0
    idle_seconds: float = 120.0


USUAL: Final = Bounds()


def is_small(body: bytes) -> bool:
    """Return True for a review that takes less than 20 ms of a core."""
    return len(body) <= _SMALL_BYTES and untyped_json.elements(body) <= _SMALL_ELEMENTS


class _Requests(h11.Connection):
    """Reader of requests that reads none of a body in chunks; the API server sends none.

    To read 16 KiB of one-byte chunks takes 40 ms, in which no other request is read.
    """

    _has_chunks = False

    def next_event(self) -> Any:
        if self._has_chunks:
            return h11.NEED_DATA
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._has_chunks = any(name == b"transfer-encoding" for name, _ in event.headers)
        return event


class _Connection(SSLProtocol):
    """One open connection: its TLS, above which uvicorn speaks HTTP.

    Attributes:
        address: The client's; "" if it has gone.
        namespace: That of the request; "" while it is not known, and if it has none.
        since: When its handshake began, then when that ended, and once it is known when its last
            request began or was answered. Among others of its kind the oldest is cut first, so one
            in its handshake only after half as many others have come as there may be.
        awaited_since: When its request began to arrive, then when its answer was ready.
        is_known: True once a review was answered on it. Requests that were refused do not count.
        place: Its request in the queue; None if none has arrived. Without a worker it may have to
            give way.
    """

    max_size = _PIECE_BYTES  # of the buffer for reading, 256 KiB by itself
    tcp: asyncio.Transport
    address = namespace = ""
    awaited_since = math.inf
    is_known = False
    place: QueuedRequest | None = None
    turns: Turns

    def __init__(self, server: "ReviewServer", config: Config) -> None:
        loop, bounds = asyncio.get_running_loop(), server.bounds
        self.since = time.monotonic()
        self.http = H11Protocol(config, ServerState(), {"connection": self})
        self.http.conn = _Requests(h11.SERVER, _PIECE_BYTES)
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
        self.address = (transport.get_extra_info("peername") or ("",))[0]
        self._connections.add(self)
        super().connection_made(transport)

    def connection_lost(self, exc: Any) -> None:
        """Forget the connection, and its request if that waits."""
        self._connections.discard(self)
        super().connection_lost(exc)
        if self.place:
            self.give_way()
        del self.http  # without this cycle, 80 KiB are freed at once

    @property
    def is_worked_on(self) -> bool:
        """True while its request has a worker. It is not cut then."""
        return self.place is not None and self.place.has_worker

    def give_way(self) -> None:
        """Refuse the request that waits; cut a slow client."""
        if self.place is None:
            self.cut()
        elif not self.place.has_worker:
            self.turns.refuse(self.place)
            self.place = None

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
        alive_at: When that thread went on last, by time.monotonic(); infinite before it began.
    """

    alive_at = math.inf

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
        self._connecting: Final[set[asyncio.Task[Any]]] = set()
        self._respond: Final = respond
        self._on_error: Final = on_error
        self._stopping: Final = Event()
        self._running: Final = Lock()
        self._grace_seconds = 0.0
        self._full = ("", 0.0)  # an address without room, and until when it counts as that
        self._small, self._large = (
            (ThreadPoolExecutor(number, name), Turns(number, most_bytes=bounds.body_bytes))
            for number, name in (
                (bounds.small_workers, "review"),
                (bounds.large_workers, "large-review"),
            )
        )
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

    def check(self) -> None:
        """Raise RetryableError if the thread that runs run() is stuck; it can be started anew."""
        if (silent := time.monotonic() - self.alive_at) > _SILENT_SECONDS:
            raise RetryableError(
                f"reviews: found none read for {silent:.1f} s, expected at most {_SILENT_SECONDS} s"
            )

    async def _beat(self) -> None:
        while True:
            self.alive_at = time.monotonic()
            await asyncio.sleep(_BEAT_SECONDS)

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        beat = loop.create_task(self._beat())
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
                accepted, address = await loop.sock_accept(self._listener)
            except OSError as error:  # for example, no file descriptors left
                if not self._stopping.is_set():
                    log.warning("accept_failed", error=str(error))
                await asyncio.sleep(_CHECK_SECONDS)
                continue
            if not await self._make_room(str(address[0])):
                accepted.close()
                continue
            made = loop.connect_accepted_socket(partial(_Connection, self, config), accepted)
            connecting = loop.create_task(made)
            self._connecting.add(connecting)
            connecting.add_done_callback(self._connecting.discard)
            # One at a time would wait for all that other connections do meanwhile.
            while len(self._connecting) >= _MAX_CONNECTING:
                await asyncio.sleep(0)
        beat.cancel()
        self.alive_at = math.inf
        for each in [*self.connections]:
            leave = each.http.shutdown if each in self.held else each.cut
            leave()  # after the answer, if it waits for one
        last = time.monotonic() + self._grace_seconds
        while self.connections and time.monotonic() < last:
            await asyncio.sleep(_CHECK_SECONDS)
        for each in [*self.connections]:
            each.cut()

    async def _make_room(self, address: str) -> bool:
        """Cut a connection if there are too many; while all are worked on, wait.

        Neither strangers nor clients with reviews can take more than half from the others. But the
        reviews of several namespaces of one address do not give way to its next connection: under
        more load than can be answered, each cut would cost another handshake. Return False then.
        """
        most = self.bounds.connections
        full, until = self._full  # counted at most every 20 ms, as that takes a millisecond
        if len(self.connections) >= most and address == full and time.monotonic() < until:
            await asyncio.sleep(0)
            return False
        while len(self.connections) >= most and not self._stopping.is_set():
            idle = [each for each in self.connections if each.place is None]
            # Of one that was cut, the request is held a while longer.
            held = [each for each in self.held if each in self.connections]
            waiting = [each for each in held if each.place and not each.is_worked_on]
            strange, known = ([c for c in idle if c.is_known is has] for has in (False, True))
            found = strange if len(strange) > most / 2 else known or strange
            if waiting and (len(waiting) > most / 2 or not found):
                crowding = self._crowding(waiting)
                row = [each for each in waiting if each.namespace == crowding.namespace]
                if crowding.address == address and len(row) < len(waiting) / 2:
                    self._full = address, time.monotonic() + _CHECK_SECONDS
                    return False
                crowding.cut()
            elif found:
                min(found, key=lambda each: each.since).cut()
            else:
                await asyncio.sleep(_CHECK_SECONDS)
        return True

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request, as an ASGI application."""
        arrived = time.monotonic()
        connection: _Connection = scope["state"]["connection"]
        connection.namespace = ""
        connection.http.transport.set_write_buffer_limits(1)  # a write waits for those before
        connection.awaited_since = arrived
        self._hold(connection, 0)
        if connection.is_known:
            connection.since = arrived
        try:
            async with asyncio.timeout(self.bounds.request_seconds):
                found = await self._read(scope, receive, connection, arrived)
            if isinstance(found, Request):
                found = await self._worked_on(connection, found)
            connection.awaited_since = time.monotonic()
            if not self._hold(connection, len(found.body)):
                raise ConnectionError
            async with asyncio.timeout(self.bounds.request_seconds):
                await self._send(found, send)
            if found.status == HTTPStatus.OK:
                connection.is_known, connection.since = True, time.monotonic()
        except OSError:  # also TimeoutError
            connection.cut()
        finally:
            self.held.pop(connection, None)

    async def _worked_on(self, connection: _Connection, request: Request) -> Response:
        """Return the answer of a worker, or the refusal of a request that had to give way."""
        loop, body = asyncio.get_running_loop(), request.body
        threads, connection.turns = self._small if is_small(body) else self._large
        turn: asyncio.Future[None] = loop.create_future()
        place = connection.place = QueuedRequest(
            address=connection.address,
            namespace=connection.namespace,
            size=len(body) + untyped_json.elements(body) * _ELEMENT_BYTES,
            on_turn=partial(turn.set_result, None),
        )
        connection.turns.wait(place)
        await turn
        if not place.has_worker:
            return text_response(HTTPStatus.SERVICE_UNAVAILABLE, _CROWDED)
        try:
            return await loop.run_in_executor(threads, self._work, request)
        finally:
            connection.turns.done(place)
            connection.place = None

    async def _read(
        self, scope: Any, receive: Any, connection: _Connection, arrived: float
    ) -> Request | Response:
        """Return a request with its whole body, or the answer that refuses it.

        Raises:
            ConnectionError: The client has gone.
        """
        headers = {name.decode(): text.decode("latin-1") for name, text in scope["headers"]}
        if "transfer-encoding" in headers:
            return text_response(HTTPStatus.LENGTH_REQUIRED, "expected a Content-Length")
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
            if named := _NAMESPACE.search(body, 0, _HEAD_BYTES):
                connection.namespace = named[1].decode(errors="replace")
            if not self._hold(connection, len(body)):
                return text_response(HTTPStatus.SERVICE_UNAVAILABLE, _CROWDED)
        return Request(
            path=scope["path"],
            method=scope["method"],
            query=scope["query_string"].decode("latin-1"),
            content_type=headers.get("content-type", ""),
            body=bytes(body),
            arrived=arrived,
        )

    def _hold(self, connection: _Connection, size: int) -> bool:
        """Count bytes for a request; return False if it has to give way, as too many are held."""
        self.held[connection] = size
        while sum(self.held.values()) > self.bounds.held_bytes:
            others = [each for each in self.held if each is not connection]
            found = self._crowding([*(c for c in others if not c.is_worked_on), connection])
            if found is connection:
                return False
            found.give_way()
            del self.held[found]
        return True

    def _crowding(self, several: Collection[_Connection]) -> _Connection:
        """Return the one of several connections with requests that has to give way.

        Clients that have not sent all, or not read their answer, in a second go first: many
        addresses of such clients would hold more than the API server. Then it is the address, and
        there the namespace, that holds most. Its oldest connection goes, but first one whose
        request has not arrived, or whose answer is ready.
        """
        now = time.monotonic()
        weights = Counter[tuple[str, ...]]()
        for each in several:
            for group in ((each.address,), (each.address, each.namespace)):
                weights[group] += _SOCKET_BYTES + self.held[each]

        def weight(each: _Connection) -> tuple[bool, int, int, bool]:
            is_slow = each.place is None and now - each.awaited_since > _SLOW_SECONDS
            of_namespace = weights[each.address, each.namespace]
            return is_slow, weights[(each.address,)], of_namespace, each.place is None

        return max(several, key=weight)

    def _work(self, request: Request) -> Response:
        """Return the answer to a request."""
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
        is_last = self.is_leaving.is_set() or status == HTTPStatus.LENGTH_REQUIRED
        headers = [
            (b"content-type", response.content_type.encode()),
            (b"content-length", b"%d" % len(body)),
            *([(b"connection", b"close")] if is_last else []),
        ]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        for piece in (body[at : at + _PIECE_BYTES] for at in range(0, len(body), _PIECE_BYTES)):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body"})
