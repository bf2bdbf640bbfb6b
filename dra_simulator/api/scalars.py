"""Decoding of JSON values that are neither objects nor lists."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from tensorfusion_dra.core.errors import DriverError
from tensorfusion_dra.core.kubernetes import quantity

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


def scalar(name: str, value: object, path: str) -> object:
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
        case "intorstring" if isinstance(value, int) and not is_bool:
            return value
        case _:
            wanted = _PYTHON_TYPES.get(name, str)
            if not isinstance(value, wanted) or (is_bool and wanted is int):
                raise mismatch(value, path, _GO_NAMES.get(name, "string"))
            if wanted is int and value not in _INT64:
                raise mismatch(value, path, "int64")
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


def mismatch(value: object, path: str, expected: str) -> DecodeError:
    """Return the error for a value of another JSON type than its field, worded as in Go."""
    names = {str: "string", bool: "bool", int: "number", float: "number", list: "array"}
    found = names.get(type(value), "null" if value is None else "object")
    return DecodeError(
        f"json: cannot unmarshal {found} into Go struct field {path} of type {expected}"
    )
