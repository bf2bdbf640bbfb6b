"""Escapes for external text, so that it fits in one line of an error, a log or an Event.

Names of opaque fields, annotations and messages of servers may contain a newline, which starts a
new line in a log, or an escape sequence, which a terminal executes.
"""


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
