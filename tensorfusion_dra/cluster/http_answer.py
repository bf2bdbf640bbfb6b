"""One answer of an HTTP/1 server, read from a socket within limits.

An API server and the proxies before it use a small part of HTTP. This reader accepts that part:

    head    a status line and headers of at most 64 KiB; lines end with CR LF
    body    of Content-Length bytes, in chunks, or up to the end of the connection

and refuses all else by name: folded headers, other transfer codings than chunked, two statements of
the body's length, a change of the protocol. Interim answers (100 to 199) before the answer are
skipped. How the bytes are cut into pieces on their way makes no difference.

A connection may serve another request only if its server keeps it open, the body has an end of its
own and was read up to it, and no further byte has arrived.
"""

import re
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final, Protocol

from tensorfusion_dra.cluster.http_head import Head, MalformedAnswerError, parse_head
from tensorfusion_dra.cluster.limits import Limits

_PIECE_BYTES: Final = 64 * 2**10
_MOST_HEAD_BYTES: Final = 64 * 2**10
_MOST_LINE_BYTES: Final = 4 * 2**10
"""The size of a chunk, with extensions that nobody uses, or a header after the last chunk."""
_LONGEST_RETRY_AFTER_SECONDS: Final = 120.0
_END_OF_LINE: Final = b"\r\n"
_END_OF_HEAD: Final = b"\r\n\r\n"

_CHUNK_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,16})[ \t]*(?:;[^\r\n\0]*)?")
_SWITCHED: Final = 101


class ConnectionEndedError(ConnectionError):
    """The server closed the connection before the end of its answer."""

    def __init__(self) -> None:
        super().__init__("connection closed before the end of the answer")


class Source(Protocol):
    """The part of a socket that is needed here."""

    def settimeout(self, value: float, /) -> object: ...

    def recv(self, most: int, /) -> bytes: ...

    def shutdown(self, how: int, /) -> object: ...


class Answer:
    """An answer whose head was read. Read the body once, then close the answer.

    Attributes:
        status: The HTTP status.
        headers: See Head.
        limits: The limits for reading the rest. They may be renewed between pieces.
    """

    __slots__ = ("_ended", "_head", "_incoming", "_release", "headers", "limits", "status")

    def __init__(self, source: Source, limits: Limits, release: Callable[[bool], None]) -> None:
        """Read the head.

        Args:
            release: Called once by close(). Its argument is True if the connection may serve
                another request. It is not called if reading the head fails.

        Raises:
            MalformedAnswerError: The head is malformed, or has a form that is refused.
            ConnectionEndedError: The connection ended before the head did.
            TooLargeError: There were more bytes than allowed.
            OSError: No more bytes could be read within the time.
        """
        self._incoming = _Incoming(source, limits)
        self._head = _head(self._incoming)
        self._release: Callable[[bool], None] | None = release
        self._ended = False
        self.status = self._head.status
        self.headers = self._head.headers
        self.limits = limits

    def retry_after_seconds(self) -> float:
        """Return the delay that the server requests before the next request; 0 if none."""
        value = self.headers.get("retry-after", "")
        # Kubernetes writes seconds. The other form, a date, would compare two clocks and is
        # ignored. Nine digits are enough: the result is capped, and Python refuses to convert very
        # long numbers.
        if not (value.isascii() and value.isdecimal()):
            return 0.0
        return min(float(value[:9]), _LONGEST_RETRY_AFTER_SECONDS)

    def pieces(self) -> Iterator[bytes]:
        """Yield the body in pieces, as they arrive.

        Raises:
            MalformedAnswerError: The chunks are malformed.
            ConnectionEndedError: The connection ended before the body did.
            TooLargeError: There were more bytes than allowed.
            OSError: No more bytes could be read within the time.
        """
        if self._head.is_chunked:
            yield from self._incoming.chunks()
        elif self._head.length is None:
            yield from self._incoming.rest()
        else:
            yield from self._incoming.exactly(self._head.length)
        self._ended = True

    def body(self, *, cut_at: int | None = None) -> bytes:
        """Return the body, or its beginning, and close the answer.

        Args:
            cut_at: Stop reading after this many bytes; None reads all.

        Raises:
            The same errors as pieces().
        """
        found = bytearray()
        try:
            for piece in self.pieces():
                found += piece
                if cut_at is not None and len(found) >= cut_at:
                    del found[cut_at:]
                    break
        finally:
            self.close()
        return bytes(found)

    def cut(self) -> None:
        """End the body for the thread that reads it; another thread may call this at any time."""
        # The reader may close the answer before or during this call. Then the socket is closed, or
        # it is idle, and the connection is dropped before the next request.
        with suppress(OSError):
            if self._release is not None:
                self._incoming.source.shutdown(socket.SHUT_RD)

    def close(self) -> None:
        """Release the connection; closing again has no effect."""
        release, self._release = self._release, None
        if release is not None:
            release(self._ended and self._head.stays_open and not self._incoming.waiting)


def _head(incoming: "_Incoming") -> Head:
    while True:
        head = parse_head(incoming.until(_END_OF_HEAD, most=_MOST_HEAD_BYTES))
        if head.status == _SWITCHED:
            raise MalformedAnswerError("answer: found status 101, expected no change of protocol")
        if head.status >= 200:
            return head


class _Incoming:
    """The bytes that arrive on a connection, within limits.

    Attributes:
        source: The connection's socket.
        waiting: Bytes that have arrived and were not used yet.
    """

    __slots__ = ("_limits", "source", "waiting")

    def __init__(self, source: Source, limits: Limits) -> None:
        self.source = source
        self._limits = limits
        self.waiting = bytearray()

    def until(self, mark: bytes, *, most: int) -> bytes:
        """Return the bytes before a mark, and use up the mark too."""
        searched = 0
        while (end := self.waiting.find(mark, searched)) < 0 and len(self.waiting) <= most:
            searched = max(0, len(self.waiting) - len(mark) + 1)
            self._fill()
        if not 0 <= end <= most:
            raise MalformedAnswerError(f"answer: found more than {most} bytes in a head or line")
        found = bytes(self.waiting[:end])
        del self.waiting[: end + len(mark)]
        return found

    def exactly(self, length: int) -> Iterator[bytes]:
        """Yield this number of bytes, in pieces."""
        while length > 0:
            if not self.waiting:
                self._fill()
            piece = bytes(self.waiting[:length])
            del self.waiting[:length]
            length -= len(piece)
            yield piece

    def chunks(self) -> Iterator[bytes]:
        """Yield the content of all chunks, in pieces."""
        while True:
            line = self.until(_END_OF_LINE, most=_MOST_LINE_BYTES)
            size = _CHUNK_SIZE.fullmatch(line)
            if size is None:
                raise MalformedAnswerError("answer: found no size of a chunk, expected one")
            length = int(size[1], 16)
            if length == 0:
                break
            yield from self.exactly(length)
            if self.until(_END_OF_LINE, most=_MOST_LINE_BYTES):
                raise MalformedAnswerError("answer: found a chunk that is longer than its size")
        while self.until(_END_OF_LINE, most=_MOST_LINE_BYTES):
            pass  # headers after the body

    def rest(self) -> Iterator[bytes]:
        """Yield all bytes up to the end of the connection."""
        yield bytes(self.waiting)
        self.waiting.clear()
        while piece := self._receive():
            yield piece

    def _fill(self) -> None:
        piece = self._receive()
        if not piece:
            raise ConnectionEndedError
        self.waiting += piece

    def _receive(self) -> bytes:
        """Return the next bytes; empty at the end of the connection."""
        self.source.settimeout(self._limits.seconds_left())
        piece = self.source.recv(_PIECE_BYTES)
        self._limits.count(len(piece))
        return piece
