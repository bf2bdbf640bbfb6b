"""Cuts that remove entries from a mapping, and the text of the entries for another place."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from yaml.nodes import MappingNode

from tensorfusion_dra.app.convert import source
from tensorfusion_dra.app.convert.source import Entry, Source

Part = tuple[int, int]
"""Start and end of a part of the text."""


def parts(mapping: MappingNode, gone: Sequence[Entry], of: Source) -> Iterator[Part]:
    """Yield the parts of the text to remove for these entries of a mapping; no two overlap."""
    starts = {entry.start for entry in gone}
    found = source.entries(mapping)
    rows = [list(row) for _, row in groupby(found, key=lambda entry: entry.start in starts)]
    for index, row in enumerate(rows):
        if row[0].start not in starts:
            continue
        before = rows[index - 1][-1] if index else None
        after = rows[index + 1][0] if index + 1 < len(rows) else None
        if source.is_flow(mapping):
            yield _in_brackets(row, before, after, of)
        elif before is None and not of.starts_line(row[0].start):
            # A list's dash before the first entry stays, for the entry that follows.
            _, end = lines(row[-1], of)
            blank = len(of.text) - end - len(of.text[end:].lstrip())
            yield row[0].start, end + blank if after else of.end(row[-1].value)
        else:
            yield from (lines(entry, of) for entry in row)


def _in_brackets(row: list[Entry], before: Entry | None, after: Entry | None, of: Source) -> Part:
    if after is not None:
        return row[0].start, after.start
    return of.end(before.value) if before else row[0].start, of.end(row[-1].value)


def lines(entry: Entry, of: Source) -> Part:
    """Return the lines of a block's entry, without text before it on its first line."""
    begin = of.line_start(entry.start) if of.starts_line(entry.start) else entry.start
    end = of.line_end(of.end(entry.value))
    return begin, end + (len(of.newline) if end < len(of.text) else 0)


def indented(entries: Sequence[Entry], column: int, of: Source) -> tuple[str, list[int]]:
    """Return the lines of a block's entries, indented to a column, and their numbers from 0."""
    texts: list[str] = []
    numbers: list[int] = []
    for entry in entries:
        begin, end = lines(entry, of)
        found = of.text[begin:end].rstrip().split(of.newline)
        spaces = " " * entry.column
        bare = [line.removeprefix(spaces) if line.strip() else "" for line in found]
        texts += [f"{' ' * column}{line}".rstrip() + of.newline for line in bare]
        numbers += range(entry.line, entry.line + len(found))
    return "".join(texts), numbers
