"""Mapping from the characters of a scalar's value to their places in the YAML text."""

import re
from collections.abc import Iterable, Iterator
from typing import Final

from yaml.nodes import ScalarNode

from tensorfusion_dra.app.convert.source import Source
from tensorfusion_dra.core.cel.edits import Edit

# Folding changes spaces and line breaks, so only the characters between them are matched.
_SPACES: Final = " \t\r\n\x85\u2028\u2029"
_BLOCK_HEADER: Final = re.compile(r"[|>][^\n]*\n")
_ESCAPE: Final = re.compile(
    r"\\(?:x(?P<x>[0-9a-fA-F]{2})|u(?P<u>[0-9a-fA-F]{4})|U(?P<U>[0-9a-fA-F]{8})|\r?\n|.)",
    re.DOTALL,
)
_SPACE_ESCAPES: Final = frozenset("tnrNLP \t\r\n")
_Place = tuple[int, int]


def in_text(edits: Iterable[Edit], scalar: ScalarNode, of: Source) -> Iterator[Edit]:
    """Yield edits of a scalar's value as edits of the YAML text.

    Each edit has to begin and end beside characters that are not spaces, as edits of tokens do.
    """
    places = list(_places(scalar, of))
    before = [0]
    for character in scalar.value:
        before.append(before[-1] + (character not in _SPACES))
    for edit in edits:
        if edit.start < edit.end:
            start, end = places[before[edit.start]][0], places[before[edit.end] - 1][1]
        elif edit.start and scalar.value[edit.start - 1] not in _SPACES:
            start = end = places[before[edit.start] - 1][1]
        else:
            start = end = places[before[edit.start]][0]
        yield Edit(start, end, _written(edit.text, scalar.style))


def line_of(offset: int, scalar: ScalarNode, of: Source) -> int:
    """Return the line of the text, from 0, with a character of a scalar's value."""
    seen = sum(character not in _SPACES for character in scalar.value[:offset])
    places = list(_places(scalar, of))
    place = places[min(seen, len(places) - 1)][0] if places else scalar.start_mark.index
    return of.text.count("\n", 0, place)


def _written(text: str, style: str | None) -> str:
    if style == "'":
        return text.replace("'", "''")
    if style == '"':
        return text.replace("\\", "\\\\").replace('"', '\\"')
    return text


def _places(scalar: ScalarNode, of: Source) -> Iterator[_Place]:
    """Yield the start and end in the text of each character that is not a space."""
    start, end = scalar.start_mark.index, of.end(scalar)
    if scalar.style in ("|", ">"):
        header = _BLOCK_HEADER.match(of.text, start)
        start = header.end() if header else start
    elif scalar.style in ("'", '"'):
        start, end = start + 1, end - 1
    while start < end:
        stop = start + 1
        is_space = of.text[start] in _SPACES
        if scalar.style == "'" and of.text[start] == "'":
            stop = start + 2
        elif scalar.style == '"' and of.text[start] == "\\":
            escape = _ESCAPE.match(of.text, start)
            stop = escape.end() if escape else stop
            is_space = escape is not None and _is_space(escape)
        if not is_space:
            yield start, stop
        start = stop


def _is_space(escape: re.Match[str]) -> bool:
    digits = escape["x"] or escape["u"] or escape["U"]
    return chr(int(digits, 16)) in _SPACES if digits else escape[0][1] in _SPACE_ESCAPES
