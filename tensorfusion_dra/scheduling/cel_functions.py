"""Kubernetes' functions for quantities, versions and lists, which the CEL library lacks.

Their source is apiserver/pkg/cel/library. While an expression is evaluated, a quantity or a version
is a map with one entry.
"""

import functools
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from tensorfusion_dra.core.kubernetes import device_rules, quantity, releases
from tensorfusion_dra.core.kubernetes.quantity import NANO, Quantity, QuantityError

with suppress(ImportError):  # cel_evaluation says what this means
    from cel_expr_python import cel

Value = dict[str, str]

QUANTITY: Final = "kubernetes.Quantity"
SEMVER: Final = "kubernetes.Semver"


def quantity_value(amount: Quantity) -> Value:
    """Return the CEL value of a quantity; equal amounts are equal values."""
    return {QUANTITY: str(amount.nano)}


def semver_value(text: str, normalize: bool = False) -> Value:
    """Return the CEL value of a version, without build metadata, which comparisons ignore.

    Raises:
        ValueError: The text is not a semver 2.0.0 version.
    """
    version = text
    if normalize:  # all three numbers, without a leading v and without leading zeros
        core = re.split("[-+]", text, maxsplit=1)[0]
        numbers = [
            number.lstrip("0") or "0" if number.isdigit() else number
            for number in core.removeprefix("v").split(".")
        ]
        version = ".".join([*numbers, "0", "0"][: max(3, len(numbers))]) + text[len(core) :]
    match = device_rules.SEMVER.fullmatch(version)
    identifiers = version.partition("+")[0].replace("-", ".", 1).split(".")
    if match is None or any(each.isdecimal() and int(each) >= 2**64 for each in identifiers):
        raise ValueError(f"found {text!r}, expected a semantic version such as 1.2.3")
    core = f"{match['major']}.{match['minor']}.{match['patch']}"
    return {SEMVER: core + (f"-{match['pre']}" if match["pre"] else "")}


def _content(value: Mapping[str, object], kind: str) -> str:
    content = value.get(kind)
    if not isinstance(content, str):
        raise ValueError(f"no such overload: found no {kind}, expected one")  # noqa: TRY004
    return content


def _amount(value: Mapping[str, object]) -> Quantity:
    return Quantity(int(_content(value, QUANTITY)))


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
    return _amount(value).is_whole(NANO)


def _as_integer(value: Value) -> int:
    if not _is_integer(value):
        raise ValueError("cannot convert value to integer")
    return _amount(value).nano // NANO


def _sum(left: Value, right: Value | int, sign: int = 1) -> Value:
    other = Quantity.whole(right) if isinstance(right, int) else _amount(right)
    return quantity_value(_amount(left) + Quantity(sign * other.nano))


def _numbers(value: Mapping[str, object]) -> list[int]:
    """Return the three numbers of a version, each in 64 bits with a sign, as Go converts them."""
    numbers = _content(value, SEMVER).partition("-")[0].split(".")
    return [(int(number) + 2**63) % 2**64 - 2**63 for number in numbers]


def _precedence(value: Mapping[str, object]) -> tuple[object, ...]:
    """Return the sort key of a version (semver 2.0.0, section 11)."""
    core, _, release = _content(value, SEMVER).partition("-")
    parts = [
        (0, int(part), "") if part.isdigit() else (1, 0, part)
        for part in release.split(".")
        if part
    ]
    return (*map(int, core.split(".")), not release, parts)


def _compared(left: Value, right: Value) -> int:
    key: Callable[[Value], Any] = _precedence if SEMVER in left else _amount
    one, two = key(left), key(right)
    return int(one > two) - int(one < two)


def _includes(value: object, wanted: object) -> bool:
    """Return True for a list with an entry that equals a value, and for the value itself."""
    entries = value if isinstance(value, list) else [value]
    return any(
        each == wanted and isinstance(each, bool) == isinstance(wanted, bool) for each in entries
    )


@dataclass(frozen=True, slots=True)
class _Entry:
    """One overload; the first parameter of a member function is its receiver."""

    name: str
    parameters: tuple[str, ...]
    returns: str
    function: Callable[..., object]
    is_member: bool = True
    since: int = releases.OLDEST


_ZERO: Final = quantity_value(Quantity(0))
_FUNCTIONS: Final = (
    _Entry("quantity", ("string",), QUANTITY, _parsed, is_member=False),
    _Entry("isQuantity", ("string",), "bool", _is_valid(_parsed), is_member=False),
    _Entry("isInteger", (QUANTITY,), "bool", _is_integer),
    _Entry("asInteger", (QUANTITY,), "int", _as_integer),
    _Entry("asApproximateFloat", (QUANTITY,), "double", lambda value: _amount(value).nano / NANO),
    _Entry("sign", (QUANTITY,), "int", lambda value: _compared(value, _ZERO), is_member=False),
    _Entry("add", (QUANTITY, QUANTITY), QUANTITY, _sum),
    _Entry("add", (QUANTITY, "int"), QUANTITY, _sum),
    _Entry("sub", (QUANTITY, QUANTITY), QUANTITY, functools.partial(_sum, sign=-1)),
    _Entry("sub", (QUANTITY, "int"), QUANTITY, functools.partial(_sum, sign=-1)),
    _Entry("semver", ("string",), SEMVER, semver_value, is_member=False),
    _Entry("semver", ("string", "bool"), SEMVER, semver_value, is_member=False),
    _Entry("isSemver", ("string",), "bool", _is_valid(semver_value), is_member=False),
    _Entry("isSemver", ("string", "bool"), "bool", _is_valid(semver_value), is_member=False),
    _Entry("major", (SEMVER,), "int", lambda value: _numbers(value)[0]),
    _Entry("minor", (SEMVER,), "int", lambda value: _numbers(value)[1]),
    _Entry("patch", (SEMVER,), "int", lambda value: _numbers(value)[2]),
    _Entry("includes", ("dyn", "dyn"), "bool", _includes, since=releases.INCLUDES),
    *(
        entry
        for kind in (QUANTITY, SEMVER)
        for entry in (
            _Entry("compareTo", (kind, kind), "int", _compared),
            _Entry("isGreaterThan", (kind, kind), "bool", lambda a, b: _compared(a, b) > 0),
            _Entry("isLessThan", (kind, kind), "bool", lambda a, b: _compared(a, b) < 0),
        )
    ),
)


NOT_COVERED: Final = frozenset(
    {"find", "findAll", "url", "isURL", "ip", "isIP", "cidr", "isCIDR", "sets", "format"}
    | {"isSorted", "sum", "min", "max", "indexOf", "lastIndexOf", "existsOne"}
    | {"all", "exists", "transformList", "transformMap", "transformMapEntry"}
)
"""Functions of Kubernetes that the library lacks; of `all` and `exists` the forms of two names."""


def extension(*, typed: bool, release: int) -> Any:
    """Return the library for an environment.

    Args:
        typed: True for an environment that checks expressions, in which quantities and versions
            have their own types. False for one that evaluates them.
        release: Minor version of Kubernetes, which may lack a function.
    """
    as_map = cel.Type.Map(cel.Type.STRING, cel.Type.DYN)
    types = {
        "string": cel.Type.STRING,
        "int": cel.Type.INT,
        "bool": cel.Type.BOOL,
        "double": cel.Type.DOUBLE,
        "dyn": cel.Type.DYN,
        QUANTITY: cel.Type(QUANTITY) if typed else as_map,
        SEMVER: cel.Type(SEMVER) if typed else as_map,
    }
    functions: dict[str, dict[str, Any]] = {}
    for entry in _FUNCTIONS:
        if release < entry.since:
            continue
        kinds = (parameter.rpartition(".")[2].lower() for parameter in entry.parameters)
        overload = cel.Overload(
            "_".join(("k8s", entry.name, *kinds)),  # an id that is unique in the library
            return_type=types[entry.returns],
            parameters=[types[parameter] for parameter in entry.parameters],
            is_member=entry.is_member,
            impl=entry.function,
        )
        # Without their own types, a function of both quantities and versions is a single overload.
        signature = ",".join(str(types[parameter].name()) for parameter in entry.parameters)
        functions.setdefault(entry.name, {}).setdefault(signature, overload)
    return cel.CelExtension(
        "kubernetes",
        [cel.FunctionDecl(name, list(found.values())) for name, found in functions.items()],
    )
