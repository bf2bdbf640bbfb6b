"""Requests to the API server, each bounded as a whole in time and in bytes.

Everything that reads an answer, also that of a proxy, reads within limits.py.
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

from tensorfusion_dra.cluster.limits import Limits, TooLargeError

if TYPE_CHECKING:
    from collections.abc import Mapping

_CONNECT_SECONDS: Final = 3.05
"""For each IP address that the server's name resolves to."""
_MOST_ANSWER_BYTES: Final = 64 * 2**20
"""The largest answer is the list of all slices of a large cluster."""
_PIECE_BYTES: Final = 64 * 2**10
_REPEATABLE: Final = frozenset({"GET", "PUT", "DELETE"})
"""Methods that are safe to repeat if the server has already executed the first try."""


class _LimitedReader(io.RawIOBase):
    """Raw reader of a socket, within limits."""

    def __init__(self, source: socket.socket, limits: Limits) -> None:
        self._socket = source
        self._raw = source.makefile("rb", buffering=0)
        self._limits = limits

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._socket.settimeout(self._limits.seconds_left())
        number = self._raw.readinto(buffer)
        self._limits.count(number or 0)
        return number

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Source:
    """The part of a socket that http.client uses."""

    def __init__(self, reader: _LimitedReader) -> None:
        self._reader = reader

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(self._reader)


class _LimitedConnection:
    """Mixin for urllib3's connections that makes them read within limits.

    Attributes:
        limits: The limits of the answer that is being read.
    """

    limits: Limits

    def response_class(self, source: socket.socket, **more: Any) -> HTTPResponse:
        """Return a response that reads within limits.

        http.client calls this method in place of the class that it usually finds here. At that time
        the socket's timeout is set.
        """
        seconds = source.gettimeout() or 0.0
        self.limits = Limits(seconds=seconds, most_bytes=_MOST_ANSWER_BYTES)
        reader = _Source(_LimitedReader(source, self.limits))
        return HTTPResponse(reader, **more)  # type: ignore[arg-type]


def limit(manager: urllib3.PoolManager) -> None:
    """Make all connections of a pool manager read within limits."""
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
    """Send a request and return the response; the caller reads the body in the remaining time.

    A server may just have closed a pooled connection. Then the request is repeated once, in the
    remaining time. Error statuses, 429 included, are returned to the caller, which has its own
    back-off.

    Args:
        manager: A pool manager prepared by limit().
        seconds: For the whole request, including the body of the answer. If the server's name has
            several addresses that are all dead, each may take 3 seconds.
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
    """Return the answer's body, or its beginning.

    Args:
        cut_at: Stop reading after this many bytes; None reads all.
    """
    found = bytearray()
    try:
        # In pieces: a read of the whole body would allocate whatever Content-Length claims.
        for piece in response.stream(_PIECE_BYTES, decode_content=False):
            found += piece
            if cut_at is not None and len(found) >= cut_at:
                break
    finally:
        response.close()  # has no effect on a connection that is back in the pool
    return bytes(found[:cut_at])


def limits_of(response: urllib3.BaseHTTPResponse) -> Limits:
    """Return the limits for reading the rest of an answer to send()."""
    limits = getattr(response.connection, "limits", None)
    # Without a connection nothing is left to read: the connection is back in the pool.
    return limits if isinstance(limits, Limits) else Limits(seconds=0, most_bytes=0)


def cause(error: Exception) -> str:
    """Return the text of the innermost error, the reason why there was no answer."""
    found = innermost(error)
    if isinstance(found, HTTPTimeoutError | TimeoutError):
        return "no answer within the time"
    if isinstance(found, OSError) and found.strerror:
        return found.strerror
    return str(found) or type(found).__name__


def innermost(error: BaseException) -> BaseException:
    """Return the original error; urllib3 wraps it several times."""
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
    # In urllib3 a refused connection (NewConnectionError) is a subclass of a timeout.
    if isinstance(error, HTTPTimeoutError) and not isinstance(error, NewConnectionError):
        return None
    nested = (argument for argument in error.args if isinstance(argument, Exception))
    return error.__cause__ or next(nested, None)


def _limited(pool: type[Any]) -> type[Any]:
    """Return a subclass of the pool class, also of a proxy's, with connections that have limits."""
    connection = type("LimitedConnection", (_LimitedConnection, pool.ConnectionCls), {})
    return type("LimitedPool", (pool,), {"ConnectionCls": connection})
