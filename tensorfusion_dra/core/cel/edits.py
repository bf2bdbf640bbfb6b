"""Changes of a text by place, so that everything else stays as it is, byte for byte."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NoReturn

from tensorfusion_dra.core.cel.errors import CelError
from tensorfusion_dra.core.cel.syntax import Node


@dataclass(frozen=True, slots=True, order=True)
class Edit:
    """A part of a text, from start to end, becomes another; an empty part is an insertion."""

    start: int
    end: int
    text: str


class Edits:
    """The changes of one expression, gathered from the inside of its parts to the outside."""

    def __init__(self, expression: str) -> None:
        self._expression = expression
        self._replaced: dict[int, Edit] = {}
        self._opening: defaultdict[int, str] = defaultdict(str)
        self._closing: defaultdict[int, str] = defaultdict(str)

    def replace(self, start: int, end: int, text: str) -> None:
        """The part becomes the text; done twice, it is done once."""
        self._replaced[start] = Edit(start, end, text)

    def wrap(self, node: Node, before: str, after: str) -> None:
        """Puts text around a node, and around what was put there before."""
        self._opening[node.start] = before + self._opening[node.start]
        self._closing[node.end] += after

    def text(self, node: Node) -> str:
        """The node as it was written."""
        return self._expression[node.start : node.end]

    def refuse(self, reason: str, offset: int) -> NoReturn:
        """Ends the translation.

        Raises:
            CelError: Always.
        """
        raise CelError(reason, expression=self._expression, offset=offset)

    def all(self) -> tuple[Edit, ...]:
        """The changes in the order of the text; no two at the same place."""
        inserted: defaultdict[int, str] = defaultdict(str)
        for texts in (self._closing, self._opening):
            for offset, text in texts.items():
                inserted[offset] += text
        insertions = [Edit(offset, offset, text) for offset, text in inserted.items() if text]
        # An insertion where a replacement begins comes before it, as it sorts.
        return tuple(sorted([*insertions, *self._replaced.values()]))


def applied(text: str, edits: Iterable[Edit]) -> str:
    """The text with the changes, which are in its order."""
    parts, end = [], 0
    for edit in edits:
        parts += [text[end : edit.start], edit.text]
        end = edit.end
    return "".join([*parts, text[end:]])
