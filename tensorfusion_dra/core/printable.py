"""Text on one line of an error, a log or an Event: escapes for external text, and short lists.

Names of opaque fields, annotations and messages of servers may contain a newline, which starts a
new line in a log, or an escape sequence, which a terminal executes.
"""

import reprlib
from collections.abc import Sequence
from typing import Any, Final

MAX_FOREIGN_TEXT: Final = 500
"""Length to which texts of other packages are cut."""
_REPR: Final = reprlib.Repr()
_REPR.maxother = MAX_FOREIGN_TEXT


def error_text(error: BaseException) -> str:
    """Return an exception as text; one that cannot show itself as the name of its class."""
    return _REPR.repr(error)


def first(texts: Sequence[str], most: int = 5) -> str:
    """Return the first of the texts and the number of the others: ``a, b and 3 more``."""
    more = len(texts) - most
    return ", ".join(texts[:most]) + (f" and {more} more" if more > 0 else "")


def one_line(text: object) -> str:
    """Return the text with an escape in place of each character that is not printable.

    A newline becomes ``\\n``, ESC ``\\x1b``, a lone surrogate ``\\ud800``.
    """
    line = str(text)
    if line.isprintable():
        return line
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii")
        for char in line
    )


def escaped(value: Any) -> Any:
    """Return a JSON value with each text as one printable line."""
    if isinstance(value, str):
        return one_line(value)
    if isinstance(value, list | tuple):
        return [escaped(item) for item in value]
    if isinstance(value, dict):
        return {key: escaped(item) for key, item in value.items()}
    return value
