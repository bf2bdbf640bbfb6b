"""The events of one watch, each bounded in time and size."""

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from tensorfusion_dra.cluster import error_text, json_text
from tensorfusion_dra.driver.ports.cluster import UnreadableError

if TYPE_CHECKING:
    import urllib3

    from tensorfusion_dra.cluster.transport import Limits

_MOST_EVENT_BYTES: Final = 8 * 2**20
"""An API server takes objects of 3 MiB at most; as JSON some are a little larger."""
_PIECE_BYTES: Final = 64 * 2**10


class WatchStream:
    """The events of one watch; may be cut from another thread."""

    def __init__(
        self,
        response: "urllib3.BaseHTTPResponse",
        limits: "Limits",
        *,
        subject: str,
        silent_seconds: float,
    ) -> None:
        """Reads nothing yet.

        Args:
            limits: Of the response; renewed for each event.
            subject: For errors.
            silent_seconds: Until an event is here as a whole.
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
        """Ends the iteration, also one that waits for the server or that is just ending."""
        # The thread that iterates closes the response when the server has ended it. Then its
        # socket is closed already, or the response has let go of it before or within this call.
        with suppress(OSError, RuntimeError, ValueError, TypeError):
            self._response.shutdown()

    def _event(self, line: bytes) -> object:
        try:
            return json_text.parsed(line)
        except ValueError as error:
            said = error_text.one_line(error)
            raise UnreadableError(f"{self._subject}: found no JSON: {said}") from error

    def _renew(self) -> None:
        self._limits.renew(seconds=self._silent_seconds, most_bytes=_MOST_EVENT_BYTES)
