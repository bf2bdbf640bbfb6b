"""The events of one watch, each bounded in time and size."""

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from tensorfusion_dra.cluster import error_text, json_text
from tensorfusion_dra.driver.ports.cluster import UnreadableError

if TYPE_CHECKING:
    import urllib3

    from tensorfusion_dra.cluster.limits import Limits

_MOST_EVENT_BYTES: Final = 8 * 2**20
"""An API server accepts objects of at most 3 MiB. As JSON, some are a little larger."""
_PIECE_BYTES: Final = 64 * 2**10


class WatchStream:
    """The events of one watch. Another thread may end it with cut()."""

    def __init__(
        self,
        response: "urllib3.BaseHTTPResponse",
        limits: "Limits",
        *,
        subject: str,
        silent_seconds: float,
    ) -> None:
        """Store the arguments; nothing is read yet.

        Args:
            limits: The limits of the response; renewed for each event.
            subject: Prefix of error texts.
            silent_seconds: Longest wait for one complete event.
        """
        self._response = response
        self._limits = limits
        self._subject = subject
        self._silent_seconds = silent_seconds

    def __iter__(self) -> Iterator[dict[str, Any]]:
        self._renew()
        rest = bytearray()
        for chunk in self._response.stream(_PIECE_BYTES, decode_content=False):
            rest += chunk
            if b"\n" not in chunk:
                continue
            *lines, last = bytes(rest).split(b"\n")
            rest = bytearray(last)
            for line in filter(bytes.strip, lines):
                event = self._event(line)
                self._renew()
                if isinstance(event, dict):
                    yield event

    def cut(self) -> None:
        """End the iteration, even while it waits for the server or is just ending."""
        # When the server ends the watch, the iterating thread closes the response. Then the socket
        # is closed already, or the response drops it before or during this call.
        with suppress(OSError, RuntimeError, ValueError, TypeError):
            self._response.shutdown()

    def _event(self, line: bytes) -> object:
        try:
            return json_text.parse(line)
        except ValueError as error:
            text = error_text.one_line(error)
            raise UnreadableError(f"{self._subject}: found no JSON: {text}") from error

    def _renew(self) -> None:
        self._limits.renew(seconds=self._silent_seconds, most_bytes=_MOST_EVENT_BYTES)
