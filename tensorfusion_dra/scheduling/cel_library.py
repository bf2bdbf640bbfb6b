"""Functions that Kubernetes adds to CEL for quantities and versions.

Source: k8s.io/apiserver/pkg/cel/library, quantity.go and semverlib.go. A quantity or version is a
map with one entry here, because the evaluator does not accept values of custom types.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from cel_expr_python import cel
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, struct_pb2

from tensorfusion_dra.core.cel import dialect
from tensorfusion_dra.core.cel.dialect import Kind
from tensorfusion_dra.core.kubernetes import quantity
from tensorfusion_dra.core.kubernetes.quantity import NANO, Quantity, QuantityError

Value = dict[str, str]

DEVICE: Final = "kubernetes.Device"
OWN_ATTRIBUTES: Final = "kubernetes.OwnAttributes"
QUANTITY: Final = "kubernetes.Quantity"
_SEMVER: Final = "kubernetes.Semver"
_REPEATED: Final = {"label": "LABEL_REPEATED"}
_STRING: Final = {"type": "TYPE_STRING"}
_FIELD_OF_KIND: Final = {
    Kind.STRING: _STRING,
    Kind.AMOUNT: _STRING,
    Kind.INT: {"type": "TYPE_INT64"},
    Kind.VERSION: {"typeName": f".{_SEMVER}"},
}
_MAX_INT: Final = 2**63 - 1

_SEMVER_SHAPE: Final = re.compile(
    r"(?P<major>0|[1-9][0-9]*)\.(?P<minor>0|[1-9][0-9]*)\.(?P<patch>0|[1-9][0-9]*)"
    r"(?:-(?P<pre>(?:0|[1-9][0-9]*|[0-9]*[a-zA-Z-][0-9a-zA-Z-]*)"
    r"(?:\.(?:0|[1-9][0-9]*|[0-9]*[a-zA-Z-][0-9a-zA-Z-]*))*))?"
    r"(?:\+[0-9a-zA-Z-]+(?:\.[0-9a-zA-Z-]+)*)?"
)


def quantity_value(amount: Quantity) -> Value:
    """Return the CEL value of a quantity; equal amounts are equal values."""
    return {QUANTITY: str(amount.nano)}


def semver_value(text: str, normalize: bool = False) -> Value:
    """Return the CEL value of a version, without build metadata, which comparisons ignore.

    Raises:
        ValueError: The text is not a semver 2.0.0 version.
    """
    match = _SEMVER_SHAPE.fullmatch(_normalized(text) if normalize else text)
    if match is None:
        raise ValueError(f"found {text!r}, expected a semantic version such as 1.2.3")
    core = f"{match['major']}.{match['minor']}.{match['patch']}"
    return {_SEMVER: core + (f"-{match['pre']}" if match["pre"] else "")}


def _normalized(text: str) -> str:
    """Return a version with all three numbers, without a leading v and without leading zeros."""
    core = re.split("[-+]", text, maxsplit=1)[0]
    numbers = [
        number.lstrip("0") or "0" if number.isdigit() else number
        for number in core.removeprefix("v").split(".")
    ]
    return ".".join([*numbers, "0", "0"][: max(3, len(numbers))]) + text[len(core) :]


def extension(*, typed: bool) -> Any:
    """Return the library for an environment.

    Args:
        typed: True for an environment that checks expressions, in which quantities and versions
            have their own types. False for one that evaluates them.
    """
    as_map = cel.Type.Map(cel.Type.STRING, cel.Type.DYN)
    types = {
        "string": cel.Type.STRING,
        "int": cel.Type.INT,
        "bool": cel.Type.BOOL,
        "double": cel.Type.DOUBLE,
        QUANTITY: cel.Type(QUANTITY) if typed else as_map,
        _SEMVER: cel.Type(_SEMVER) if typed else as_map,
    }
    functions: dict[str, dict[str, Any]] = {}
    for entry in _FUNCTIONS:
        overload = cel.Overload(
            entry.overload(),
            return_type=types[entry.returns],
            parameters=[types[parameter] for parameter in entry.parameters],
            is_member=entry.is_member,
            impl=entry.function,
        )
        # Without their own types, a function of both quantities and versions is a single overload.
        signature = ",".join(str(types[parameter].name()) for parameter in entry.parameters)
        functions.setdefault(entry.name, {}).setdefault(signature, overload)
    declared = [cel.FunctionDecl(name, list(found.values())) for name, found in functions.items()]
    return cel.CelExtension("kubernetes", declared)


def declared_types() -> descriptor_pool.DescriptorPool:
    """Return the types of an environment that checks expressions, as messages.

    The type of `device` has no map of maps, which a message cannot have: its values are Structs,
    which CEL reads as maps. OwnAttributes are this driver's attributes, each with its type.
    """
    own = [
        {"name": name, "number": number, **_FIELD_OF_KIND[kind]}
        for number, (name, kind) in enumerate(dialect.ATTRIBUTES.items(), start=1)
    ]
    maps = [
        {
            "name": f"{name.title()}Entry",
            "options": {"mapEntry": True},
            "field": [
                {"name": "key", "number": 1, **_STRING},
                {"name": "value", "number": 2, "typeName": ".google.protobuf.Struct"},
            ],
        }
        for name in ("attributes", "capacity")
    ]
    device = [
        {"name": "driver", "number": 1, **_STRING},
        {"name": "allowMultipleAllocations", "number": 2, "type": "TYPE_BOOL"},
        {"name": "attributes", "number": 3, **_REPEATED, "typeName": f".{DEVICE}.AttributesEntry"},
        {"name": "capacity", "number": 4, **_REPEATED, "typeName": f".{DEVICE}.CapacityEntry"},
    ]
    described = {
        "name": "kubernetes.proto",
        "package": "kubernetes",
        "syntax": "proto3",
        "dependency": ["google/protobuf/struct.proto"],
        "messageType": [
            {"name": "Quantity"},
            {"name": "Semver"},
            {"name": "Device", "field": device, "nestedType": maps},
            {"name": "OwnAttributes", "field": own},
        ],
    }
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(struct_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(json_format.ParseDict(described, descriptor_pb2.FileDescriptorProto()))
    return pool


def _amount(value: Mapping[str, object]) -> Quantity:
    nano = value.get(QUANTITY)
    if not isinstance(nano, str):
        raise ValueError("no such overload: found no quantity, expected one")  # noqa: TRY004
    return Quantity(int(nano))


def _parsed(text: str) -> Value:
    try:
        return quantity_value(quantity.parse(text))
    except QuantityError as error:
        raise ValueError(str(error)) from error


def _is_valid(parse: Callable[..., Value]) -> Callable[..., bool]:
    """Return the function that says whether a parser accepts its arguments."""

    def is_valid(*arguments: object) -> bool:
        try:
            parse(*arguments)
        except ValueError:
            return False
        return True

    return is_valid


def _is_integer(value: Value) -> bool:
    amount = _amount(value)
    return amount.nano % NANO == 0 and abs(amount.nano // NANO) <= _MAX_INT


def _as_integer(value: Value) -> int:
    if not _is_integer(value):
        raise ValueError("cannot convert value to integer")
    return _amount(value).nano // NANO


def _sign(value: Value) -> int:
    nano = _amount(value).nano
    return (nano > 0) - (nano < 0)


def _sum(left: Value, right: Value | int, sign: int = 1) -> Value:
    other = Quantity.whole(right) if isinstance(right, int) else _amount(right)
    return quantity_value(_amount(left) + Quantity(sign * other.nano))


def _difference(left: Value, right: Value | int) -> Value:
    return _sum(left, right, -1)


def _numbers(value: Mapping[str, object]) -> tuple[int, int, int]:
    major, minor, patch = _version(value).partition("-")[0].split(".")
    return int(major), int(minor), int(patch)


def _version(value: Mapping[str, object]) -> str:
    text = value.get(_SEMVER)
    if not isinstance(text, str):
        raise ValueError("no such overload: found no version, expected one")  # noqa: TRY004
    return text


def _precedence(value: Mapping[str, object]) -> tuple[object, ...]:
    """Return the sort key of a version (semver 2.0.0, section 11)."""
    release = _version(value).partition("-")[2]
    parts = [
        (0, int(part), "") if part.isdigit() else (1, 0, part)
        for part in release.split(".")
        if part
    ]
    return (*_numbers(value), not release, parts)


def _compared(left: Value, right: Value) -> int:
    if _SEMVER in left:
        one, two = _precedence(left), _precedence(right)
        return (one > two) - (one < two)
    first, second = _amount(left).nano, _amount(right).nano
    return (first > second) - (first < second)


@dataclass(frozen=True, slots=True)
class _Entry:
    """One overload; the first parameter of a member function is its receiver."""

    name: str
    parameters: tuple[str, ...]
    returns: str
    function: Callable[..., object]
    is_member: bool = True

    def overload(self) -> str:
        """Return the id of the overload, unique in the library."""
        short = (parameter.rpartition(".")[2].lower() for parameter in self.parameters)
        return "_".join(("k8s", self.name, *short))


_FUNCTIONS: Final = (
    _Entry("quantity", ("string",), QUANTITY, _parsed, is_member=False),
    _Entry("isQuantity", ("string",), "bool", _is_valid(_parsed), is_member=False),
    _Entry("isInteger", (QUANTITY,), "bool", _is_integer),
    _Entry("asInteger", (QUANTITY,), "int", _as_integer),
    _Entry("asApproximateFloat", (QUANTITY,), "double", lambda value: _amount(value).nano / NANO),
    _Entry("sign", (QUANTITY,), "int", _sign),
    _Entry("add", (QUANTITY, QUANTITY), QUANTITY, _sum),
    _Entry("add", (QUANTITY, "int"), QUANTITY, _sum),
    _Entry("sub", (QUANTITY, QUANTITY), QUANTITY, _difference),
    _Entry("sub", (QUANTITY, "int"), QUANTITY, _difference),
    _Entry("semver", ("string",), _SEMVER, semver_value, is_member=False),
    _Entry("semver", ("string", "bool"), _SEMVER, semver_value, is_member=False),
    _Entry("isSemver", ("string",), "bool", _is_valid(semver_value), is_member=False),
    _Entry("isSemver", ("string", "bool"), "bool", _is_valid(semver_value), is_member=False),
    _Entry("major", (_SEMVER,), "int", lambda value: _numbers(value)[0]),
    _Entry("minor", (_SEMVER,), "int", lambda value: _numbers(value)[1]),
    _Entry("patch", (_SEMVER,), "int", lambda value: _numbers(value)[2]),
    *(
        entry
        for kind in (QUANTITY, _SEMVER)
        for entry in (
            _Entry("compareTo", (kind, kind), "int", _compared),
            _Entry("isGreaterThan", (kind, kind), "bool", lambda a, b: _compared(a, b) > 0),
            _Entry("isLessThan", (kind, kind), "bool", lambda a, b: _compared(a, b) < 0),
        )
    ),
)
