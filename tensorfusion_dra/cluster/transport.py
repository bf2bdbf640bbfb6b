"""Requests to the API server, each bounded as a whole in time and in bytes.

Timeouts of sockets are for one read: a server that sends a byte now and then never meets them, and
neither does one that sends without end. So whatever reads an answer (a status line, headers, pieces
of a body, also those of a proxy) reads through Limits, which count down over all reads:

    request sent ──> Limits(what is left of the call's seconds, bytes of an answer)
    watch stream ──> renewed for each event: seconds of silence, bytes of an event
"""

import io
import socket
import time
from http.client import HTTPResponse
from typing import TYPE_CHECKING, Any, Final

import urllib3
from urllib3.exceptions import (
    MaxRetryError,
    NewConnectionError,
    ProtocolError,
)
from urllib3.exceptions import TimeoutError as HTTPTimeoutError

if TYPE_CHECKING:
    from collections.abc import Mapping

_CONNECT_SECONDS: Final = 3.05
"""For each address of the server's name."""
_MOST_ANSWER_BYTES: Final = 64 * 2**20
"""The largest answers are lists of all slices of a large cluster."""
_PIECE_BYTES: Final = 64 * 2**10
_REPEATABLE: Final = frozenset({"GET", "PUT", "DELETE"})
"""Methods that do no harm if the server had carried out the first try."""


class TooLargeError(OSError):
    """An answer has more bytes than any that is meant for us."""


class Limits:
    """What may still be read: until when and how much. For the thread that reads."""

    def __init__(self, *, seconds: float, most_bytes: int) -> None:
        self.renew(seconds=seconds, most_bytes=most_bytes)

    def renew(self, *, seconds: float, most_bytes: int) -> None:
        """Starts counting anew."""
        self._ends = time.monotonic() + seconds
        self._most_bytes = most_bytes
        self._bytes_left = most_bytes

    def seconds_left(self) -> float:
        """The time for the next read.

        Raises:
            TimeoutError: It is over.
        """
        left = self._ends - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left

    def count(self, number: int) -> None:
        """Takes note of bytes that were read.

        Raises:
            TooLargeError: They are too many.
        """
        self._bytes_left -= number
        if self._bytes_left < 0:
            raise TooLargeError(f"answer: found more than {self._most_bytes} bytes")


class _LimitedReader(io.RawIOBase):
    """Reads a socket within limits."""

    def __init__(self, source: socket.socket, limits: Limits) -> None:
        self._socket = source
        self._raw = source.makefile("rb", buffering=0)
        self._limits = limits

    def readable(self) -> bool:
        """See io.RawIOBase."""
        return True

    def readinto(self, buffer: Any) -> int | None:
        """See io.RawIOBase."""
        self._socket.settimeout(self._limits.seconds_left())
        number = self._raw.readinto(buffer)
        self._limits.count(number or 0)
        return number

    def close(self) -> None:
        """See io.RawIOBase."""
        self._raw.close()
        super().close()


class _Source:
    """What http.client wants of a socket."""

    def __init__(self, reader: _LimitedReader) -> None:
        self._reader = reader

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(self._reader)


class _LimitedConnection:
    """Mixed into urllib3's connections.

    Attributes:
        limits: Of the answer that is being read.
    """

    limits: Limits

    def response_class(self, source: socket.socket, **more: Any) -> HTTPResponse:
        """Called by http.client where others have a class; the socket has its timeout by then."""
        seconds = source.gettimeout() or 0.0
        self.limits = Limits(seconds=seconds, most_bytes=_MOST_ANSWER_BYTES)
        reader = _Source(_LimitedReader(source, self.limits))
        return HTTPResponse(reader, **more)  # type: ignore[arg-type]


def limit(manager: urllib3.PoolManager) -> None:
    """Has all connections of a pool manager read within limits."""
    pools = manager.pool_classes_by_scheme
    manager.pool_classes_by_scheme = {scheme: _limited(pools[scheme]) for scheme in pools}


def send(
    manager: urllib3.PoolManager,
    method: str,
    url: str,
    *,
    headers: "Mapping[str, str]",
    body: str | None,
    seconds: float,
) -> urllib3.BaseHTTPResponse:
    """The answer, whose body is still to be read within the rest of the time.

    A server may just have closed a pooled connection: then there is one more try in what is left
    of the time. What a server answers, 429 included, is for those who asked: they have a back-off
    of their own.

    Args:
        manager: One that limit() has prepared.
        seconds: For the whole request, the body of its answer included. A name with several
            addresses that are all dead may take 3 seconds for each.
    """
    ends = time.monotonic() + seconds

    def once() -> urllib3.BaseHTTPResponse:
        left = ends - time.monotonic()
        return manager.request(
            method,
            url,
            body=body,
            headers=headers,
            timeout=urllib3.Timeout(connect=min(_CONNECT_SECONDS, left), total=left),
            retries=False,
            redirect=False,
            preload_content=False,
            decode_content=False,
        )

    try:
        return once()
    except ProtocolError as error:
        too_large = isinstance(innermost(error), TooLargeError)
        if method not in _REPEATABLE or too_large or time.monotonic() >= ends:
            raise
        return once()


def body(response: urllib3.BaseHTTPResponse, *, cut_at: int | None = None) -> bytes:
    """The answer's body, or its beginning.

    Args:
        cut_at: Bytes after which nothing more is read; None for all of it.
    """
    found = bytearray()
    try:
        # Never all at once: the memory would be taken on the word of a Content-Length.
        for piece in response.stream(_PIECE_BYTES, decode_content=False):
            found += piece
            if cut_at is not None and len(found) >= cut_at:
                break
    finally:
        response.close()  # without effect on a connection that is back in the pool
    return bytes(found[:cut_at])


def limits_of(response: urllib3.BaseHTTPResponse) -> Limits:
    """The limits within which the rest of an answer to send() is read."""
    limits = getattr(response.connection, "limits", None)
    # Without a connection nothing is left to read: it is back in the pool.
    return limits if isinstance(limits, Limits) else Limits(seconds=0, most_bytes=0)


def cause(error: Exception) -> str:
    """Why there was no answer, by its innermost cause."""
    found = innermost(error)
    if isinstance(found, HTTPTimeoutError | TimeoutError):
        return "no answer within the time"
    if isinstance(found, OSError) and found.strerror:
        return found.strerror
    return str(found) or type(found).__name__


def innermost(error: BaseException) -> BaseException:
    """The error itself: the library wraps it many times."""
    found = error
    for _ in range(10):
        inner = _inner(found)
        if inner is None:
            break
        found = inner
    return found


def _inner(error: BaseException) -> BaseException | None:
    if isinstance(error, MaxRetryError):
        return error.reason
    # A connection that is refused is a kind of timeout to this library.
    if isinstance(error, HTTPTimeoutError) and not isinstance(error, NewConnectionError):
        return None
    nested = (argument for argument in error.args if isinstance(argument, Exception))
    return error.__cause__ or next(nested, None)


def _limited(pool: type[Any]) -> type[Any]:
    """The pool class with connections that read within limits; it may be one for a proxy."""
    connection = type("LimitedConnection", (_LimitedConnection, pool.ConnectionCls), {})
    return type("LimitedPool", (pool,), {"ConnectionCls": connection})
