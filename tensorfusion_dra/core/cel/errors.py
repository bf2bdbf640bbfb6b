"""The error of this package, with its position in the expression."""

from tensorfusion_dra.core.errors import InputError


class CelError(InputError):
    """An expression cannot be parsed or translated.

    Attributes:
        line: Line of the error, from 1.
        column: In characters, from 1, as in the API server's own messages.
        offset: The same position, in characters from the start of the expression.
        reason: What was found and what was expected.
    """

    def __init__(self, reason: str, *, expression: str, offset: int) -> None:
        self.line, self.column = position(expression, offset)
        self.offset = offset
        self.reason = reason
        super().__init__(f"{self.line}:{self.column}: {reason}")


def position(text: str, offset: int) -> tuple[int, int]:
    """Return the line and the column of an offset in a text, both from 1."""
    before = text[:offset]
    return before.count("\n") + 1, offset - (before.rfind("\n") + 1) + 1
