"""Changes of a YAML text, with the reason of each."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from yaml.nodes import MappingNode, Node, ScalarNode

from tensorfusion_dra.app.convert import source
from tensorfusion_dra.app.convert.source import Entry, Source, Written
from tensorfusion_dra.core.cel.edits import Edit


@dataclass(frozen=True, slots=True, order=True)
class Reason:
    """What was changed in a line, or has to be known of it.

    Attributes:
        line: From 1.
    """

    line: int
    text: str


class Changes:
    """What a pass over a text found.

    Attributes:
        source: The text.
        reasons: Of changes that were made.
        problems: What an API server refuses and is not changed here.
        notes: What is accepted, and does not do what it looks like.
        moved: By change: the lines of the text, from 0, that its lines were before.
    """

    def __init__(self, of: Source) -> None:
        self.source: Final = of
        self.reasons: Final[list[Reason]] = []
        self.problems: Final[list[Reason]] = []
        self.notes: Final[list[Reason]] = []
        self.moved: Final[dict[Edit, tuple[int, ...]]] = {}
        # A set: a node to which an alias leads is met once more with it.
        self._edits: Final[set[tuple[int, Edit]]] = set()

    def edits(self) -> list[Edit]:
        """The changes in the order of the text; at one place, in the order they were found."""
        numbered = sorted(self._edits, key=lambda item: (item[1].start, item[1].end, item[0]))
        return [edit for _, edit in numbered]

    def edit(self, start: int, end: int, text: str, *, moved: Sequence[int] = ()) -> None:
        """A part of the text becomes another.

        Args:
            moved: The lines that its lines were before, if it was moved.
        """
        edit = Edit(start, end, text)
        if moved:
            self.moved[edit] = tuple(moved)
        if all(known != edit for _, known in self._edits):
            self._edits.add((len(self._edits), edit))

    def because(self, node: Node, reason: str) -> None:
        """Gives the reason of a change."""
        self.reasons.append(Reason(node.start_mark.line + 1, reason))

    def lacking(self, mapping: MappingNode, reason: str) -> None:
        """Gives the reason of an addition: at the key whose value the mapping is."""
        line = mapping.start_mark.line
        found = source.entries(mapping)
        if found and not source.is_flow(mapping) and self.source.leads_line(found[0].start):
            line = self.source.text.count("\n", 0, self.source.above(found[0])) - 1
        self.reasons.append(Reason(line + 1, reason))

    def problem(self, node: Node, text: str) -> None:
        """Something that is wrong and stays."""
        self.problems.append(Reason(node.start_mark.line + 1, text))

    def note(self, node: Node, text: str) -> None:
        """Something to know."""
        self.notes.append(Reason(node.start_mark.line + 1, text))

    def replace(self, scalar: ScalarNode, text: str) -> None:
        """A scalar of one line becomes another, in quotes if it was."""
        quotes = scalar.style if scalar.style in ("'", '"') else ""
        end = self.source.end(scalar)
        self.edit(scalar.start_mark.index, end, f"{quotes}{text}{quotes}")

    def rename(self, item: Entry, key: str) -> None:
        """An entry gets another key."""
        self.replace(item.key, key)

    def insert(
        self, mapping: MappingNode, key: str, written: Written, *, after: Entry | None = None
    ) -> None:
        """A mapping gets an entry.

        Args:
            after: The entry that it follows; None to be the first.
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
        """Lines that are indented as a block's first entry come before it.

        Args:
            moved: As of `edit`.
        """
        if self.source.leads_line(first.start):
            start = self.source.above(first)
            self.edit(start, start, lines, moved=moved)
        else:
            self.put_before(first, lines, moved=moved)

    def put_before(self, item: Entry, lines: str, *, moved: Sequence[int] = ()) -> None:
        """Lines that are indented as an entry of a block come right before it.

        Args:
            moved: As of `edit`.
        """
        if self.source.leads_line(item.start):
            start = self.source.line_start(item.start)
            self.edit(start, start, lines, moved=moved)
        else:  # the dash of a list stands before it, and before the lines then
            indent = " " * item.column
            text = lines.removeprefix(indent) + indent
            self.edit(item.start, item.start, text, moved=moved)

    def list_of_one(self, node: Node) -> None:
        """A mapping becomes a list that has it as its only item."""
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
