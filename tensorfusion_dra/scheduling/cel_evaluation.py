"""CEL device selectors, checked and evaluated as in Kubernetes (dynamic-resource-allocation/cel).

The check is that of the API server, with three differences. The library lacks some of Kubernetes'
functions (cel_functions.NOT_COVERED), nests expressions less deeply, and has no estimate of costs.

Expressions come from any tenant. So the library only sees those that `core.cel.cost` lets pass,
which has bounds of its own, below those of the API server.
"""

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, json_format, struct_pb2

from tensorfusion_dra.core import names
from tensorfusion_dra.core.cel import cost, syntax, user_guide
from tensorfusion_dra.core.cel.syntax import CelError, SyntaxNode
from tensorfusion_dra.core.cel.user_guide import MAX_EXPRESSION_BYTES, ValueKind
from tensorfusion_dra.core.errors import DriverError, InputError
from tensorfusion_dra.core.kubernetes import releases
from tensorfusion_dra.scheduling import cel_functions
from tensorfusion_dra.scheduling.devices import Attribute, PublishedDevice, slice_of

missing = ""
"""Why nothing can be evaluated here; "" if it can. Some systems have no wheel of the library."""
try:
    from cel_expr_python import cel
    from cel_expr_python.ext import ext_bindings, ext_optional, ext_strings
except ImportError as error:
    missing = f"found no CEL library ({error}), expected the Python package cel-expr-python"

DEVICE: Final = "kubernetes.Device"
OWN_ATTRIBUTES: Final = "kubernetes.OwnAttributes"
_REPEATED: Final = {"label": "LABEL_REPEATED"}
_STRING: Final = {"type": "TYPE_STRING"}
_FIELD_OF_KIND: Final = {
    ValueKind.STRING: _STRING,
    ValueKind.AMOUNT: _STRING,
    ValueKind.INT: {"type": "TYPE_INT64"},
    ValueKind.BOOL: {"type": "TYPE_BOOL"},
    ValueKind.VERSION: {"typeName": f".{cel_functions.SEMVER}"},
}


def declared_types() -> descriptor_pool.DescriptorPool:
    """Return the types of an environment that checks expressions, as messages.

    The type of `device` has no map of maps, which a message cannot have: its values are Structs,
    which CEL reads as maps. OwnAttributes are this driver's attributes, each with its type.
    """
    own = [
        {"name": name, "number": number, **_FIELD_OF_KIND[kind]}
        for number, (name, kind) in enumerate(user_guide.ATTRIBUTES.items(), start=1)
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


_SHOWN: Final = 300
_TOO_DEEP: Final = "1:1: found nesting more than 32 levels deep, expected less"
"""The library's own limit, which its binding cannot change; it reports no place."""
_ERROR_LINE: Final = re.compile(r"ERROR: <input>:([0-9]+:[0-9]+: [^\n]*)")
_NUMBER: Final = r"(?:list\()?(?:int|uint|double)\)?"
_MIXED_NUMBERS: Final = tuple(
    re.compile(
        rf"[0-9:]+ found no matching overload for '({operators})' applied to"
        rf" '\({_NUMBER}, {_NUMBER}\)'.*"
    )
    for operators in ("_[<>]=?_", "_[<>]=?_|_[=!]=_|@in")
)
"""Errors that Kubernetes does not have: it orders numbers of different types, such as
asApproximateFloat() >= 200. At run time, as for attributes, it also compares them by == and in."""
_UNDECLARED: Final = re.compile(r"[0-9:]+ undeclared reference to '([A-Za-z]+)'.*")
_SUFFIX: Final = re.compile(r"(?: \(in container ''\))?(?:\s*\[[A-Z_]+\])?$")
_PREFIX: Final = re.compile(r"^[A-Z_]+: ")
_WORDING: Final = {
    r'Key not found in map : "(.*)"': r"no such key: \1",
    r"No matching overloads found : .*": "no such overload",
    r"\bdivide by zero": "division by zero",
    r"cannot be the range of": "cannot be range of",
    r"map\(string, dyn\)": "map(string, any)",
}
_MAX_STEPS: Final = 1_000_000
"""Steps on all devices together, for selectors in pods: 416 for each of 2,400 devices."""
_MAX_EVALUATED: Final = 20
"""Literals that are evaluated to check them, which takes 0.1 ms each."""
_CONVERSIONS: Final = frozenset(
    {"bool", "bytes", "double", "duration", "dyn", "int", "string", "timestamp", "uint"}
)
"""Functions that the API server evaluates at creation if their argument is constant."""
_OWN: Final = "tensor_fusion_attributes"
_OWN_LOOKUP: Final = re.compile(
    rf"""(?<![\w.])device\s*\.\s*attributes\s*\[\s*(["']){re.escape(names.DRIVER)}\1\s*\]"""
    r"""(?:\[(["'])(?P<name>[a-z_]+)\2\])?"""
)


class CelCompileError(DriverError):
    """An expression does not compile; the API server rejects it."""


class CelRunError(DriverError):
    """An expression failed on a device, which stops the scheduling of the pod on every node."""


class Selector:
    """Compiled CEL expression."""

    def __init__(self, expression: str) -> None:
        self._expression: Final = expression
        self.steps: Final = cost.steps(expression, syntax.parse(expression))
        self._program: Final = _evaluating_environment().compile(
            syntax.with_empty_domains(expression), disable_check=True
        )

    def matches(self, device: PublishedDevice, *, release: int = releases.NEWEST) -> bool:
        """Return True if the expression selects the device.

        Args:
            release: Minor version of Kubernetes.

        Raises:
            CelRunError: The device lacks an attribute of the expression, or the result is not a
                bool.
        """
        attributes = {
            name: value
            for name, found in device.attributes.items()
            if (value := _attribute_value(name, found, release)) is not None
        }
        capacity = {
            name: cel_functions.quantity_value(found.value)
            for name, found in device.capacity.items()
        }
        maps = [_by_domain(device.id.driver, values) for values in (attributes, capacity)]
        if (domains := max(map(len, maps))) > cost.DOMAINS:
            try:
                cost.steps(self._expression, syntax.parse(self._expression), domains)
            except CelError as error:
                raise CelRunError(str(error)) from error
        fields = {
            "driver": device.id.driver,
            "allowMultipleAllocations": device.is_shared,
            **dict(zip((syntax.ATTRIBUTES, syntax.CAPACITY), maps, strict=True)),
        }
        result = self._program.eval(data={"device": fields})
        kind = result.type()
        if kind == cel.Type.ERROR:
            raise CelRunError(_kubernetes_error(str(result.value())))
        if kind != cel.Type.BOOL:
            name = kind.name().lower()
            raise CelRunError(f"CEL result of type {name} could not be converted to bool")
        return bool(result.value())


def _by_domain(driver: str, values: Mapping[str, object]) -> dict[str, dict[str, object]]:
    """Return the values by domain and id."""
    domains: dict[str, dict[str, object]] = {}
    for name, value in sorted(values.items(), key=lambda entry: "/" in entry[0]):
        domain, slash, short = name.partition("/")
        domains.setdefault(domain if slash else driver, {})[short if slash else name] = value
    return domains


@functools.lru_cache(maxsize=64)
def selector(expression: str) -> Selector:
    """Compile an expression.

    Raises:
        CelCompileError: It does not compile, or its result is not a bool.
        InputError: There is no CEL library.
    """
    if missing:
        raise InputError(missing)
    for error in _errors(expression):
        raise CelCompileError(_api_server_error(error))
    return Selector(expression)


def selecting(expression: str, *, count: int) -> Callable[[Mapping[str, Any]], Mapping[str, Any]]:
    """Return a function that returns a slice with only those devices that the expression selects.

    A device on which the expression fails is not selected.

    Args:
        count: Number of devices in all slices.

    Raises:
        InputError: The expression does not compile, perhaps for a function that is not covered, or
            takes too many steps for this number of devices.
    """
    try:
        program = selector(expression)
    except CelCompileError as error:
        raise InputError(f"{expression}: {error}, expected one without this, or amounts") from error
    if program.steps * count > _MAX_STEPS:
        raise InputError(
            f"found a selector of {program.steps} steps on each of {count} devices, "
            f"expected at most {_MAX_STEPS // count}, or amounts"
        )

    def selected(item: Mapping[str, Any]) -> Mapping[str, Any]:
        kept, parsed = [], slice_of(item).devices
        for document, device in zip(item["spec"].get("devices") or (), parsed, strict=True):
            with suppress(CelRunError):
                kept += [document] if program.matches(device) else []
        return {**item, "spec": {**item["spec"], "devices": kept}}

    return selected


def check_expression(text: str, *, release: int = releases.NEWEST) -> str | None:
    """Return the error with which the API server rejects an expression; None if it accepts it.

    Args:
        release: Its minor version.
    """
    if len(text.encode(errors="surrogatepass")) > MAX_EXPRESSION_BYTES:
        return f"may not be more than {MAX_EXPRESSION_BYTES} bytes"
    return next(map(_api_server_error, _errors(text, release)), None)


def _api_server_error(error: str) -> str:
    """Return an error, other than one of the result's type, as the API server words it."""
    return f"compilation failed: ERROR: <input>:{error}" if error[0].isdigit() else error


def refusal(text: str) -> str | None:
    """Return why the API server would refuse the selector, or why it fails on every device.

    Left to the API server are functions that the CEL library lacks, and all types if there is no
    library.
    """
    found = type_errors(text)
    return found[0] if found and not not_covered(found) else None


def type_errors(text: str) -> list[str]:
    """Return what is wrong with a selector, each error with its place.

    The types of this driver's attributes are checked as well. The API server does not know them:
    it accepts ``model > 5``, and then the scheduling of the pod fails on every device.
    """
    return _errors(text) or ([] if missing else _check(text, own=True))


def not_covered(found: Iterable[str]) -> str | None:
    """Return a function of Kubernetes that the library lacks, if this explains type errors."""
    undeclared = (_UNDECLARED.fullmatch(error) for error in found)
    unknown = (match[1] for match in undeclared if match)
    return next((name for name in unknown if name in cel_functions.NOT_COVERED), None)


def _errors(text: str, release: int = releases.NEWEST) -> list[str]:
    """Return the errors of an expression, each with its place unless it is one of the result."""
    try:
        root = syntax.parse(text)
        cost.steps(text, root)
    except CelError as error:
        return [str(error)]
    if missing:
        return []
    return _check(text, own=False, release=release) or list(_literal_errors(text, root))


def _check(text: str, *, own: bool, release: int = releases.NEWEST) -> list[str]:
    """Return the errors of types in an expression that takes few steps.

    Args:
        own: Check it with the types of this driver's attributes.
    """
    try:
        text.encode()
        checked = text
        if own:  # a variable replaces the lookup, with blanks, so that places stay
            checked = _OWN_LOOKUP.sub(
                lambda each: f"{_OWN}{'.' if each['name'] else ''}{each['name'] or ''}".ljust(
                    len(each[0])
                ),
                text,
            )
        returned = _checking_environment(own=own, release=release).compile(checked).return_type()
        if returned not in (cel.Type.BOOL, cel.Type.ERROR):  # the latter is that of an attribute
            return [f"must evaluate to bool or the unknown type, not {returned.name().lower()}"]
    except UnicodeEncodeError:
        return ["1:1: found an unpaired surrogate, expected text that UTF-8 can encode"]
    except RuntimeError as error:
        return [
            _kubernetes_error(line)[:_SHOWN]
            for line in _ERROR_LINE.findall(str(error)) or [_TOO_DEEP]
            if not _MIXED_NUMBERS[own].fullmatch(line)
            # An attribute that is not the driver's, or all of them used as a map.
            and not (own and (OWN_ATTRIBUTES in line or "*error*" in line))
        ]
    return []


def _literal_errors(text: str, root: SyntaxNode) -> Iterator[str]:
    """Yield an error for each literal that is no valid pattern, and each conversion that fails.

    The API server refuses them at creation, wherever they are: cel-go's validators of literals,
    and its optimizations of a program (OptOptimize), do not know what is evaluated.
    """
    nodes, left = [root], _MAX_EVALUATED
    for node in nodes:
        nodes += node.parts
        call = text[node.start : node.end] if _is_conversion(node) else ""
        if node.text == "matches" and node.arguments and node.arguments[-1].form == "string":
            call = f'"".matches({node.arguments[-1].text})'
        if not call:
            continue
        line, column = syntax.position(text, node.arguments[-1].start)
        if not left:
            reason = f"found more than {_MAX_EVALUATED} patterns and conversions of literals"
            yield f"{line}:{column}: {reason}, {syntax.OWN_LIMIT}"
            return
        left -= 1
        result = _evaluating_environment().compile(call, disable_check=True).eval(data={})
        error = _kubernetes_error(str(result.value()))
        # The library lacks some conversions that Kubernetes has, such as int(duration).
        if result.type() == cel.Type.ERROR and error != "no such overload":
            yield f"{line}:{column}: {error}"[:_SHOWN]


def _is_conversion(node: SyntaxNode) -> bool:
    """Return True for a call that converts a constant: a literal, or a conversion of one."""
    if node.form != "call" or node.text not in _CONVERSIONS or len(node.parts) != 1:
        return False
    argument = node.parts[0]
    if argument.form == "unary" and argument.text == "-":
        argument = argument.parts[0]
    return argument.form in {"string", "int", "double", "constant"} or _is_conversion(argument)


@functools.cache
def _checking_environment(*, own: bool, release: int) -> Any:
    """Return the environment in which expressions are type-checked.

    The maps of `device` are declared as variables with dotted names, too, because a message cannot
    have a map of maps.
    """
    values = {syntax.ATTRIBUTES: "google.protobuf.Any", syntax.CAPACITY: cel_functions.QUANTITY}
    variables = {"device": cel.Type(DEVICE)} | {
        f"device.{name}": cel.Type.Map(
            cel.Type.STRING, cel.Type.Map(cel.Type.STRING, cel.Type(kind))
        )
        for name, kind in values.items()
    }
    if own:
        variables[_OWN] = cel.Type(OWN_ATTRIBUTES)
    return cel.NewEnv(
        descriptor_pool=declared_types(),
        variables=variables,
        extensions=_extensions(typed=True, release=release),
    )


@functools.cache
def _evaluating_environment() -> Any:
    """Return the environment in which checked expressions are evaluated, on plain maps."""
    return cel.NewEnv(variables={"device": cel.Type.DYN}, extensions=_extensions(typed=False))


def _extensions(*, typed: bool, release: int = releases.NEWEST) -> list[Any]:
    return [
        ext_strings.ExtStrings(2),  # the version that Kubernetes has
        ext_bindings.ExtBindings(),
        ext_optional.ExtOptional(),
        cel_functions.extension(typed=typed, release=release),
    ]


def _attribute_value(name: str, attribute: Attribute, release: int) -> object:
    """Return the CEL value of an attribute; None for one that only a lookup fails on.

    Raises:
        CelRunError: Every expression fails on the device.
    """
    is_list, error = isinstance(attribute.value, tuple), ""
    values: Any = attribute.value if is_list else [attribute.value]
    if attribute.kind == "unsupported" or (is_list and release < releases.LISTS):
        error = "unsupported attribute value"
    elif attribute.kind in ("version", "versions"):
        try:
            values = [cel_functions.semver_value(str(each)) for each in values]
        except ValueError as failed:
            error = f"parse semantic version: {failed}"
    if error and release < releases.ODD_ATTRIBUTES:
        raise CelRunError(f"attribute {name}: {error}")
    return None if error else list(values) if is_list else values[0]


def _kubernetes_error(text: str) -> str:
    """Translate an error of the library into the text of Kubernetes' CEL, cel-go."""
    text = _SUFFIX.sub("", _PREFIX.sub("", text))
    for own, of_kubernetes in _WORDING.items():
        text = re.sub(own, of_kubernetes, text)
    return text
