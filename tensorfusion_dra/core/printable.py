"""Text from outside, fit for one line of an error, a log or an Event.

Names of opaque fields, annotations, messages of servers: any of them may hold a newline, which
begins a line of its own in a log, or an escape sequence, which a terminal carries out.
"""


def one_line(text: object) -> str:
    """The text with an escape in place of each character that is not printable.

    A newline becomes ``\\n``, ESC ``\\x1b``, half of a surrogate pair ``\\ud800``.
    """
    line = str(text)
    if line.isprintable():
        return line
    return "".join(char if char.isprintable() else _escaped(char) for char in line)


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")
