"""Field ownership: server-side apply's merge, its conflicts and the fields that it removes.

The owners are stored beside an object and not written to metadata.managedFields.
"""

import copy
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from dra_simulator.api.schema import Schema, Type, elements

Json = dict[str, object]

# Structs that have one owner as a whole (+structType=atomic).
_ATOMIC: Final = frozenset({"NodeSelector", "ObjectReference"})
_SERVER_METADATA: Final = frozenset(
    {
        "name",
        "namespace",
        "uid",
        "resourceVersion",
        "generation",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "selfLink",
        "managedFields",
    }
)


@dataclass(frozen=True, slots=True)
class Item:
    """A step of a path into a list, with the values of the fields that identify the item."""

    keys: tuple[tuple[str, object], ...]

    def __str__(self) -> str:
        pairs = ",".join(f"{name}={json.dumps(value)}" for name, value in sorted(self.keys))
        return f"[{pairs}]"


Path = tuple[str | Item, ...]
Leaves = dict[Path, object]


@dataclass(frozen=True, slots=True)
class Manager:
    """A field manager.

    Attributes:
        applies: It writes by server-side apply; otherwise by create, update or other patches.
    """

    name: str
    applies: bool
    subresource: str = ""

    def __str__(self) -> str:
        through = f' with subresource "{self.subresource}"' if self.subresource else ""
        return f'"{self.name}"{through}'


Owners = Mapping[Manager, frozenset[Path]]


def path_text(path: Path) -> str:
    """Return a path as text: ``.status.devices[device="gpu-0",...].data``."""
    return "".join(str(step) if isinstance(step, Item) else f".{step}" for step in path)


def leaves(schema: Schema, struct: str, document: Json) -> Leaves:
    """Return each path that can have an owner, with its value; a list item is a path as well."""
    return dict(_leaves(schema, struct, document, ()))


def _leaves(
    schema: Schema, struct: str, document: Json, path: Path
) -> Iterator[tuple[Path, object]]:
    for name, value in document.items():
        if value is None or (path == ("metadata",) and name in _SERVER_METADATA):
            continue
        found, here = schema.field(struct, name), (*path, name)
        if found.shape == "struct" and found.base not in _ATOMIC and isinstance(value, dict):
            yield from _leaves(schema, found.base, value, here)
        elif found.shape == "map" and isinstance(value, dict):
            yield from (((*here, key), entry) for key, entry in value.items())
        elif found.keys and isinstance(value, list):
            for item in elements(value):
                step = (*here, _item(found, item))
                yield step, None
                yield from _leaves(schema, found.base, item, step)
        else:
            yield here, value


def _item(found: Type, item: Json) -> Item:
    return Item(tuple((key, item.get(key, "")) for key in found.keys))


def after_update(
    owners: Owners, before: Leaves, after: Leaves, manager: Manager
) -> dict[Manager, frozenset[Path]]:
    """Return the owners after a manager changed the fields that differ."""
    missing = object()
    changed = {path for path, value in after.items() if before.get(path, missing) != value}
    gone = before.keys() - after.keys()
    result = {other: paths - changed - gone for other, paths in owners.items()}
    result[manager] = result.get(manager, frozenset()) | changed
    return {other: paths for other, paths in result.items() if paths}


@dataclass(frozen=True, slots=True)
class Applied:
    """Result of an apply.

    Attributes:
        conflicts: Fields that other managers own with another value, and these managers.
    """

    document: Json
    owners: dict[Manager, frozenset[Path]]
    conflicts: tuple[tuple[Path, Manager], ...]


def applied(
    schema: Schema, struct: str, before: Json, owners: Owners, *, wanted: Json, by: Manager
) -> Applied:
    """Return an object after a manager applied its configuration.

    A field that the manager applied before and no longer applies is removed, unless another manager
    owns it.
    """
    live, mine = leaves(schema, struct, before), leaves(schema, struct, wanted)
    others = {manager: paths for manager, paths in owners.items() if manager != by}
    conflicts = tuple(
        (path, manager)
        for path, value in mine.items()
        if path in live and live[path] != value
        for manager, paths in others.items()
        if path in paths
    )
    taken = {path for path, _ in conflicts}
    kept = {manager: paths - taken for manager, paths in others.items()}
    owned_by_others = frozenset().union(*kept.values()) if kept else frozenset()
    document = copy.deepcopy(_merged(schema, struct, before, wanted))
    surplus = owners.get(by, frozenset()) - mine.keys() - owned_by_others
    # The shortest paths first: an item without its key fields could not be found any more.
    for path in sorted(surplus, key=len):
        if not any(other[: len(path)] == path for other in owned_by_others):
            _remove(document, path)
    kept[by] = frozenset(mine)
    owners_after = {manager: paths for manager, paths in kept.items() if paths}
    return Applied(document, owners_after, conflicts)


def _merged(schema: Schema, struct: str, before: Json, wanted: Json) -> Json:
    result = dict(before)
    for name, value in wanted.items():
        found, current = schema.field(struct, name), result.get(name)
        if found.shape == "struct" and found.base not in _ATOMIC and isinstance(value, dict):
            old = current if isinstance(current, dict) else {}
            result[name] = _merged(schema, found.base, old, value)
        elif found.shape == "map" and isinstance(value, dict):
            result[name] = {**(current if isinstance(current, dict) else {}), **value}
        elif found.keys and isinstance(value, list):
            items = {_item(found, item): item for item in elements(current)}
            for item in elements(value):
                step = _item(found, item)
                items[step] = _merged(schema, found.base, items.get(step, {}), item)
            result[name] = list(items.values())
        else:
            result[name] = value
    return result


def _remove(document: Json, path: Path) -> None:
    parent: object = document
    for step in path[:-1]:
        parent = _step(parent, step)
    last = path[-1]
    if isinstance(last, Item) and isinstance(parent, list):
        parent[:] = [item for item in parent if not _fits(item, last)]
    elif isinstance(parent, dict):
        parent.pop(last, None)


def _step(parent: object, step: str | Item) -> object:
    if isinstance(step, Item):
        return next((item for item in elements(parent) if _fits(item, step)), None)
    return parent.get(step) if isinstance(parent, dict) else None


def _fits(item: Mapping[str, object], step: Item) -> bool:
    return all(item.get(name, "") == value for name, value in step.keys)
