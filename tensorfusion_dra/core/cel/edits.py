"""Edits of an expression by position; all other text stays the same, byte for byte."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NoReturn

from tensorfusion_dra.core.cel.errors import CelError
from tensorfusion_dra.core.cel.syntax import Node


@dataclass(frozen=True, slots=True, order=True)
class Edit:
    """Replacement of the text from start to end; an insertion if the two are equal."""

    start: int
    end: int
    text: str


class Edits:
    """Collector of the edits of one expression; inner parts are edited before outer ones."""

    def __init__(self, expression: str) -> None:
        self._expression = expression
        self._replaced: dict[int, Edit] = {}
        self._opening: defaultdict[int, str] = defaultdict(str)
        self._closing: defaultdict[int, str] = defaultdict(str)

    def replace(self, start: int, end: int, text: str) -> None:
        """Replace a range of the expression; a repeated call changes nothing."""
        self._replaced[start] = Edit(start, end, text)

    def wrap(self, node: Node, before: str, after: str) -> None:
        """Insert text around a node, outside of what earlier calls inserted there."""
        self._opening[node.start] = before + self._opening[node.start]
        self._closing[node.end] += after

    def text(self, node: Node) -> str:
        """Return the original text of a node."""
        return self._expression[node.start : node.end]

    def refuse(self, reason: str, offset: int) -> NoReturn:
        """Abort the translation.

        Raises:
            CelError: Always.
        """
        raise CelError(reason, expression=self._expression, offset=offset)

    def all(self) -> tuple[Edit, ...]:
        """Return the edits in the order of the text; insertions at one place are merged."""
        inserted: defaultdict[int, str] = defaultdict(str)
        for texts in (self._closing, self._opening):
            for offset, text in texts.items():
                inserted[offset] += text
        insertions = [Edit(offset, offset, text) for offset, text in inserted.items() if text]
        # An insertion at the start of a replacement sorts before it, because its end is smaller.
        return tuple(sorted([*insertions, *self._replaced.values()]))


def applied(text: str, edits: Iterable[Edit]) -> str:
    """Return the text with the edits applied; they must be in the order of the text."""
    parts, end = [], 0
    for edit in edits:
        parts += [text[end : edit.start], edit.text]
        end = edit.end
    return "".join([*parts, text[end:]])
