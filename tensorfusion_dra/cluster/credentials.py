"""The credentials that each request carries: a token, which may be renewed, or a password."""

import re
import time
from collections import deque
from collections.abc import Callable
from threading import Lock
from typing import Final

_ASK_SECONDS: Final = 1.0
"""Between two questions for the credentials. The client library renews a service account's token
after a minute and others five minutes before they expire, so a second more makes no difference."""
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")


class Credentials:
    """The Authorization header of requests. Any thread may ask for it."""

    def __init__(self, read: Callable[[], str | None]) -> None:
        """Store the argument; nothing is read yet.

        Args:
            read: Returns the header's value, None if requests carry no credentials. It may renew a
                token, and take its time for it.
        """
        self._read = read
        self._reading = Lock()  # guards all below
        self._line = b""
        self._ask_at = -1.0
        self._seen: deque[str] = deque(maxlen=2)

    def line(self, *, wait_seconds: float) -> bytes:
        """Return the header as a line of a request; empty if requests carry no credentials.

        Args:
            wait_seconds: While another thread renews the token.

        Raises:
            TimeoutError: The other thread was not ready within the time.
            ValueError: The token has characters that no token has.
        """
        if time.monotonic() < self._ask_at:
            return self._line
        if not self._reading.acquire(timeout=wait_seconds):
            raise TimeoutError
        try:
            if time.monotonic() >= self._ask_at:
                self._line = self._line_of((self._read() or "").strip())
                self._ask_at = time.monotonic() + _ASK_SECONDS
            return self._line
        finally:
            self._reading.release()

    def secrets(self) -> frozenset[str]:
        """Return the latest credentials, which must never appear in a log."""
        return frozenset(value.rpartition(" ")[2] for value in tuple(self._seen))

    def _line_of(self, value: str) -> bytes:
        if not value:
            return b""
        if value not in self._seen:
            self._seen.append(value)
        if _CONTROL.search(value):
            raise ValueError("credentials: found a control character in the token")
        return f"Authorization: {value}\r\n".encode("latin-1")
