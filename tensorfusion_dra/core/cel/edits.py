"""Edits of an expression by position; all other text stays the same, byte for byte."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Edit:
    """Replacement of the text from start to end; an insertion if the two are equal."""

    start: int
    end: int
    text: str


def applied(text: str, edits: Iterable[Edit]) -> str:
    """Return the text with the edits applied; they must be in the order of the text."""
    parts, end = [], 0
    for edit in edits:
        parts += [text[end : edit.start], edit.text]
        end = edit.end
    return "".join([*parts, text[end:]])
