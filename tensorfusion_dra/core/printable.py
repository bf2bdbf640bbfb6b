"""Text on one line of an error, a log or an Event: escapes for external text, and short lists.

Names of opaque fields, annotations and messages of servers may contain a newline, which starts a
new line in a log, or an escape sequence, which a terminal executes.
"""

from collections.abc import Sequence


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
    return "".join(char if char.isprintable() else _escaped(char) for char in line)


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")
