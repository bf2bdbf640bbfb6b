"""Types of the values that selectors read, and of Kubernetes' functions and methods.

Sources: k8s.io/dynamic-resource-allocation/cel/compile.go for `device`, and
k8s.io/apiserver/pkg/cel/library for quantities and versions.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.cel import dialect
from tensorfusion_dra.core.cel.dialect import Kind


@dataclass(frozen=True, slots=True)
class Type:
    """Type of a value.

    Attributes:
        name: CEL's name of it; `dyn` if it is known only at run time.
        of: Type of the items of a list, the values of a map, or the value of an optional.
        is_attribute: True for the value of an attribute of this driver. The API server does not
            know its type when it accepts an expression; if it does not fit, the expression fails
            on every device.
    """

    name: str
    of: "Type | None" = None
    is_attribute: bool = False

    @property
    def is_known(self) -> bool:
        """Return True if it is neither `dyn` nor `null`."""
        return self.name not in {"dyn", "null"}

    @property
    def is_number(self) -> bool:
        """Return True if it is one of CEL's numeric types."""
        return self.name in {"int", "uint", "double"}

    def shown(self) -> str:
        """Return the type as errors show it."""
        return _WORDS.get(self.name, f"a {self.name}")


DYN: Final = Type("dyn")
BOOL, INT, UINT, DOUBLE = Type("bool"), Type("int"), Type("uint"), Type("double")
STRING, BYTES, NULL = Type("string"), Type("bytes"), Type("null")
QUANTITY, VERSION = Type("Quantity"), Type("Semver")
TIMESTAMP, DURATION = Type("timestamp"), Type("duration")
DEVICE: Final = Type("device")
_CAPACITY_OF_A_DRIVER: Final = Type("map", QUANTITY)
_OUR_ATTRIBUTES: Final = Type("our attributes")

_WORDS: Final = {
    "int": "an integer",
    "uint": "an unsigned integer",
    "Semver": "a version",
    "device": "the device",
    "optional": "an optional value",
    "bytes": "bytes",
    "our attributes": "a driver's attributes",
    "attributes": "the attributes of all drivers",
    "type": "a type",
}

DEVICE_FIELDS: Final[Mapping[str, Type]] = {
    "driver": STRING,
    "attributes": Type("attributes"),
    "capacity": Type("map", _CAPACITY_OF_A_DRIVER),
    "allowMultipleAllocations": BOOL,
}
_OF_KIND: Final = {
    Kind.STRING: STRING,
    Kind.AMOUNT: STRING,
    Kind.INT: INT,
    Kind.VERSION: VERSION,
}
_ATTRIBUTES: Final = {
    name: replace(_OF_KIND[kind], is_attribute=True) for name, kind in dialect.ATTRIBUTES.items()
}

COMPARISONS: Final = {
    "compareTo": INT,
    "isGreaterThan": BOOL,
    "isLessThan": BOOL,
}
QUANTITY_METHODS: Final = {
    **COMPARISONS,
    "add": QUANTITY,
    "sub": QUANTITY,
    "asApproximateFloat": DOUBLE,
    "asInteger": INT,
    "isInteger": BOOL,
    "sign": INT,
}
VERSION_METHODS: Final = {**COMPARISONS, "major": INT, "minor": INT, "patch": INT}
_ORDERED: Final = frozenset({"string", "bool", "bytes", "timestamp", "duration"})
STRING_METHODS: Final = {
    **dict.fromkeys(("contains", "startsWith", "endsWith", "matches"), BOOL),
    **dict.fromkeys(("lowerAscii", "upperAscii", "trim", "replace", "substring", "charAt"), STRING),
    **dict.fromkeys(("find", "format", "reverse", "join"), STRING),
    "split": Type("list", STRING),
    "findAll": Type("list", STRING),
}
FUNCTIONS: Final = {
    "quantity": QUANTITY,
    "semver": VERSION,
    "isQuantity": BOOL,
    "isSemver": BOOL,
    "size": INT,
    "int": INT,
    "uint": UINT,
    "double": DOUBLE,
    "string": STRING,
    "bytes": BYTES,
    "bool": BOOL,
    "timestamp": TIMESTAMP,
    "duration": DURATION,
    **dict.fromkeys(("isURL", "isIP", "isCIDR", "matches"), BOOL),
    **dict.fromkeys(("dyn", "type", "url", "ip", "cidr"), DYN),
}
"""Functions without a target, with the types of their results."""
READ_TEXT: Final = frozenset({"quantity", "semver", "isQuantity", "isSemver"})


def field(of: Type, name: str) -> Type | None:
    """Return the type of a field or entry of a value; None if the value cannot have it."""
    if of.name == "optional":
        inner = field(of.of or DYN, name)
        return None if inner is None else optional(inner)
    if of.name in {"map", "dyn", "null"}:
        return of.of or DYN
    found: Mapping[str, Mapping[str, Type]] = {
        "device": DEVICE_FIELDS,
        "attributes": {name: _OUR_ATTRIBUTES if name == names.DRIVER else Type("map", DYN)},
        "our attributes": {name: _ATTRIBUTES.get(name, DYN)},
    }
    return found.get(of.name, {}).get(name)


def optional(of: Type) -> Type:
    """Return the type of a value that may be absent."""
    return of if of.name == "optional" else Type("optional", of)


def may_be_equal(left: Type, right: Type) -> bool:
    """Return True if values of these types may be compared by == and in, and may be equal."""
    if not (left.is_known and right.is_known) or left.name == right.name:
        return True
    # Attributes are compared at run time, where 1 == 1.0 is true.
    return left.is_attribute | right.is_attribute and left.is_number and right.is_number


def may_be_ordered(left: Type, right: Type) -> bool:
    """Return True if values of these types may be compared by <, <=, > and >=."""
    for each in (left, right):
        if each.is_known and not (each.is_number or each.name in _ORDERED):
            return False
    if not (left.is_known and right.is_known) or left.name == right.name:
        return True
    return left.is_number and right.is_number


def any_entry(of: Type) -> Type:
    """Return the type of an entry whose name is unknown."""
    if of.name == "attributes":
        return Type("map", DYN)
    return of.of or DYN if of.name == "map" else DYN


def of_optional(of: Type, name: str) -> Type:
    """Return the type of a method of an optional value."""
    if name in {"orValue", "value"}:
        return of.of or DYN
    return BOOL if name == "hasValue" else of
