"""The events of one watch, each bounded in time and size."""

from collections.abc import Callable, Iterator
from typing import Any, Final

from tensorfusion_dra.cluster import error_text
from tensorfusion_dra.cluster.http_answer import Answer
from tensorfusion_dra.core.kubernetes import json_text
from tensorfusion_dra.driver.ports.cluster import UnreadableError

_MOST_EVENT_BYTES: Final = 8 * 2**20
"""An API server accepts objects of at most 3 MiB. As JSON, some are a little larger."""


class WatchStream:
    """The events of one watch. Another thread may end it with cut()."""

    def __init__(
        self,
        answer: Answer,
        *,
        subject: str,
        silent_seconds: float,
        on_event: Callable[[], None] = lambda: None,
    ) -> None:
        """Store the arguments; nothing is read yet.

        Args:
            answer: Its limits are renewed for each event.
            subject: Prefix of error texts.
            silent_seconds: Longest wait for one complete event.
            on_event: Called for each complete event.
        """
        self._answer = answer
        self._subject = subject
        self._silent_seconds = silent_seconds
        self._on_event = on_event

    def __iter__(self) -> Iterator[dict[str, Any]]:
        self._renew()
        rest = bytearray()
        for piece in self._answer.pieces():
            rest += piece
            if b"\n" not in piece:
                continue
            *lines, last = bytes(rest).split(b"\n")
            rest = bytearray(last)
            for line in filter(bytes.strip, lines):
                event = self._event(line)
                self._renew()
                self._on_event()
                if isinstance(event, dict):
                    yield event

    def cut(self) -> None:
        """End the iteration, even while it waits for the server or is just ending."""
        self._answer.cut()

    def _event(self, line: bytes) -> object:
        try:
            return json_text.parse(line)
        except ValueError as error:
            text = error_text.one_line(error)
            raise UnreadableError(f"{self._subject}: found no JSON: {text}") from error

    def _renew(self) -> None:
        self._answer.limits.renew(seconds=self._silent_seconds, most_bytes=_MOST_EVENT_BYTES)
