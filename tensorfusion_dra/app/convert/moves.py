"""First pass: entries that stand in the wrong place of a request or a device.

Up to v1beta1 a request said all directly and a device had its content under ``basic``; since
v1beta2 what a request asks for is under ``exactly``.
"""

from typing import Final

from yaml.nodes import MappingNode, ScalarNode

from tensorfusion_dra.app.convert import kinds, source
from tensorfusion_dra.app.convert.changes import Changes
from tensorfusion_dra.app.convert.source import Entry

_INSIDE: Final = frozenset(
    {"deviceClassName", "selectors", "selector", "allocationMode", "count", "adminAccess"}
    | {"tolerations", "capacity"}
)
_STEP: Final = 2


def find(item: MappingNode, changes: Changes) -> None:
    """The moves in one object of resource.k8s.io."""
    for request in kinds.requests(item):
        _request(request, changes)
    for device in kinds.devices(item):
        basic = source.entry(device, "basic")
        if basic is not None:
            _unwrap(device, basic, changes)


def _request(request: MappingNode, changes: Changes) -> None:
    found = [entry for entry in source.entries(request) if entry.key.value in _INSIDE]
    if not found:
        return
    exactly = source.value(request, "exactly")
    if source.entry(request, "firstAvailable") is not None:
        for entry in found:
            text = f"{entry.key.value} beside firstAvailable: expected it in each of its entries"
            changes.problem(entry.key, text)
        return
    moving = []
    for entry in found:
        inside = source.entry(exactly, str(entry.key.value))
        if inside is None:
            moving.append(entry)
        elif _same(entry, inside):
            _remove(request, entry, changes)
            changes.because(entry.key, f"{entry.key.value} is said in exactly as well")
        else:
            text = f"{entry.key.value} beside exactly says something else than the one in it"
            changes.problem(entry.key, text)
    if exactly is not None and not isinstance(exactly, MappingNode):
        changes.problem(exactly, "exactly: expected a mapping")
    elif moving:
        _move(request, moving, exactly, changes)


def _same(one: Entry, other: Entry) -> bool:
    both = (one.value, other.value)
    return all(isinstance(node, ScalarNode) for node in both) and (
        one.value.value == other.value.value
    )


def _move(
    request: MappingNode, moving: list[Entry], exactly: MappingNode | None, changes: Changes
) -> None:
    for entry in moving:
        changes.because(entry.key, f"{entry.key.value} belongs in exactly")
    of = changes.source
    inner = source.entries(exactly)
    is_short = source.is_flow(request) or (exactly is not None and source.is_flow(exactly))
    if is_short and not source.is_flow(request) and not all(map(_is_short, moving)):
        changes.problem(moving[0].key, "expected exactly as a block, as what belongs in it is one")
        return
    first, *others = moving
    if is_short:
        text = ", ".join(of.text[entry.start : of.end(entry.value)] for entry in moving)
        if exactly is None:
            key = '"exactly"' if source.is_json(request) else "exactly"
            changes.edit(first.start, of.end(first.value), f"{key}: {{{text}}}")
        else:
            start = exactly.start_mark.index + 1
            changes.edit(start, start, f"{text}, " if inner else text)
            others = moving
    elif exactly is None:
        begin, end = _lines(request, first, changes)
        body, lines = _indented(request, moving, first.column + _STEP, changes)
        text = f"exactly:{of.newline}{body}"
        is_leading = of.leads_line(first.start)
        indent = " " * first.column
        text = f"{indent}{text}" if is_leading else f"{text}{indent}"
        changes.edit(begin, end, text, moved=[first.line, *lines])
    else:
        body, lines = _indented(request, moving, inner[0].column, changes)
        changes.put_first(inner[0], body, moved=lines)
        others = moving
    for entry in others:
        _remove(request, entry, changes)


def _is_short(entry: Entry) -> bool:
    value = entry.value
    is_line = isinstance(value, ScalarNode) and value.style not in ("|", ">")
    return is_line or source.is_flow(value)


def _remove(mapping: MappingNode, entry: Entry, changes: Changes) -> None:
    if not source.is_flow(mapping):
        changes.edit(*_lines(mapping, entry, changes), "")
        return
    found = source.entries(mapping)
    index = next(i for i, other in enumerate(found) if other.start == entry.start)
    if index + 1 < len(found):
        changes.edit(entry.start, found[index + 1].start, "")
    else:
        begin = changes.source.end(found[index - 1].value) if index else entry.start
        changes.edit(begin, changes.source.end(entry.value), "")


def _lines(mapping: MappingNode, entry: Entry, changes: Changes) -> tuple[int, int]:
    """From where to where an entry of a block stands: its lines, or up to the next entry if the
    dash of a list stands before it."""
    of = changes.source
    if of.leads_line(entry.start):
        end = of.line_end(of.end(entry.value))
        end += len(of.newline) if of.text[end : end + 1] else 0
        return of.line_start(entry.start), end
    following = (other.start for other in source.entries(mapping) if other.start > entry.start)
    return entry.start, next(following, of.line_end(of.end(entry.value)))


def _indented(
    mapping: MappingNode, entries: list[Entry], column: int, changes: Changes
) -> tuple[str, list[int]]:
    """The lines of entries, their comments too, for another column, and which lines they were."""
    of = changes.source
    texts: list[str] = []
    numbers: list[int] = []
    for entry in entries:
        begin, end = _lines(mapping, entry, changes)
        lines = of.text[begin:end].rstrip().split(of.newline)
        spaces = " " * entry.column
        bare = [line.removeprefix(spaces) if line.strip() else "" for line in lines]
        texts += [f"{' ' * column}{line}".rstrip() + of.newline for line in bare]
        numbers += range(entry.line, entry.line + len(lines))
    return "".join(texts), numbers


def _unwrap(device: MappingNode, basic: Entry, changes: Changes) -> None:
    """What a device has under ``basic`` moves one level up."""
    of = changes.source
    changes.because(basic.key, "a device has its content directly, and not under basic")
    inner = source.entries(basic.value)
    if not inner or source.is_flow(basic.value):
        begin, end = basic.value.start_mark.index, of.end(basic.value)
        changes.edit(basic.start, end, of.text[begin + 1 : end - 1].strip())
        return
    begin, end = _lines(device, basic, changes)
    lines = of.text[begin:end].rstrip().split(of.newline)[1:]
    shift = inner[0].column - basic.column
    kept = [line[shift:] if line[:shift].isspace() else line.lstrip() for line in lines]
    body = "".join(line + of.newline for line in kept)
    if not of.leads_line(basic.start):
        body = body.lstrip() + " " * basic.column
    moved = range(basic.line + 1, basic.line + 1 + len(kept))
    changes.edit(begin, end, body, moved=moved)
