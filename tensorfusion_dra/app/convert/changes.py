"""Changes to a YAML text, each with its reason."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from yaml.nodes import MappingNode, Node, ScalarNode

from tensorfusion_dra.app.convert import source
from tensorfusion_dra.app.convert.source import Entry, Source, Written
from tensorfusion_dra.core.cel.edits import Edit


@dataclass(frozen=True, slots=True, order=True)
class Reason:
    """Text about one line: why it was changed, what is wrong with it, or what to know.

    Attributes:
        line: Number of the line, from 1.
    """

    line: int
    text: str


class Changes:
    """Changes that one pass over a text collects.

    Attributes:
        source: The text.
        reasons: Reasons of the changes.
        problems: Parts that an API server refuses and that are not changed.
        notes: Parts that an API server accepts, but that do not have the expected effect.
        moved: By change that moves lines: the numbers, from 0, that its lines had in the text.
    """

    def __init__(self, of: Source) -> None:
        self.source: Final = of
        self.reasons: Final[list[Reason]] = []
        self.problems: Final[list[Reason]] = []
        self.notes: Final[list[Reason]] = []
        self.moved: Final[dict[Edit, tuple[int, ...]]] = {}
        # A set, because a node that has an alias is visited more than once.
        self._edits: Final[set[tuple[int, Edit]]] = set()

    def edits(self) -> list[Edit]:
        """Return the changes in the order of the text; at one place, in the order of discovery."""
        numbered = sorted(self._edits, key=lambda item: (item[1].start, item[1].end, item[0]))
        return [edit for _, edit in numbered]

    def edit(self, start: int, end: int, text: str, *, moved: Sequence[int] = ()) -> None:
        """Replace a part of the text.

        Args:
            moved: The numbers, from 0, that its lines had before, if it was moved.
        """
        edit = Edit(start, end, text)
        if moved:
            self.moved[edit] = tuple(moved)
        if all(known != edit for _, known in self._edits):
            self._edits.add((len(self._edits), edit))

    def reason(self, node: Node, text: str) -> None:
        """Record the reason of a change."""
        self.reasons.append(Reason(node.start_mark.line + 1, text))

    def reason_for_addition(self, mapping: MappingNode, text: str) -> None:
        """Record the reason of an entry added to a mapping, at the line of the mapping's key."""
        line = mapping.start_mark.line
        found = source.entries(mapping)
        if found and not source.is_flow(mapping) and self.source.starts_line(found[0].start):
            line = self.source.text.count("\n", 0, self.source.above(found[0])) - 1
        self.reasons.append(Reason(line + 1, text))

    def problem(self, node: Node, text: str) -> None:
        """Record an error that is not corrected."""
        self.problems.append(Reason(node.start_mark.line + 1, text))

    def note(self, node: Node, text: str) -> None:
        """Record a note."""
        self.notes.append(Reason(node.start_mark.line + 1, text))

    def replace(self, scalar: ScalarNode, text: str) -> None:
        """Replace a scalar of one line and keep its quotes."""
        quotes = scalar.style if scalar.style in ("'", '"') else ""
        end = self.source.end(scalar)
        self.edit(scalar.start_mark.index, end, f"{quotes}{text}{quotes}")

    def rename(self, item: Entry, key: str) -> None:
        """Replace the key of an entry."""
        self.replace(item.key, key)

    def insert(
        self, mapping: MappingNode, key: str, written: Written, *, after: Entry | None = None
    ) -> None:
        """Insert an entry into a mapping.

        Args:
            after: The entry that it follows; None inserts it as the first.
        """
        found = source.entries(mapping)
        if source.is_flow(mapping) or not found:
            text = source.flow(key, written, is_json=source.is_json(mapping))
            if after is not None:
                end = self.source.end(after.value)
                self.edit(end, end, f", {text}")
                return
            start = mapping.start_mark.index + 1
            self.edit(start, start, f"{text}, " if found else text)
            return
        column = found[0].column
        text = self.source.block(key, written, column)
        indent = self.source.newline + " " * column
        if after is None:
            self.put_first(found[0], " " * column + text + self.source.newline)
        else:
            end = self.source.line_end(self.source.end(after.value))
            self.edit(end, end, indent + text)

    def put_first(self, first: Entry, lines: str, *, moved: Sequence[int] = ()) -> None:
        """Insert lines, indented like a block's first entry, before it and its comments.

        Args:
            moved: See `edit`.
        """
        if self.source.starts_line(first.start):
            start = self.source.above(first)
            self.edit(start, start, lines, moved=moved)
        else:
            self.put_before(first, lines, moved=moved)

    def put_before(self, item: Entry, lines: str, *, moved: Sequence[int] = ()) -> None:
        """Insert lines, indented like an entry of a block, right before it.

        Args:
            moved: See `edit`.
        """
        if self.source.starts_line(item.start):
            start = self.source.line_start(item.start)
            self.edit(start, start, lines, moved=moved)
        else:  # a list's dash stands before the entry; it has to stand before the lines instead
            indent = " " * item.column
            text = lines.removeprefix(indent) + indent
            self.edit(item.start, item.start, text, moved=moved)

    def list_of_one(self, node: Node) -> None:
        """Wrap a mapping in a list, as its only item."""
        end = self.source.end(node)
        start = node.start_mark.index
        if source.is_flow(node):
            self.edit(start, start, "[")
            self.edit(end, end, "]")
            return
        self.edit(start, start, "- ")
        line = self.source.line_end(start) + len(self.source.newline)
        while line < end:
            if self.source.text[line : self.source.line_end(line)].strip():
                self.edit(line, line, "  ")
            line = self.source.line_end(line) + len(self.source.newline)
