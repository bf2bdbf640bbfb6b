"""What is wrong in an expression, and where."""

from tensorfusion_dra.core.errors import InputError


class CelError(InputError):
    """An expression cannot be read or translated.

    Attributes:
        line: Of the place in the expression, from 1.
        column: In characters, from 1, as the API server counts in its own messages.
        offset: The same place, in characters from the expression's beginning.
        reason: What was found and what was expected.
    """

    def __init__(self, reason: str, *, expression: str, offset: int) -> None:
        self.line, self.column = position(expression, offset)
        self.offset = offset
        self.reason = reason
        super().__init__(f"{self.line}:{self.column}: {reason}")


def position(text: str, offset: int) -> tuple[int, int]:
    """The line and the column of a place in a text, both from 1."""
    before = text[:offset]
    return before.count("\n") + 1, offset - (before.rfind("\n") + 1) + 1
