"""Kinds of PATCH: JSON patch, merge patch, strategic merge patch and server-side apply.

Of a JSON patch's operations there are add, replace and remove; of a strategic merge patch's
directives those that remove items of lists.

Server-side apply merges a configuration, item by item in lists with keys. On a real server it also
removes what its manager applied before and applies no more, and without ``force`` it answers with a
conflict if another manager owns a field with another value. Here nobody owns fields.
"""

import copy
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from dra_simulator.api import failures
from dra_simulator.api.kinds import Kind
from dra_simulator.api.schema import Json, Schema, Type, elements

JSON_PATCH: Final = "application/json-patch+json"
MERGE_PATCH: Final = "application/merge-patch+json"
STRATEGIC_PATCH: Final = "application/strategic-merge-patch+json"
APPLY_PATCH: Final = "application/apply-patch+yaml"

_DELETE_FROM: Final = "$deleteFromPrimitiveList/"


Patch = Callable[[Json], Json]
"""Returns an object after a change; raises ApiError if the change does not fit the object."""


def types(kind: Kind) -> tuple[str, ...]:
    """Return the content types of the patches that a kind takes."""
    strategic = () if kind.is_custom else (STRATEGIC_PATCH,)
    return (JSON_PATCH, MERGE_PATCH, *strategic, APPLY_PATCH)


def parse(text: bytes, content_type: str, *, schema: Schema, kind: Kind) -> Patch:
    """Return the patch in a body; not for server-side apply, whose body is an object.

    Raises:
        ApiError: 400 if the body cannot be parsed, 415 if the kind takes no such patch.
    """
    if content_type == STRATEGIC_PATCH and kind.is_custom:
        raise failures.unsupported_media(
            "the body of the request was in an unknown format - accepted media types include: "
            + ", ".join(types(kind))
        )
    if content_type not in types(kind):
        raise failures.unsupported_media("415: Unsupported Media Type")
    try:
        body = json.loads(text)
    except ValueError as error:
        raise failures.bad_request(f"error decoding patch: {error}") from error
    if content_type == JSON_PATCH and isinstance(body, list):
        return lambda document: operated(document, body)
    if content_type == MERGE_PATCH and isinstance(body, dict):
        return lambda document: merged(document, body)
    if content_type == STRATEGIC_PATCH and isinstance(body, dict):
        return lambda document: _strategic(schema, kind.struct, document=document, patch=body)
    raise failures.bad_request(f"error decoding patch: found {type(body).__name__}")


def merged(document: object, patch: Mapping[str, object]) -> Json:
    """Return a document after a JSON merge patch (RFC 7386); null removes a field."""
    result = dict(document) if isinstance(document, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        elif isinstance(value, dict):
            result[name] = merged(result.get(name), value)
        else:
            result[name] = value
    return result


def _strategic(
    schema: Schema, struct: str, *, document: object, patch: Mapping[str, object]
) -> Json:
    """Merge a patch that merges some lists instead of replacing them, as the schema defines.

    Args:
        struct: Name of the object's struct; "" if the schema does not know its fields.
    """
    result = dict(document) if isinstance(document, dict) else {}
    for name, value in patch.items():
        found = schema.field(struct, name)
        if name.startswith(_DELETE_FROM) and isinstance(value, list):
            listed = name.removeprefix(_DELETE_FROM)
            result[listed] = [item for item in _list(result.get(listed)) if item not in value]
        elif name.startswith("$"):
            continue
        elif value is None:
            result.pop(name, None)
        elif isinstance(value, dict):
            result[name] = _strategic(schema, found.base, document=result.get(name), patch=value)
        elif isinstance(value, list) and found.merged and found.keys:
            result[name] = _strategic_list(schema, found, current=result.get(name), patch=value)
        elif isinstance(value, list) and found.merged:
            current = _list(result.get(name))
            result[name] = [*(item for item in value if item not in current), *current]
        else:
            result[name] = value
    return result


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _strategic_list(
    schema: Schema, found: Type, *, current: object, patch: list[object]
) -> list[object]:
    key = found.keys[0]
    result: dict[object, object] = {item.get(key): item for item in elements(current)}
    for change in patch:
        if not isinstance(change, dict) or key not in change:
            raise failures.bad_request(f"map: {change} does not contain declared merge key: {key}")
        if change.get("$patch") == "delete":
            result.pop(change[key], None)
        else:
            before = result.get(change[key])
            result[change[key]] = _strategic(schema, found.base, document=before, patch=change)
    return list(result.values())


def operated(document: Json, operations: Iterable[object]) -> Json:
    """Return an object after a JSON patch (RFC 6902) without move, copy and test.

    Raises:
        ApiError: 422 if an operation does not fit the object.
    """
    result = copy.deepcopy(document)
    for operation in operations:
        try:
            _operate(result, operation)
        except (KeyError, IndexError, ValueError, TypeError, AttributeError) as error:
            raise failures.unprocessable() from error
    return result


def _operate(document: Json, operation: Any) -> None:
    action, pointer = operation["op"], operation["path"]
    if action not in {"add", "replace", "remove"} or not pointer.startswith("/"):
        raise ValueError(f"found op {action!r} at {pointer!r}")
    *parts, last = (part.replace("~1", "/").replace("~0", "~") for part in pointer[1:].split("/"))
    parent: Any = document
    for part in parts:
        parent = parent[int(part) if isinstance(parent, list) else part]
    key = last
    if isinstance(parent, list):
        key = len(parent) if last == "-" else int(last)
        if key > len(parent):
            raise IndexError(key)
    # A replace is a remove and an add, by the RFC.
    if action != "add":
        del parent[key]
    if action != "remove":
        if isinstance(parent, list):
            parent.insert(key, operation["value"])
        else:
            parent[key] = operation["value"]


def applied(schema: Schema, struct: str, before: Json, wanted: Json) -> Json:
    """Return an object after a server-side apply; before is empty for a new one."""
    result = dict(before)
    for name, value in wanted.items():
        found, current = schema.field(struct, name), result.get(name)
        old = current if isinstance(current, dict) else {}
        if found.shape == "struct" and isinstance(value, dict):
            result[name] = applied(schema, found.base, old, value)
        elif found.shape == "map" and isinstance(value, dict):
            result[name] = {**old, **value}
        elif found.keys and isinstance(value, list):
            items = {_key(found, item): item for item in elements(current)}
            for item in elements(value):
                key = _key(found, item)
                items[key] = applied(schema, found.base, items.get(key, {}), item)
            result[name] = list(items.values())
        else:
            result[name] = value
    return result


def _key(found: Type, item: Json) -> tuple[object, ...]:
    return tuple(item.get(key, "") for key in found.keys)
