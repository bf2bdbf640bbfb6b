"""First pass: moves of entries that are in the wrong place of a request or a device.

Up to v1beta1 a request had all its fields directly, and a device had its content under ``basic``.
Since v1beta2 the device request is under ``exactly``, and a device has its content directly.
"""

from collections.abc import Sequence
from typing import Final

from yaml.nodes import MappingNode, ScalarNode

from tensorfusion_dra.app.convert import cuts, kinds, source
from tensorfusion_dra.app.convert.changes import Changes
from tensorfusion_dra.app.convert.source import Entry

_INSIDE: Final = frozenset(
    {"deviceClassName", "selectors", "selector", "allocationMode", "count", "adminAccess"}
    | {"tolerations", "capacity"}
)
_STEP: Final = 2


def find(item: MappingNode, changes: Changes) -> None:
    """Collect the moves in one object of resource.k8s.io."""
    for request in kinds.requests(item):
        _request(request, changes)
    for device in kinds.devices(item):
        basic = source.entry(device, "basic")
        if basic is not None:
            _unwrap(device, basic, changes)


def _request(request: MappingNode, changes: Changes) -> None:
    found = [entry for entry in source.entries(request) if entry.key.value in _INSIDE]
    exactly = source.value(request, "exactly")
    if found and source.entry(request, "firstAvailable") is not None:
        for entry in found:
            text = f"{entry.key.value} beside firstAvailable: expected it in each of its entries"
            changes.problem(entry.key, text)
    elif found and exactly is not None and not isinstance(exactly, MappingNode):
        changes.problem(exactly, "exactly: expected a mapping")
    elif found:
        inside = exactly if isinstance(exactly, MappingNode) else None
        _into_exactly(request, found, inside, changes)


def _into_exactly(
    request: MappingNode, found: list[Entry], exactly: MappingNode | None, changes: Changes
) -> None:
    """Move entries into ``exactly``, or drop them if it has them with the same value."""
    moving, dropped = [], []
    for entry in found:
        inside = source.entry(exactly, str(entry.key.value))
        if inside is None:
            moving.append(entry)
        elif _is_same(entry, inside):
            dropped.append(entry)
        else:
            text = f"{entry.key.value}: found one beside exactly and another in it, expected one"
            changes.problem(entry.key, text)
    if not _move(request, moving, exactly, changes):
        return
    for begin, end in cuts.parts(request, [*moving, *dropped], changes.source):
        changes.edit(begin, end, "")
    for entry in moving:
        changes.reason(entry.key, f"{entry.key.value} belongs in exactly")
    for entry in dropped:
        changes.reason(entry.key, f"{entry.key.value} is in exactly as well")


def _is_same(one: Entry, other: Entry) -> bool:
    both = (one.value, other.value)
    return all(isinstance(node, ScalarNode) for node in both) and (
        one.value.value == other.value.value
    )


def _move(
    request: MappingNode, moving: Sequence[Entry], exactly: MappingNode | None, changes: Changes
) -> bool:
    """Write entries into ``exactly``; return False if they cannot be written there."""
    of = changes.source
    if not moving:
        return True
    if source.is_flow(request) or (exactly is not None and source.is_flow(exactly)):
        for entry in moving:
            is_short = of.is_one_line(entry.value) or source.is_flow(entry.value)
            if not is_short and not source.is_flow(request):
                text = f"exactly: found brackets, expected a block: {entry.key.value} is a block"
                changes.problem(entry.key, text)
                return False
        _into_brackets(request, moving, exactly, changes)
    elif exactly is None:
        column = moving[0].column
        body, lines = cuts.indented(moving, column + _STEP, of)
        text = f"{' ' * column}exactly:{of.newline}{body}"
        changes.put_before(moving[0], text, moved=[moving[0].line, *lines])
    else:
        first = source.entries(exactly)[0]
        body, lines = cuts.indented(moving, first.column, of)
        changes.put_first(first, body, moved=lines)
    return True


def _into_brackets(
    request: MappingNode, moving: Sequence[Entry], exactly: MappingNode | None, changes: Changes
) -> None:
    of = changes.source
    text = ", ".join(of.text[entry.start : of.end(entry.value)] for entry in moving)
    if exactly is not None:
        start = exactly.start_mark.index + 1
        changes.edit(start, start, f"{text}, " if source.entries(exactly) else text)
        return
    key = '"exactly"' if source.is_json(request) else "exactly"
    staying = [entry for entry in source.entries(request) if entry not in moving]
    before = [entry for entry in staying if entry.start < moving[0].start]
    if before:
        start = of.end(before[-1].value)
        changes.edit(start, start, f", {key}: {{{text}}}")
    else:
        start = request.start_mark.index + 1
        changes.edit(start, start, f"{key}: {{{text}}}" + (", " if staying else ""))


def _unwrap(device: MappingNode, basic: Entry, changes: Changes) -> None:
    """Move the content of a device's ``basic`` one level up."""
    of = changes.source
    inner = source.entries(basic.value)
    if not isinstance(basic.value, MappingNode) or not inner:
        changes.problem(basic.key, "basic: expected a mapping that is not empty")
        return
    if any(source.entry(device, str(entry.key.value)) for entry in inner):
        changes.problem(basic.key, "basic: found a key that the device has as well")
        return
    changes.reason(basic.key, "a device has its content directly, not under basic")
    if source.is_flow(basic.value):
        begin, end = basic.value.start_mark.index, of.end(basic.value)
        bare = of.text[begin + 1 : end - 1].strip()
        if source.is_flow(device):
            changes.edit(basic.start, end, bare)
        else:
            split = (of.text[entry.start : of.end(entry.value)] for entry in inner)
            changes.edit(basic.start, end, f"{of.newline}{' ' * basic.column}".join(split))
        return
    begin, end = cuts.lines(basic, of)
    lines = of.text[begin:end].rstrip().split(of.newline)[1:]
    shift = inner[0].column - basic.column
    kept = [line[shift:] if line[:shift].isspace() else line.lstrip() for line in lines]
    body = "".join(line + of.newline for line in kept)
    body = body if of.starts_line(basic.start) else body.lstrip()
    changes.edit(begin, end, body, moved=range(basic.line + 1, basic.line + 1 + len(kept)))
