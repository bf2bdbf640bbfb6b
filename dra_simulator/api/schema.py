"""Decoding of JSON into the shape of a Kubernetes type, with a report of unknown fields.

A type is written as in Go, in a string: ``string``, ``int``, ``bool``, ``quantity``, ``time``,
``microtime``, ``raw`` (any JSON, kept as it is), ``any``, a struct's name, ``[]T``, ``{}T`` (a map
from string) and ``[key,key]T`` (a list that is a map by these keys). A leading ``*`` marks a Go
pointer: its zero value is kept, while that of other fields is left out. A field name ending in
``!`` is written even if it is empty. ``[+key]T`` is a list that a strategic merge patch merges by
its first key, and ``[+]T`` one that it merges by value.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from typing import Final, Literal

from tensorfusion_dra.core.errors import DriverError
from tensorfusion_dra.core.kubernetes import quantity

Json = dict[str, object]
Structs = Mapping[str, Mapping[str, str]]

_ZEROS: Final[Mapping[str, object]] = {
    "string": "",
    "int": 0,
    "bool": False,
    "quantity": "0",
}
_BLANKS: Final = " \x85\xa0\u1680\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
"""Quantity.UnmarshalJSON trims these. JSON escapes a tab or a newline, which is not trimmed."""
_QUANTITY_TEXT: Final = (
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
)
_TIME: Final = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2})(\.[0-9]+)?(Z|[+-][0-9]{2}:[0-9]{2})"
)
_INT64: Final = range(-(2**63), 2**63)
_GO_NAMES: Final = {"int": "int64", "bool": "bool"}
_PYTHON_TYPES: Final[Mapping[str, type]] = {
    "int": int,
    "bool": bool,
    "any": object,
    "raw": object,
}


class DecodeError(DriverError):
    """A value in a document has another JSON type than its field."""


@dataclass(frozen=True, slots=True)
class Type:
    """One parsed type string.

    Attributes:
        base: Its innermost name; for a list or map, the type of an element.
        keys: The fields that identify an element of a list.
        merged: A strategic merge patch merges this list, by its first key or, without keys, by
            value; it replaces other lists.
    """

    shape: Literal["scalar", "struct", "list", "map"]
    base: str
    pointer: bool = False
    keys: tuple[str, ...] = ()
    merged: bool = False


@dataclass(frozen=True, slots=True)
class Schema:
    """Structs of API types.

    Attributes:
        structs: Types of each struct's fields, by name.
    """

    structs: Structs
    _names: dict[str, dict[str, str]] = field(default_factory=dict, init=False, compare=False)

    def __post_init__(self) -> None:
        for struct, fields in self.structs.items():
            self._names[struct] = {name.rstrip("!"): name for name in fields}

    def decode(self, struct: str, document: Mapping[str, object]) -> tuple[Json, tuple[str, ...]]:
        """Return the document without unknown fields, and the errors in its field names.

        Quantities and times are returned in their canonical form; null is left out.

        Raises:
            DecodeError: A value has the wrong JSON type.
        """
        complaints: list[str] = []
        decoded = self._struct(struct, document, "", complaints)
        return decoded, tuple(complaints)

    def stored(self, struct: str, document: Mapping[str, object]) -> Json:
        """Return a decoded document as the API server stores and sends it.

        Empty fields are left out, except those that Go always writes.
        """
        kept: Json = {}
        for marked, text in self.structs[struct].items():
            name, always = marked.rstrip("!"), marked.endswith("!")
            found = parsed(text)
            value = document.get(name)
            if value is None:
                if always or (found.shape == "struct" and not found.pointer):
                    kept[name] = self._zero(found)
            elif found.shape == "struct":
                assert isinstance(value, dict)
                kept[name] = self.stored(found.base, value)
            elif value or always or found.pointer:
                kept[name] = self._stored_value(found, value)
        return kept

    def field(self, struct: str, name: str) -> Type:
        """Return the type of a field; ``any`` if the field or its struct is not checked."""
        marked = self._names.get(struct, {}).get(name)
        return parsed(self.structs[struct][marked]) if marked else ANY

    def walk(self, struct: str, document: Json, path: str) -> Iterator[tuple[str, str, Json]]:
        """Yield a decoded object and each object in it, with its struct and its path.

        Where Go always has an object, an absent one is yielded as an empty one.
        """
        yield struct, path, document
        for name in self._names[struct]:
            found, value, here = self.field(struct, name), document.get(name), _child(path, name)
            if found.shape == "struct":
                if isinstance(value, dict) or not found.pointer:
                    yield from self.walk(found.base, part(document, name), here)
            elif parsed(found.base).shape == "struct":
                items = value.items() if isinstance(value, dict) else enumerate(elements(value))
                for key, item in items:
                    yield from self.walk(found.base, item, f"{here}[{key}]")

    def _stored_value(self, found: Type, value: object) -> object:
        inner = parsed(found.base)
        if found.shape == "list" and isinstance(value, list):
            if not value:
                return None
            return [self._stored_element(inner, item) for item in value]
        if found.shape == "map" and isinstance(value, dict):
            return {key: self._stored_element(inner, item) for key, item in value.items()}
        return value

    def _stored_element(self, inner: Type, item: object) -> object:
        if inner.shape == "struct" and isinstance(item, dict):
            return self.stored(inner.base, item)
        return item

    def _zero(self, found: Type) -> object:
        if found.pointer or found.shape in ("list", "map"):
            return None
        if found.shape == "struct":
            return self.stored(found.base, {})
        return _ZEROS.get(found.base)

    def _struct(self, struct: str, document: object, path: str, complaints: list[str]) -> Json:
        if not isinstance(document, dict):
            raise _mismatch(document, path, struct)
        names = self._names[struct]
        decoded: Json = {}
        for name, value in document.items():
            marked = names.get(name)
            if marked is None:
                complaints.append(f'unknown field "{_child(path, name)}"')
            elif value is not None:
                found = parsed(self.structs[struct][marked])
                decoded[name] = self._value(found, value, _child(path, name), complaints)
        return decoded

    def _value(self, found: Type, value: object, path: str, complaints: list[str]) -> object:
        if found.shape == "struct":
            return self._struct(found.base, value, path, complaints)
        if found.shape == "list":
            if not isinstance(value, list):
                raise _mismatch(value, path, f"[]{found.base}")
            inner = parsed(found.base)
            return [
                self._value(inner, _no_null(inner, item), f"{path}[{index}]", complaints)
                for index, item in enumerate(value)
            ]
        if found.shape == "map":
            if not isinstance(value, dict):
                raise _mismatch(value, path, f"map[string]{found.base}")
            inner = parsed(found.base)
            return {
                key: self._value(inner, _no_null(inner, item), _child(path, key), complaints)
                for key, item in value.items()
            }
        return _scalar(found.base, value, path)


@cache
def parsed(text: str) -> Type:
    """Parse a type string."""
    pointer = text.startswith("*")
    text = text.removeprefix("*")
    if text.startswith("["):
        listed, _, base = text[1:].partition("]")
        keys = listed.removeprefix("+")
        by = tuple(keys.split(",")) if keys else ()
        return Type("list", base, pointer, by, merged=listed.startswith("+"))
    if text.startswith("{}"):
        return Type("map", text[2:], pointer)
    return Type("struct" if text[:1].isupper() else "scalar", text, pointer)


ANY: Final = parsed("any")
"""Type of a field that is not checked."""


def _no_null(inner: Type, item: object) -> object:
    """Return an item of a list or map; null becomes the zero value of its type."""
    if item is not None or inner.base == "any":
        return item
    return {} if inner.shape == "struct" else _ZEROS.get(inner.base, "")


def _child(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def part(document: Json, name: str) -> Json:
    """Return an object inside a decoded object; if absent, an empty one that is not part of it."""
    found = document.get(name)
    return found if isinstance(found, dict) else {}


def elements(value: object) -> Iterator[Json]:
    """Yield the objects in a decoded list; nothing if the list is absent."""
    if isinstance(value, list):
        yield from (item for item in value if isinstance(item, dict))


def _scalar(name: str, value: object, path: str) -> object:
    """Return a value of a scalar type in its canonical form; path names its field in errors.

    Raises:
        DecodeError: The value is of another type.
    """
    # bool is an int to Python, but not to JSON.
    is_bool = isinstance(value, bool)
    match name:
        case "quantity":
            return _quantity(value)
        case "time" | "microtime" if isinstance(value, str):
            return _time(value, digits=6 if name == "microtime" else 0)
        case _:
            wanted = _PYTHON_TYPES.get(name, str)
            if not isinstance(value, wanted) or (is_bool and wanted is int):
                raise _mismatch(value, path, _GO_NAMES.get(name, "string"))
            if wanted is int and value not in _INT64:
                raise _mismatch(value, path, "int64")
            return value


def _quantity(value: object) -> str:
    value = value.strip(_BLANKS) if isinstance(value, str) else value
    try:
        return str(quantity.parse(repr(value) if isinstance(value, float) else value))
    except quantity.QuantityError as error:
        raise DecodeError(_QUANTITY_TEXT) from error


def _time(value: str, *, digits: int) -> str:
    text = f'parsing time "{value}" as "2006-01-02T15:04:05Z07:00": cannot parse "{value}"'
    match = _TIME.fullmatch(value)
    if match is None:
        raise DecodeError(text)
    try:
        moment = datetime.fromisoformat(match[1] + match[3]).astimezone(UTC)
    except ValueError as error:
        raise DecodeError(text) from error
    fraction = (match[2] or ".")[1:]
    shown = moment.strftime("%Y-%m-%dT%H:%M:%S")
    return f"{shown}.{fraction:0<{digits}.{digits}}Z" if digits else f"{shown}Z"


def _mismatch(value: object, path: str, expected: str) -> DecodeError:
    """Return the error for a value of another JSON type than its field, worded as in Go."""
    names = {str: "string", bool: "bool", int: "number", float: "number", list: "array"}
    found = names.get(type(value), "null" if value is None else "object")
    return DecodeError(
        f"json: cannot unmarshal {found} into Go struct field {path} of type {expected}"
    )
