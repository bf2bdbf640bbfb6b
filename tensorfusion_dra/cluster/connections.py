"""Connections to one server that stay open between requests.

urllib3 opens them: it resolves names, speaks to proxies and TLS, and sets the options of sockets.
What is sent and received on them is in transport.py.
"""

import io
import select
import socket
import time
import weakref
from http.client import HTTPException, HTTPResponse
from threading import Lock
from typing import Any, Final

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError, MaxRetryError, NewConnectionError
from urllib3.exceptions import TimeoutError as HTTPTimeoutError
from urllib3.util.proxy import connection_requires_http_tunnel
from urllib3.util.ssl_match_hostname import CertificateError

from tensorfusion_dra.cluster import error_text
from tensorfusion_dra.cluster.limits import Limits, TooLargeError
from tensorfusion_dra.cluster.tls import Tls

_CONNECT_SECONDS: Final = 3.05
"""For each IP address that the server's name resolves to."""
_MOST_PROXY_BYTES: Final = 64 * 2**10
_MOST_IDLE: Final = 64
"""As many as the kubelet's calls that may read at a time; see runtime/waiting_calls.py."""
_IDLE_SECONDS: Final = 90.0
"""After a burst of calls, its connections do not stay for ever: a server has thousands of nodes."""


class UnreachableError(OSError):
    """No connection to the server could be opened."""


class Connection:
    """An open connection, for one request at a time.

    Attributes:
        socket: Connected, with TLS if the server has it.
        idle_since: When its last request ended, in monotonic time.
    """

    __slots__ = ("_opened", "_poll", "idle_since", "socket")

    def __init__(self, opened: HTTPConnection) -> None:
        self._opened = opened
        self.socket: Any = opened.sock
        self._poll = select.poll()
        self._poll.register(self.socket, select.POLLIN)
        self.idle_since = 0.0

    def is_dropped(self) -> bool:
        """Return True if the server closed the connection, or sent something unexpected."""
        return bool(self._poll.poll(0))

    def close(self) -> None:
        """Close the connection; closing again has no effect."""
        self._opened.close()


class Connections:
    """The connections to one server. Any thread may take one."""

    def __init__(self, manager: urllib3.PoolManager, url: str, tls: Tls) -> None:
        """Store the arguments; nothing is opened yet.

        Args:
            manager: Has the settings for proxies and sockets.
            url: The URL of the server.

        Raises:
            ValueError: The URL is malformed.
        """
        self._tls = tls
        classes = manager.pool_classes_by_scheme
        manager.pool_classes_by_scheme = {name: _limited(classes[name]) for name in classes}
        self._pool = manager.connection_from_url(url)
        scheme = urllib3.util.parse_url(url).scheme
        self._tunnels = connection_requires_http_tunnel(
            self._pool.proxy, self._pool.proxy_config, scheme
        )
        self.forwards: Final = self._pool.proxy is not None and not self._tunnels
        """True if a proxy passes the requests on itself, which then have the whole URL."""
        self._guard = Lock()  # guards _idle and _is_closed; never held while waiting
        self._idle: list[Connection] = []
        self._is_closed = False
        weakref.finalize(self, _close_all, self._idle)

    def take(self, *, seconds: float) -> Connection:
        """Return the connection that was used last, or a new one if none is idle.

        Raises:
            The same errors as open().
        """
        while True:
            with self._guard:
                idle = self._idle.pop() if self._idle else None
            if idle is None:
                return self.open(seconds=seconds)
            if not idle.is_dropped():
                return idle
            idle.close()

    def open(self, *, seconds: float) -> Connection:
        """Return a new connection.

        Args:
            seconds: The longest time. Each address of the server's name may take 3 seconds of it.

        Raises:
            UnreachableError: No connection could be opened, or the server's certificate is not
                trusted.
            TooLargeError: A proxy answered with too many bytes.
            TimeoutError: The server did not answer within the time.
            ConnectionError: The server closed the connection at once.
        """
        opened = self._pool._new_conn()
        opened.timeout = min(_CONNECT_SECONDS, seconds)
        try:
            if isinstance(opened, HTTPSConnection):
                opened.ssl_context = self._tls.context()
            if self._tunnels:
                self._pool._prepare_proxy(opened)
            if opened.is_closed:
                opened.connect()
            self._pool._validate_conn(opened)  # warns if the certificate was not verified
        except BaseException as error:
            opened.close()
            if isinstance(error, HTTPError | HTTPException | CertificateError):
                raise _reason(error) from error
            raise
        return Connection(opened)  # type: ignore[arg-type]  # its protocol has no sock

    def give_back(self, connection: Connection) -> None:
        """Keep a connection for the next request."""
        connection.idle_since = now = time.monotonic()
        with self._guard:
            if not self._is_closed and len(self._idle) < _MOST_IDLE:
                self._idle.append(connection)
                connection = self._idle[0]
                if now - connection.idle_since < _IDLE_SECONDS:
                    return
                del self._idle[0]
        connection.close()

    def close(self) -> None:
        """Close the idle connections, and each other one when it is given back."""
        with self._guard:
            self._is_closed = True
            idle = [*self._idle]
            self._idle.clear()
        _close_all(idle)


def _close_all(connections: list[Connection]) -> None:
    for connection in connections:
        connection.close()


def _reason(error: BaseException) -> OSError:
    """Return the error inside an error of urllib3, which wraps it several times."""
    found = error
    for _ in range(10):
        inner = _inner(found)
        if inner is None:
            break
        found = inner
    if isinstance(found, HTTPTimeoutError | TimeoutError):
        return TimeoutError()
    if isinstance(found, TooLargeError):
        return found
    return UnreachableError(error_text.cause(found))


def _inner(error: BaseException) -> BaseException | None:
    if isinstance(error, MaxRetryError):
        return error.reason
    # In urllib3 a refused connection (NewConnectionError) is a subclass of a timeout.
    if isinstance(error, HTTPTimeoutError) and not isinstance(error, NewConnectionError):
        return None
    nested = (argument for argument in error.args if isinstance(argument, Exception))
    return error.__cause__ or next(nested, None)


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
    """Mixin for urllib3's connections that makes them read a proxy's answer within limits."""

    def response_class(self, source: socket.socket, **more: Any) -> HTTPResponse:
        """Return a response that reads within limits.

        http.client calls this method in place of the class that it usually finds here. At that time
        the socket's timeout is set.
        """
        limits = Limits(seconds=source.gettimeout() or 0.0, most_bytes=_MOST_PROXY_BYTES)
        reader = _Source(_LimitedReader(source, limits))
        return HTTPResponse(reader, **more)  # type: ignore[arg-type]


def _limited(pool: type[Any]) -> type[Any]:
    """Return a subclass of the pool class, also of a proxy's, with connections that have limits."""
    connection = type("LimitedConnection", (_LimitedConnection, pool.ConnectionCls), {})
    return type("LimitedPool", (pool,), {"ConnectionCls": connection})
