"""Requests over kept connections to one API server, each bounded as a whole in time and in bytes.

http.client speaks HTTP. A socket's timeout applies to a single read, and a server that sends one
byte now and then never exceeds it. So every answer, also a proxy's, is read from the socket by a
reader that counts down over all reads:

    request ──> Deadline(the seconds of the call)
    watch   ──> renewed for each event
"""

import io
import select
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from http.client import HTTPConnection, HTTPResponse, IncompleteRead
from threading import Lock
from types import SimpleNamespace
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

from tensorfusion_dra.cluster import error_text

_CONNECT_SECONDS: Final = 3.05
"""For each IP address that the server's name resolves to."""
_MAX_ANSWER_BYTES: Final = 64 * 2**20
"""The largest answer is the list of all slices of a large cluster."""
_PIECE_BYTES: Final = 64 * 2**10
_MAX_RETRY_AFTER_SECONDS: Final = 120.0
_REPEATABLE: Final = frozenset({"GET", "PUT", "DELETE"})
"""Methods that are safe to repeat if the server has already executed the first try."""
_PORTS: Final = {"http": 80, "https": 443}


class TooLargeError(OSError):
    """An answer has more bytes than any valid answer."""


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
    """An answer whose head was read. The body may be read once.

    Attributes:
        status: The HTTP status.
        deadline: For reading the rest. It may be renewed between pieces.
    """

    def __init__(
        self,
        response: HTTPResponse,
        connection: "Connection",
        keep: Callable[["Connection"], None],
    ) -> None:
        """Store the arguments.

        Args:
            keep: Called with the connection once the body was read to its end.
        """
        self._response = response
        self._connection = connection
        self._keep = keep
        self.status: int = response.status
        self.deadline: Deadline = connection.deadline

    def retry_after_seconds(self) -> float:
        """Return the delay that the server requests before the next request; 0 if none."""
        value = self._response.headers.get("Retry-After", "")
        # Kubernetes writes seconds. The other form, a date, would compare two clocks and is
        # ignored. Nine digits are enough: the result is capped, and Python refuses to convert very
        # long numbers.
        if not (value.isascii() and value.isdecimal()):
            return 0.0
        return min(float(value[:9]), _MAX_RETRY_AFTER_SECONDS)

    def pieces(self) -> Generator[bytes, None, None]:
        """Yield the body in pieces, as they arrive.

        The connection is kept for another request if the body is read to its end, and else closed.

        Raises:
            HTTPException: The connection ended before the body did, or it is no HTTP.
            OSError: The connection broke, or the time is over.
        """
        is_kept = False
        try:
            while piece := self._response.read1(_PIECE_BYTES):
                yield piece
            is_kept = not (self._response.length or self._response.will_close)
        finally:  # also if the caller stops before the end
            self._response.close()
            if is_kept:
                self._keep(self._connection)
            else:
                self._connection.close()
        if self._response.length:
            raise IncompleteRead(b"", self._response.length)

    def body(self, *, cut_at: int | None = None) -> bytes:
        """Return the body, or its beginning.

        Args:
            cut_at: Stop reading after this many bytes; None reads all.

        Raises:
            TooLargeError: There were more bytes than any valid answer has.
            HTTPException, OSError: See pieces().
        """
        found = bytearray()
        for piece in self.pieces():
            found += piece
            if cut_at is not None and len(found) >= cut_at:
                return bytes(found[:cut_at])
            if len(found) > _MAX_ANSWER_BYTES:
                raise TooLargeError(f"answer: found more than {_MAX_ANSWER_BYTES} bytes")
        return bytes(found)

    def cut(self) -> None:
        """End the body for the thread that reads it; another thread may call this at any time."""
        # The reader may close the connection before or during this call.
        with suppress(OSError):
            # Not SSLSocket's own method, after which a reader would get the encrypted bytes.
            socket.socket.shutdown(self._connection.reader.source, socket.SHUT_RDWR)


class Connections:
    """The connections to one API server with one login. Any thread may send.

    There are as many as were ever in use at a time: at most 64 for the kubelet's calls (see
    runtime/calls.py), and one for each loop. An API server closes those that are idle for 90 s.

    Attributes:
        credentials: Of every request.
    """

    def __init__(
        self,
        url: str,
        connect: Callable[[], "Connection"],
        credentials: Credentials,
        *,
        user_agent: str,
    ) -> None:
        """Create the first connection; nothing is sent yet.

        Args:
            url: The server's URL, which may end with a path.
            connect: Returns a new connection.

        Raises:
            ValueError: A URL is malformed.
        """
        self.credentials: Final = credentials
        self._connect: Final = connect
        self._guard = Lock()  # guards both below
        self._idle = [connect()]
        self._is_closed = False
        server = urlsplit(url)
        self._prefix: Final = server.path.rstrip("/")
        self._headers: Final = {
            "Host": server.netloc,
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
            HTTPException: The answer is no HTTP, or a proxy's.
            OSError: There was no connection, it broke, or its certificate is not trusted.
            RetryableError: The token cannot be read or renewed.
            ValueError: The request cannot be written.
        """
        parameters = f"?{urlencode(query, quote_via=quote)}" if query else ""
        target = f"{self._prefix}{path}{parameters}"
        deadline = Deadline(seconds)
        all_headers = {
            **self._headers,
            **headers,
            **self.credentials.header(wait_seconds=seconds),
        }

        may_repeat = method in _REPEATABLE
        while True:
            connection = self._next()
            connection.deadline = deadline
            try:
                if connection.sock is not None:
                    connection.sock.settimeout(deadline.seconds_left())
                connection.request(method, target, content, all_headers)
                return Answer(connection.getresponse(), connection, self._keep)
            except BaseException as error:
                connection.close()
                if not (may_repeat and isinstance(error, error_text.ENDED)):
                    raise
                may_repeat = False

    def _next(self) -> "Connection":
        """Return an idle connection that its other end has not closed, or else a new one."""
        while True:
            with self._guard:
                connection = self._idle.pop() if self._idle else self._connect()
            if not connection.has_ended():
                return connection
            connection.close()

    def _keep(self, connection: "Connection") -> None:
        with self._guard:
            self._idle.append(connection)
            if self._is_closed:
                connection.close()

    def close(self) -> None:
        """Close the idle connections, and each other one when its answer was read."""
        with self._guard:
            self._is_closed = True
            for connection in self._idle:
                connection.close()


class _Reader(io.RawIOBase):
    """Raw reader of a socket, until a deadline."""

    def __init__(self, source: socket.socket, deadline: Deadline) -> None:
        self.source = source
        self._raw = source.makefile("rb", buffering=0)
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self.source.settimeout(self._deadline.seconds_left())
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class Connection(HTTPConnection):
    """A connection to an API server, which its first request opens.

    Attributes:
        deadline: Of its present request.
        reader: Of the present answer.
    """

    deadline: Deadline

    def __init__(
        self, url: str, tls: Callable[[], ssl.SSLContext], *, tls_name: str = "", proxy: str = ""
    ) -> None:
        """Store the arguments; nothing is opened yet.

        Args:
            url: The server's URL.
            tls: Creates the TLS context, from the files as they are now. Each connection has one of
                its own: OpenSSL crashes if one is changed while another thread uses it.
            tls_name: The name in the server's certificate; "" for the one in the URL.
            proxy: URL of an HTTP proxy, which is asked for a tunnel; "" for none.

        Raises:
            ValueError: A URL is malformed.
        """
        server, first = urlsplit(url), urlsplit(proxy or url)
        if server.scheme not in _PORTS or not server.hostname:
            raise ValueError(f"server: found {url!r}, expected an http or https URL")
        if proxy and (first.scheme != "http" or not first.hostname):
            # Without the rest of the URL, which may have a password.
            raise ValueError(f"proxy: found {first.scheme!r}, expected http://HOST:PORT")
        super().__init__(str(first.hostname), first.port or _PORTS[first.scheme])
        self._tls = tls if server.scheme == "https" else None
        self._tls_name = tls_name or server.hostname
        if proxy:
            self.set_tunnel(server.hostname, server.port or _PORTS[server.scheme])

    def connect(self) -> None:
        self.timeout = min(_CONNECT_SECONDS, self.deadline.seconds_left())
        super().connect()
        self.sock.settimeout(self.deadline.seconds_left())
        if self._tls is not None:
            self.sock = self._tls().wrap_socket(self.sock, server_hostname=self._tls_name)

    def response_class(self, source: socket.socket, **more: Any) -> HTTPResponse:  # type: ignore[override]
        # http.client calls this in place of the class that it usually finds here, for a proxy's
        # answer too.
        self.reader = reader = _Reader(source, self.deadline)
        bounded = SimpleNamespace(makefile=lambda _mode: io.BufferedReader(reader))
        return HTTPResponse(bounded, **more)  # type: ignore[arg-type]

    def has_ended(self) -> bool:
        """Return True if the other end has closed the idle connection, or has sent anything."""
        poll = select.poll()
        if self.sock is not None:
            poll.register(self.sock, select.POLLIN)
        return bool(poll.poll(0))

    def __del__(self) -> None:
        with suppress(AttributeError):  # __init__() has raised
            self.close()
