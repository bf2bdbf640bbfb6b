"""The line that shows the current step of a simulation."""

from typing import Final, TextIO

_CLEAR: Final = "\r\x1b[K"


class Progress:
    """A line on the stream that shows the current step; nothing if that is not a terminal."""

    def __init__(self, stream: TextIO) -> None:
        self._stream: Final = stream
        self._live: Final = stream.isatty()
        self._shown = ""

    def show(self, text: str) -> None:
        """Replace the line by this text."""
        if self._live and text != self._shown:
            self._shown = text
            self._stream.write(f"{_CLEAR}{text} ...")
            self._stream.flush()

    def clear(self) -> None:
        """Remove the line, so that other output can be written."""
        if self._live and self._shown:
            self._shown = ""
            self._stream.write(_CLEAR)
            self._stream.flush()
