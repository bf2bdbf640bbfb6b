"""The JSON patch (RFC 6902) that turns one document into another."""

from collections.abc import Iterator
from typing import Any

Operation = dict[str, Any]


def between(before: object, after: object) -> list[Operation]:
    """Return the operations that turn the first document into the second.

    Lists are compared index by index, so additional elements are expected at the end. A list that
    became shorter is replaced as a whole.
    """
    return list(_operations("", before, after))


def _operations(path: str, before: object, after: object) -> Iterator[Operation]:
    # To Python, True, 1 and 1.0 are equal; in JSON they are not.
    is_scalar = not isinstance(before, dict | list)
    if is_scalar and type(before) is type(after) and before == after:
        return
    if isinstance(before, dict) and isinstance(after, dict):
        yield from _of_objects(path, before, after)
    elif isinstance(before, list) and isinstance(after, list) and len(before) <= len(after):
        for index, (old, new) in enumerate(zip(before, after, strict=False)):
            yield from _operations(f"{path}/{index}", old, new)
        for new in after[len(before) :]:
            yield {"op": "add", "path": f"{path}/-", "value": new}
    else:
        yield {"op": "replace", "path": path, "value": after}


def _of_objects(
    path: str, before: dict[str, object], after: dict[str, object]
) -> Iterator[Operation]:
    for name in before:
        if name not in after:
            yield {"op": "remove", "path": f"{path}/{_escaped(name)}"}
    for name, new in after.items():
        where = f"{path}/{_escaped(name)}"
        if name in before:
            yield from _operations(where, before[name], new)
        else:
            yield {"op": "add", "path": where, "value": new}


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
