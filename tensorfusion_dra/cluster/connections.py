"""Requests over kept connections to one API server, each bounded as a whole in time and in bytes.

urllib3 keeps the connections, notices dropped ones, speaks to proxies and TLS, and reads HTTP. Its
timeouts apply to a single read, and a server that sends one byte now and then never exceeds them.
So every answer, also a proxy's, is read from the socket by a reader that counts down over all
reads:

    request ──> Deadline(the seconds of the call)
    watch   ──> renewed for each event
"""

import io
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http.client import HTTPException, HTTPResponse
from threading import Lock
from types import SimpleNamespace
from typing import Any, Final
from urllib.parse import quote, urlencode

import urllib3
from urllib3.exceptions import HTTPError
from urllib3.exceptions import IncompleteRead as IncompleteAnswer
from urllib3.exceptions import TimeoutError as HTTPTimeoutError
from urllib3.util import Retry, Timeout, create_urllib3_context, parse_url

from tensorfusion_dra.cluster import error_text
from tensorfusion_dra.cluster.api import TooLargeError

MOST_IDLE: Final = 80
"""Connections that are kept. The kubelet's calls read over at most 64 at a time (see
runtime/calls.py), and each loop has one. An API server closes one that is idle for 90 s."""

_CONNECT_SECONDS: Final = 3.05
"""For each IP address that the server's name resolves to."""
_MOST_ANSWER_BYTES: Final = 64 * 2**20
"""The largest answer is the list of all slices of a large cluster."""
_PIECE_BYTES: Final = 64 * 2**10
_LONGEST_RETRY_AFTER_SECONDS: Final = 120.0
_REPEATABLE: Final = frozenset({"GET", "PUT", "DELETE"})
"""Methods that are safe to repeat if the server has already executed the first try."""
_ONCE: Final = Retry(total=False)
_ENDED: Final = (
    *(BrokenPipeError, ConnectionResetError, ConnectionAbortedError),
    *(ssl.SSLEOFError, ssl.SSLZeroReturnError, IncompleteAnswer),
)
"""Errors of a connection that its other end has closed."""


class ConnectionEndedError(ConnectionError):
    """The server closed the connection before the end of its answer."""


class Deadline:
    """Time left for reading an answer. Use it from the thread that reads."""

    def __init__(self, seconds: float) -> None:
        self.renew(seconds)

    def renew(self, seconds: float) -> None:
        """Start counting from the beginning."""
        self._ends = time.monotonic() + seconds

    def seconds_left(self) -> float:
        """Return the time for the next read.

        Raises:
            TimeoutError: No time is left.
        """
        left = self._ends - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left


class Credentials:
    """The Authorization header of requests. Any thread may ask for it."""

    def __init__(self, read: Callable[[], str | None]) -> None:
        """Store the argument; nothing is read yet.

        Args:
            read: Returns the header's value, None if requests carry no credentials. It may renew a
                token, and take its time for it.
        """
        self._read = read
        self._reading = Lock()  # guards _seen, and calls of _read
        self._seen: deque[str] = deque(maxlen=2)

    def header(self, *, wait_seconds: float) -> dict[str, str]:
        """Return the header; empty if requests carry no credentials.

        Args:
            wait_seconds: While another thread renews the token.

        Raises:
            TimeoutError: The other thread was not ready within the time.
            RetryableError: The token cannot be read or renewed.
            ValueError: The token has characters that no token has.
        """
        if not self._reading.acquire(timeout=wait_seconds):
            raise TimeoutError
        try:
            value = (self._read() or "").strip()
            if value and value not in self._seen:
                self._seen.append(value)
        finally:
            self._reading.release()
        if not value.isprintable():
            raise ValueError("credentials: found a control character in the token")
        return {"Authorization": value} if value else {}

    def secrets(self) -> frozenset[str]:
        """Return the latest credentials, which must never appear in a log."""
        return frozenset(value.rpartition(" ")[2] for value in tuple(self._seen))


class Answer:
    """An answer whose head was read. Read the body once, then close the answer.

    Attributes:
        status: The HTTP status.
        deadline: For reading the rest. It may be renewed between pieces.
    """

    def __init__(self, response: urllib3.BaseHTTPResponse) -> None:
        self._response = response
        self.status: int = response.status
        self.deadline: Deadline = response.connection.deadline  # type: ignore[union-attr]

    def retry_after_seconds(self) -> float:
        """Return the delay that the server requests before the next request; 0 if none."""
        value = self._response.headers.get("Retry-After", "")
        # Kubernetes writes seconds. The other form, a date, would compare two clocks and is
        # ignored. Nine digits are enough: the result is capped, and Python refuses to convert very
        # long numbers.
        if not (value.isascii() and value.isdecimal()):
            return 0.0
        return min(float(value[:9]), _LONGEST_RETRY_AFTER_SECONDS)

    def pieces(self) -> Iterator[bytes]:
        """Yield the body in pieces, as they arrive.

        Raises:
            OSError: The connection ended before the body did, or the time is over.
        """
        while True:
            with _translated():
                piece = self._response.read1(_PIECE_BYTES, decode_content=False)
            if not piece:
                return
            yield piece

    def body(self, *, cut_at: int | None = None) -> bytes:
        """Return the body, or its beginning, and close the answer.

        Args:
            cut_at: Stop reading after this many bytes; None reads all.

        Raises:
            TooLargeError: There were more bytes than any valid answer has.
            OSError: See pieces().
        """
        found = bytearray()
        try:
            for piece in self.pieces():
                found += piece
                if cut_at is not None and len(found) >= cut_at:
                    return bytes(found[:cut_at])
                if len(found) > _MOST_ANSWER_BYTES:
                    raise TooLargeError(f"answer: found more than {_MOST_ANSWER_BYTES} bytes")
        finally:
            self.close()
        return bytes(found)

    def cut(self) -> None:
        """End the body for the thread that reads it; another thread may call this at any time."""
        # The reader may close the answer before or during this call.
        with suppress(OSError, ValueError, RuntimeError):
            self._response.shutdown()

    def close(self) -> None:
        """Close the connection unless the body was read to its end; then it is kept."""
        self._response.close()


class Connections:
    """The connections to one API server with one login. Any thread may send.

    Attributes:
        credentials: Of every request.
    """

    def __init__(
        self,
        url: str,
        manager: urllib3.PoolManager,
        credentials: Credentials,
        *,
        user_agent: str,
    ) -> None:
        """Store the arguments; nothing is opened yet.

        Args:
            url: The server's URL, which may end with a path.
            manager: Has the settings for proxies, TLS and sockets.

        Raises:
            ValueError: The URL is malformed.
        """
        self.credentials: Final = credentials
        pools = manager.pool_classes_by_scheme
        manager.pool_classes_by_scheme = {name: _bounded(pools[name]) for name in pools}
        self._pool: Final = manager.connection_from_url(url)
        server = parse_url(url)
        path = (server.path or "").rstrip("/")
        # A proxy passes plain requests on itself; through it, TLS goes in a tunnel.
        is_forwarded = manager.proxy is not None and server.scheme == "http"
        self._prefix: Final = f"http://{server.netloc}{path}" if is_forwarded else path
        self._headers: Final = {
            "Host": str(server.netloc),
            "User-Agent": user_agent,
            "Accept": "application/json",
            "Accept-Encoding": "identity",
        }

    def send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None,
        content: bytes | None,
        headers: Mapping[str, str],
        seconds: float,
    ) -> Answer:
        """Send a request and return the answer; the caller reads its body in the remaining time.

        A server may just have closed an idle connection. Then the request is repeated once, in the
        remaining time. Error statuses, 429 included, are returned to the caller, which has its own
        back-off.

        Args:
            seconds: For the whole request, including the body of the answer. If the server's name
                has several addresses that are all dead, each may take 3 seconds, and so may a
                proxy.

        Raises:
            TimeoutError: There was no answer within the time.
            OSError: There was no connection, it broke, or its certificate is not trusted.
            RetryableError: The token cannot be read or renewed.
            ValueError: The request cannot be written.
        """
        target = f"{self._prefix}{path}"
        if query:
            target = f"{target}?{urlencode(query, quote_via=quote)}"
        deadline = Deadline(seconds)
        credentials = self.credentials.header(wait_seconds=seconds)

        def once() -> Answer:
            left = deadline.seconds_left()
            timeout = Timeout(connect=min(_CONNECT_SECONDS, left), total=left)
            with _translated():
                response = self._pool.urlopen(
                    method,
                    target,
                    content,
                    {**self._headers, **headers, **credentials},
                    _ONCE,
                    redirect=False,
                    assert_same_host=False,
                    timeout=timeout,
                    preload_content=False,
                )
            return Answer(response)

        try:
            return once()
        except ConnectionEndedError:
            if method not in _REPEATABLE:
                raise
        return once()

    def close(self) -> None:
        """Close the idle connections, and each other one when its answer is closed."""
        self._pool.close()


class _Reader(io.RawIOBase):
    """Raw reader of a socket, until a deadline."""

    def __init__(self, source: socket.socket, deadline: Deadline) -> None:
        self._socket = source
        self._raw = source.makefile("rb", buffering=0)
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._socket.settimeout(self._deadline.seconds_left())
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


def _bounded(pool: type[Any]) -> type[Any]:
    """Return a subclass of a pool class whose connections have deadlines and a TLS context each."""

    class Bounded(pool.ConnectionCls):  # type: ignore[misc, name-defined] # known at run time only
        def connect(self) -> None:
            if hasattr(self, "ssl_context"):
                # urllib3 loads the certificates into the context. If two threads did that with one
                # context, OpenSSL would free what the other one is using, and the process crash.
                self.ssl_context = context = create_urllib3_context(cert_reqs=self.cert_reqs)
                # From Python 3.13 on, certificates must follow RFC 5280 strictly by default.
                # Cluster CAs need not: every Go client accepts one without key usage, and so does
                # this one. Chain, names and dates are still verified.
                context.verify_flags &= ~ssl.VERIFY_X509_STRICT
                if not self.ca_certs:
                    context.load_default_certs()
            super().connect()

        def response_class(self, source: socket.socket, **more: Any) -> HTTPResponse:
            # http.client calls this in place of the class that it usually finds here, for a proxy's
            # answer too. At that time the socket's timeout is the time that is left.
            self.deadline = Deadline(source.gettimeout() or 0.0)
            reader = _Reader(source, self.deadline)
            bounded = SimpleNamespace(makefile=lambda _mode: io.BufferedReader(reader))
            return HTTPResponse(bounded, **more)  # type: ignore[arg-type]

    return type("BoundedPool", (pool,), {"ConnectionCls": Bounded})


@contextmanager
def _translated() -> Iterator[None]:
    """Raise the error inside an error of urllib3, which wraps it several times."""
    try:
        yield
    except (HTTPError, HTTPException, OSError) as error:
        cause = _cause(error)
        if isinstance(cause, TimeoutError | HTTPTimeoutError):
            raise TimeoutError from error
        if isinstance(cause, _ENDED):
            raise ConnectionEndedError("connection closed before the end of the answer") from error
        raise OSError(error_text.cause(cause)) from error


def _cause(error: BaseException) -> BaseException:
    nested = (argument for argument in error.args if isinstance(argument, Exception))
    inner = error.__cause__ or next(nested, None)
    return error if inner is None or isinstance(error, _ENDED) else _cause(inner)
