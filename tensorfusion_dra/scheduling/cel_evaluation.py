"""CEL device selectors, compiled and evaluated as in Kubernetes (dynamic-resource-allocation/cel).

Not covered: ``device`` as a value of its own (``cel.bind(d, device, ...)``), and the url, ip,
regex and sets libraries.
"""

import functools
import re
from collections.abc import Mapping
from typing import Any, Final

from cel_expr_python import cel
from cel_expr_python.ext import ext_bindings, ext_optional, ext_strings

from tensorfusion_dra.core.cel import cost, parser
from tensorfusion_dra.core.cel.errors import CelError
from tensorfusion_dra.core.errors import DriverError
from tensorfusion_dra.scheduling import cel_library
from tensorfusion_dra.scheduling.devices import Attribute, Device

MAX_EXPRESSION_BYTES: Final = 10240

_STRINGS_VERSION: Final = 2
_CACHED: Final = 1024

# Domains that an expression may look up: any of its string literals, and any name after a dot.
_TEXTS: Final = re.compile(r"'([^']*)'|\"([^\"]*)\"|\.\??\s*([A-Za-z_][A-Za-z0-9_]*)")
_ERROR_LINE: Final = re.compile(r"ERROR: <input>:[0-9]+:[0-9]+: (.*)")
_MIXED_NUMBERS: Final = re.compile(
    r"found no matching overload for '_[<>]=?_' applied to"
    r" '\((?:int|uint|double), (?:int|uint|double)\)'(?: \[[A-Z_]+\])?"
)
_SUFFIX: Final = re.compile(r"\s*\[[A-Z_]+\]$")
_PREFIX: Final = re.compile(r"^[A-Z_]+: ")


class CelCompileError(DriverError):
    """An expression does not compile; the API server rejects it."""


class CelRunError(DriverError):
    """An expression failed on a device, which stops the scheduling of the pod on every node."""


class Selector:
    """Compiled CEL expression."""

    def __init__(self, expression: str, program: Any) -> None:
        self.expression: Final = expression
        self._program: Final = program
        found = _TEXTS.findall(expression)
        self._domains: Final = {text for texts in found for text in texts if text}

    def matches(self, device: Device) -> bool:
        """Return True if the expression selects the device.

        Raises:
            CelRunError: The device lacks an attribute of the expression, or the result is not a
                bool.
        """
        driver = device.id.driver
        attributes = {
            name: _attribute_value(name, found) for name, found in device.attributes.items()
        }
        capacity = {
            name: cel_library.quantity_value(found.value) for name, found in device.capacity.items()
        }
        fields = {
            "driver": driver,
            "allowMultipleAllocations": device.is_shared,
            "attributes": self._by_domain(driver, attributes),
            "capacity": self._by_domain(driver, capacity),
        }
        result = self._program.eval(data={"device": fields})
        kind, value = result.type(), result.value()
        if kind == cel.Type.ERROR:
            raise CelRunError(_kubernetes_error(str(value)))
        if kind != cel.Type.BOOL:
            raise CelRunError(f"found a result of type {kind.name()}, expected bool")
        return bool(value)

    def _by_domain(self, driver: str, values: Mapping[str, object]) -> dict[str, dict[str, object]]:
        """Return the values by domain and id.

        A domain of the expression that the device lacks is an empty map, so that looking it up is
        not an error.
        """
        domains: dict[str, dict[str, object]] = {domain: {} for domain in self._domains}
        for name, value in values.items():
            domain, slash, short = name.partition("/")
            domains.setdefault(domain if slash else driver, {})[short if slash else name] = value
        return domains


@functools.lru_cache(maxsize=_CACHED)
def selector(expression: str) -> Selector:
    """Compile an expression.

    Raises:
        CelCompileError: It does not compile, or its result is not a bool.
    """
    checking, evaluating = _checking_environment(), _evaluating_environment()
    try:
        returned = checking.compile(expression).return_type()
    except RuntimeError as error:
        if not _has_only_mixed_number_errors(str(error)):
            raise CelCompileError(f"compilation failed: {_kubernetes_error(str(error))}") from error
        returned = cel.Type.BOOL
    if returned not in (cel.Type.BOOL, cel.Type.DYN):
        found = str(returned.name())
        raise CelCompileError(f"must evaluate to bool or the unknown type, not {found.lower()}")
    return Selector(expression, evaluating.compile(expression, disable_check=True))


def check_expression(text: str) -> str | None:
    """Return the error with which the API server rejects an expression; None if it accepts it."""
    if len(text.encode()) > MAX_EXPRESSION_BYTES:
        return f"may not be more than {MAX_EXPRESSION_BYTES} bytes"
    try:
        selector(text)
    except CelCompileError as error:
        return str(error)
    try:
        estimate = cost.estimate(parser.parse(text))
    except CelError:  # nested so deeply that only Kubernetes' own parser can read it
        return None
    return "too complex, exceeds cost limit" if estimate > cost.MAX_COST else None


def is_syntax(text: str) -> bool:
    """Return True if the text is valid CEL syntax; names and types are not checked."""
    try:
        _evaluating_environment().compile(text, disable_check=True)
    except RuntimeError:
        return False
    return True


@functools.cache
def _checking_environment() -> Any:
    """Return the environment in which expressions are type-checked.

    The fields of `device` are declared as variables with dotted names, because fields cannot be
    declared as maps of maps in another way. Without these types the checker would accept
    ``device.attributes["model"]``, which lacks the domain.
    """
    by_id = cel.Type.Map(cel.Type.STRING, cel.Type.DYN)
    quantities = cel.Type.Map(cel.Type.STRING, cel_library.quantity_type())
    return cel.NewEnv(
        descriptor_pool=cel_library.type_pool(),
        variables={
            "device.driver": cel.Type.STRING,
            "device.allowMultipleAllocations": cel.Type.BOOL,
            "device.attributes": cel.Type.Map(cel.Type.STRING, by_id),
            "device.capacity": cel.Type.Map(cel.Type.STRING, quantities),
        },
        extensions=_extensions(typed=True),
    )


@functools.cache
def _evaluating_environment() -> Any:
    """Return the environment in which checked expressions are evaluated, on plain maps."""
    return cel.NewEnv(variables={"device": cel.Type.DYN}, extensions=_extensions(typed=False))


def _extensions(*, typed: bool) -> list[Any]:
    return [
        ext_strings.ExtStrings(_STRINGS_VERSION),
        ext_bindings.ExtBindings(),
        ext_optional.ExtOptional(),
        cel_library.extension(typed=typed),
    ]


def _has_only_mixed_number_errors(error: str) -> bool:
    """Return True if the only errors are comparisons of different number types.

    Kubernetes allows these, for example ``asApproximateFloat() >= 200``.
    """
    found = _ERROR_LINE.findall(error)
    return bool(found) and all(_MIXED_NUMBERS.fullmatch(text) for text in found)


def _attribute_value(name: str, attribute: Attribute) -> object:
    if attribute.kind == "unsupported":
        raise CelRunError(f"attribute {name}: unsupported attribute value")
    if attribute.kind == "version":
        try:
            return cel_library.semver_value(str(attribute.value))
        except ValueError as error:
            raise CelRunError(f"attribute {name}: parse semantic version: {error}") from error
    return attribute.value


def _kubernetes_error(text: str) -> str:
    """Translate an error of the evaluator into the text of Kubernetes' evaluator, cel-go."""
    text = _SUFFIX.sub("", _PREFIX.sub("", text))
    missing = re.fullmatch(r'Key not found in map : "(.*)"', text)
    if missing:
        return f"no such key: {missing[1]}"
    return text.replace("map(string, dyn)", "map(string, any)")
