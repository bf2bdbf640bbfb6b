"""One line on a terminal that says what is going on; nothing where nobody looks."""

from typing import Final, TextIO

_CLEAR: Final = "\r\x1b[K"


class Progress:
    """A line that is written over, and gone in the end."""

    def __init__(self, stream: TextIO) -> None:
        self._stream: Final = stream
        self._live: Final = stream.isatty()
        self._said = ""

    def say(self, text: str) -> None:
        """Shows the text in place of the one before."""
        if self._live and text != self._said:
            self._said = text
            self._stream.write(f"{_CLEAR}{text} ...")
            self._stream.flush()

    def clear(self) -> None:
        """Leaves an empty line for whatever is written next."""
        if self._live and self._said:
            self._said = ""
            self._stream.write(_CLEAR)
            self._stream.flush()
