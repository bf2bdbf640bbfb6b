"""Limits in time and bytes for reading what a server sends.

A socket's timeout applies to a single read. A server that sends one byte now and then never exceeds
it, and neither does one that sends without end. Therefore everything that reads an answer (a status
line, headers, pieces of a body, also those of a proxy) reads within Limits, which count down over
all reads:

    request ──> Limits(the seconds of the call, bytes of an answer)
    watch   ──> renewed for each event: seconds of silence, bytes of an event
"""

import time


class TooLargeError(OSError):
    """An answer has more bytes than any valid answer."""


class Limits:
    """Time and bytes left for reading an answer. Use it from the thread that reads."""

    __slots__ = ("_bytes_left", "_ends", "_most_bytes")

    def __init__(self, *, seconds: float, most_bytes: int) -> None:
        self.renew(seconds=seconds, most_bytes=most_bytes)

    def renew(self, *, seconds: float, most_bytes: int) -> None:
        """Start counting from the beginning, with these limits."""
        self._ends = time.monotonic() + seconds
        self._most_bytes = most_bytes
        self._bytes_left = most_bytes

    def seconds_left(self) -> float:
        """Return the time for the next read.

        Raises:
            TimeoutError: No time is left.
        """
        left = self._ends - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left

    def count(self, number: int) -> None:
        """Count bytes that were read.

        Raises:
            TooLargeError: More bytes were read than allowed.
        """
        self._bytes_left -= number
        if self._bytes_left < 0:
            raise TooLargeError(f"answer: found more than {self._most_bytes} bytes")
