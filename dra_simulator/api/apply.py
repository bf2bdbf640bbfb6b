"""Server-side apply: merge a configuration, and remove what its manager no longer applies.

A manager owns the fields that it applied last. If its next apply lacks one, the field is removed,
unless another manager applies it too. For example, driver A applies status.devices for its two
devices, and driver B for its own. When A then applies only one device, its other device goes,
and that of B stays.

A real API server also tracks who set a field by create, update or patch. Without ``force`` it
answers with a conflict if another manager owns a field with another value; here an apply always
takes the field.
"""

import copy
from collections.abc import Iterator, Mapping

from dra_simulator.api.schema import Schema, Type, elements

Json = dict[str, object]
Manager = tuple[str, str]
"""Name of a field manager, and the subresource that it writes."""
Step = str | tuple[tuple[str, object], ...]
"""A field's name, or the names and values of the fields that identify an item of a list."""
Path = tuple[Step, ...]
Owners = Mapping[Manager, frozenset[Path]]


def applied(
    schema: Schema, struct: str, before: Json, owners: Owners, *, wanted: Json, by: Manager
) -> tuple[Json, Owners]:
    """Return an object after a manager applied its configuration, and the owners of its fields."""
    mine = frozenset(_paths(schema, struct, wanted, ()))
    others = {manager: paths for manager, paths in owners.items() if manager != by}
    owned_by_others = frozenset().union(*others.values())
    document = copy.deepcopy(_merged(schema, struct, before, wanted))
    # The shortest paths first: an item without its key fields could not be found any more.
    for path in sorted(owners.get(by, frozenset()) - mine, key=len):
        if not any(other[: len(path)] == path for other in owned_by_others):
            _remove(document, path)
    return document, {**others, by: mine}


def _paths(schema: Schema, struct: str, document: Json, at: Path) -> Iterator[Path]:
    for name, value in document.items():
        found, here = schema.field(struct, name), (*at, name)
        if found.shape == "struct" and isinstance(value, dict):
            yield from _paths(schema, found.base, value, here)
        elif found.shape == "map" and isinstance(value, dict):
            yield from ((*here, key) for key in value)
        elif found.keys and isinstance(value, list):
            for item in elements(value):
                step = (*here, _step(found, item))
                yield step
                yield from _paths(schema, found.base, item, step)
        else:
            yield here


def _step(found: Type, item: Json) -> Step:
    return tuple((key, item.get(key, "")) for key in found.keys)


def _merged(schema: Schema, struct: str, before: Json, wanted: Json) -> Json:
    result = dict(before)
    for name, value in wanted.items():
        found, current = schema.field(struct, name), result.get(name)
        old = current if isinstance(current, dict) else {}
        if found.shape == "struct" and isinstance(value, dict):
            result[name] = _merged(schema, found.base, old, value)
        elif found.shape == "map" and isinstance(value, dict):
            result[name] = {**old, **value}
        elif found.keys and isinstance(value, list):
            items = {_step(found, item): item for item in elements(current)}
            for item in elements(value):
                step = _step(found, item)
                items[step] = _merged(schema, found.base, items.get(step, {}), item)
            result[name] = list(items.values())
        else:
            result[name] = value
    return result


def _remove(document: Json, path: Path) -> None:
    parent: object = document
    for step in path[:-1]:
        if isinstance(step, str):
            parent = parent.get(step) if isinstance(parent, dict) else None
        else:
            parent = next((item for item in elements(parent) if _fits(item, step)), None)
    last = path[-1]
    if isinstance(parent, list) and not isinstance(last, str):
        parent[:] = [item for item in parent if not _fits(item, last)]
    elif isinstance(parent, dict):
        parent.pop(last, None)


def _fits(item: Json, step: Step) -> bool:
    return not isinstance(step, str) and all(item.get(name, "") == value for name, value in step)
