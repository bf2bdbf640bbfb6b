"""GpuShare: parameters of a share beyond the amounts that it consumes.

The object is ``config[].opaque.parameters`` of a claim, claim template or DeviceClass:

    apiVersion: tensor-fusion.ai/v1alpha1
    kind: GpuShare
    limits: {tflops: "200", vram: 32Gi}
    isolation: soft
    qos: high
    # Only in a DeviceClass, which an administrator writes:
    limiter: true
    overridable: false

In a claim, isolation `hard` and `shared` are subject to conditions: see core.claims.isolation.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any, Final, TypeVar

from tensorfusion_dra.core.devices.sharing import Isolation, Qos
from tensorfusion_dra.core.errors import DriverError
from tensorfusion_dra.core.kubernetes import quantity
from tensorfusion_dra.core.kubernetes.quantity import Quantity, QuantityError

API_VERSION: Final = "tensor-fusion.ai/v1alpha1"
KIND: Final = "GpuShare"


_PARTITIONED: Final = "partitioned"
"""Tensor Fusion's fourth mode: the card's own hardware divides it (MIG)."""
_NOT_PARTITIONED: Final = (
    " (cards are not partitioned by this driver: soft divides a card by limits, shared gives whole "
    "cards, and MIG devices come from NVIDIA's own driver for Kubernetes)"
)


class ParameterError(DriverError):
    """Parameters are malformed; the text lists every error with its path.

    Attributes:
        errors: One text for each error.
    """

    def __init__(self, errors: Iterable[str]) -> None:
        self.errors: Final = tuple(errors)
        super().__init__("; ".join(self.errors))


Choice = TypeVar("Choice", bound=StrEnum)


def expected_choices(choices: type[StrEnum], found: object) -> str:
    """Return the choices for the error about a value that is none of them."""
    text = "one of " + ", ".join(choices)
    return text + _NOT_PARTITIONED if choices is Isolation and found == _PARTITIONED else text


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareParameters:
    """Parameters of a share; each is None if it is not set.

    Attributes:
        limiter: False runs the container without a limiter.
        overridable: False gives the class's parameters precedence over the claim's.
    """

    tflops_limit: Quantity | None = None
    vram_limit: Quantity | None = None
    isolation: Isolation | None = None
    qos: Qos | None = None
    limiter: bool | None = None
    overridable: bool | None = None

    def over(self, lower: "ShareParameters") -> "ShareParameters":
        """Return these parameters, with the lower ones in place of those that are not set."""
        own = {f.name: getattr(self, f.name) for f in fields(self)}
        return replace(lower, **{name: value for name, value in own.items() if value is not None})


def parse(found: Any, *, trusted: bool) -> ShareParameters:
    """Parse the parameters of an opaque configuration.

    Args:
        found: The decoded JSON value.
        trusted: True if it comes from a DeviceClass, which may set what only an administrator may.

    Raises:
        ParameterError: The parameters are malformed; the text lists all errors.
    """
    reader = _Reader()
    top = reader.mapping("", found)
    allowed = ["apiVersion", "kind", "limits", "isolation", "qos"]
    if trusted:
        allowed += ["limiter", "overridable"]
    reader.only("", top, allowed)
    reader.constant("apiVersion", top.get("apiVersion"), API_VERSION)
    reader.constant("kind", top.get("kind"), KIND)
    limits = reader.mapping("limits", top.get("limits", {}))
    reader.only("limits.", limits, ["tflops", "vram"])
    parameters = ShareParameters(
        tflops_limit=reader.amount("limits.tflops", limits.get("tflops")),
        vram_limit=reader.amount("limits.vram", limits.get("vram")),
        isolation=reader.choice("isolation", top.get("isolation"), Isolation),
        qos=reader.choice("qos", top.get("qos"), Qos),
        limiter=reader.boolean("limiter", top.get("limiter")) if trusted else None,
        overridable=reader.boolean("overridable", top.get("overridable")) if trusted else None,
    )
    if reader.errors:
        raise ParameterError(reader.errors)
    return parameters


class _Reader:
    """Reader of fields that collects every error instead of stopping at the first."""

    def __init__(self) -> None:
        self.errors: list[str] = []

    def mapping(self, path: str, found: object) -> Mapping[str, Any]:
        if isinstance(found, Mapping):
            return found
        self._wrong(path or "parameters", found, "an object")
        return {}

    def only(self, prefix: str, found: Mapping[str, Any], allowed: list[str]) -> None:
        for key in found:
            if key not in allowed:
                self._wrong(f"{prefix}{key}", "this field", f"one of {', '.join(allowed)}")

    def constant(self, path: str, found: object, expected: str) -> None:
        if found != expected:
            self._wrong(path, found, expected)

    def amount(self, path: str, found: object) -> Quantity | None:
        if found is None:
            return None
        try:
            amount = quantity.parse(found)
        except QuantityError as error:
            self.errors.append(f"{path}: {error}")
            return None
        if amount.nano <= 0:
            self._wrong(path, str(amount), "more than 0")
            return None
        return amount

    def choice(self, path: str, found: object, choices: type[Choice]) -> Choice | None:
        if found is None:
            return None
        try:
            return choices(str(found))
        except ValueError:
            self._wrong(path, found, expected_choices(choices, found))
            return None

    def boolean(self, path: str, found: object) -> bool | None:
        if found is None or isinstance(found, bool):
            return found
        self._wrong(path, found, "true or false")
        return None

    def _wrong(self, path: str, found: object, expected: str) -> None:
        shown = found if isinstance(found, str) and found == "this field" else repr(found)[:80]
        self.errors.append(f"{path}: found {shown}, expected {expected}")
