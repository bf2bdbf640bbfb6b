"""Check for undeclared fields in an applied object, with the errors of server-side apply.

structured-merge-diff, typed/validate.go: such an apply fails for every value of fieldValidation.
"""

from collections.abc import Iterator, Mapping

from dra_simulator.api import kinds
from dra_simulator.api.failures import ApiError
from dra_simulator.api.kinds import Kind
from dra_simulator.api.ownership import Item
from dra_simulator.api.schema import Json, Schema, Type, parsed
from dra_simulator.api.strategy import part


def check(schema: Schema, kind: Kind, version: str, *, body: Json) -> None:
    """Check that the schema of a kind declares all fields of an applied object.

    Raises:
        ApiError: 500 with the path of each undeclared field.
    """
    fields = {name: value for name, value in body.items() if name not in {"apiVersion", "kind"}}
    paths = sorted(_undeclared(schema, kind.struct, kind.inward(fields)))
    if not paths:
        return
    errors = [f"{path}: field not declared in schema" for path in paths]
    listed = errors[0] if len(errors) == 1 else "errors:" + "".join(f"\n  {e}" for e in errors)
    metadata = part(body, "metadata")
    where = f"{metadata.get('namespace', '')}/{metadata.get('name', '')}"
    group_version = kinds.api_version(kind.group, version) if kind.group else f"/{version}"
    text = f"failed to create typed patch object ({where}; {group_version}, Kind={kind.kind}): "
    raise ApiError(500, "", text + listed)


def _undeclared(schema: Schema, struct: str, document: Mapping[str, object]) -> Iterator[str]:
    for name, value in document.items():
        if not schema.declares(struct, name):
            yield f".{name}"
            continue
        for rest in _within(schema, schema.field(struct, name), value):
            yield f".{name}{rest}"


def _within(schema: Schema, found: Type, value: object) -> Iterator[str]:
    if found.shape == "struct" and isinstance(value, dict):
        yield from _undeclared(schema, found.base, value)
    elif found.shape == "map" and isinstance(value, dict):
        for key, item in value.items():
            yield from (f".{key}{rest}" for rest in _within(schema, parsed(found.base), item))
    elif found.shape == "list" and isinstance(value, list):
        for index, item in enumerate(value):
            step = _step(found, item, index)
            yield from (f"{step}{rest}" for rest in _within(schema, parsed(found.base), item))


def _step(found: Type, item: object, index: int) -> str:
    if not found.keys or not isinstance(item, dict):
        return f"[{index}]"
    return str(Item(tuple((key, item.get(key, "")) for key in found.keys)))
