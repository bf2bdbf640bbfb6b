"""GpuShare: what a claim or its class says of a share beyond how much it consumes.

The object stands in a claim's, template's or class's ``config[].opaque.parameters``:

    apiVersion: tensor-fusion.ai/v1alpha1
    kind: GpuShare
    limits: {tflops: "200", vram: 32Gi}
    isolation: soft
    qos: high
    # Only in a DeviceClass, which an administrator writes:
    limiter: true
    overridable: false

In a claim, isolation `hard` and `shared` are taken under conditions: see core.claims.isolation.
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
"""Tensor Fusion's fourth mode: a card is divided by its own hardware (MIG)."""
_NOT_PARTITIONED: Final = (
    " (cards are not partitioned by this driver: soft divides a card by limits, shared gives whole "
    "cards, and MIG devices come from NVIDIA's own driver for Kubernetes)"
)


class ParameterError(DriverError):
    """Parameters are malformed; the text names every error with its path.

    Attributes:
        errors: Each of them alone.
    """

    def __init__(self, errors: Iterable[str]) -> None:
        self.errors: Final = tuple(errors)
        super().__init__("; ".join(self.errors))


Choice = TypeVar("Choice", bound=StrEnum)


def choices_told(choices: type[StrEnum], found: object) -> str:
    """What is expected in place of a value that is none of the choices, for errors."""
    told = "one of " + ", ".join(choices)
    return told + _NOT_PARTITIONED if choices is Isolation and found == _PARTITIONED else told


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareParameters:
    """What is asked for a share; None wherever nothing is said.

    Attributes:
        limiter: False lets the container run without a limiter.
        overridable: False keeps what the class says, whatever the claim says.
    """

    tflops_limit: Quantity | None = None
    vram_limit: Quantity | None = None
    isolation: Isolation | None = None
    qos: Qos | None = None
    limiter: bool | None = None
    overridable: bool | None = None

    def over(self, lower: "ShareParameters") -> "ShareParameters":
        """These parameters, and the lower ones wherever these say nothing."""
        said = {f.name: getattr(self, f.name) for f in fields(self)}
        return replace(lower, **{name: value for name, value in said.items() if value is not None})


def parse(found: Any, *, trusted: bool) -> ShareParameters:
    """The parameters in an opaque configuration.

    Args:
        found: The decoded JSON value.
        trusted: It comes from a DeviceClass and may hold what only an administrator may say.

    Raises:
        ParameterError: Names all errors at once.
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
    """Collects every error instead of stopping at the first."""

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
            self._wrong(path, found, choices_told(choices, found))
            return None

    def boolean(self, path: str, found: object) -> bool | None:
        if found is None or isinstance(found, bool):
            return found
        self._wrong(path, found, "true or false")
        return None

    def _wrong(self, path: str, found: object, expected: str) -> None:
        shown = found if isinstance(found, str) and found == "this field" else repr(found)[:80]
        self.errors.append(f"{path}: found {shown}, expected {expected}")
