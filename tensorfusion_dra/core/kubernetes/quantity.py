"""Kubernetes quantities: parsed without loss, printed in the API server's canonical form."""

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from tensorfusion_dra.core.errors import DriverError

Family = Literal["decimal", "binary", "exponent"]

NANO: Final = 10**9
MILLI: Final = NANO // 1000
MIB: Final = 2**20
GIB: Final = 2**30

_MAX_NANO: Final = (2**63 - 1) * NANO
_MAX_LENGTH: Final = 64
_MAX_EXPONENT: Final = 99

# [0-9] instead of \d: Python's \d also matches digits of other scripts, which Kubernetes refuses.
_SHAPE: Final = re.compile(
    r"(?P<sign>[+-]?)(?P<number>[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
    r"(?P<suffix>[KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+|)",
)
_BYTES: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) *([KMGT])i?b?", re.IGNORECASE)
"""Amounts of memory as people write them elsewhere: 16GB, 16 GiB, 16g."""
_DECIMAL: Final = {
    "n": -9,
    "u": -6,
    "m": -3,
    "": 0,
    "k": 3,
    "M": 6,
    "G": 9,
    "T": 12,
    "P": 15,
    "E": 18,
}
_BINARY: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
# The largest first.
_DECIMAL_SUFFIXES: Final = {power: suffix for suffix, power in reversed(_DECIMAL.items())}
_BINARY_SUFFIXES: Final = (*reversed(_BINARY.items()), ("", 0))


class QuantityError(DriverError):
    """A value is not a Kubernetes quantity."""


@dataclass(frozen=True, slots=True, order=True)
class Quantity:
    """An amount as Kubernetes represents it: a whole number of billionths.

    Attributes:
        nano: The amount times 10**9; exact, because Kubernetes keeps no finer digits.
        family: Notation. Not compared: 1Gi and 1073741824 are equal and differ only in it.
    """

    nano: int
    family: Family = field(default="decimal", compare=False)

    @classmethod
    def whole(cls, amount: int) -> "Quantity":
        """Return the quantity of a whole number, in decimal notation."""
        return cls(amount * NANO)

    @classmethod
    def milli(cls, amount: int) -> "Quantity":
        """Return the quantity of a number of thousandths, in decimal notation."""
        return cls(amount * MILLI)

    @classmethod
    def of_bytes(cls, amount: int) -> "Quantity":
        """Return the quantity of a number of bytes, in binary notation (Ki, Mi, Gi)."""
        return cls(amount * NANO, "binary")

    def __add__(self, other: "Quantity") -> "Quantity":
        return Quantity(self.nano + other.nano, self.family)

    def __sub__(self, other: "Quantity") -> "Quantity":
        return Quantity(self.nano - other.nano, self.family)

    def ceil(self, unit: int = NANO) -> int:
        """Return the amount as an integer, fractions rounded up, as Quantity.Value() in Go.

        Args:
            unit: In billionths.
        """
        return -(-self.nano // unit)

    def is_whole(self, unit: int) -> bool:
        """Return True if the amount is a whole number of units, and 64 bits can represent it."""
        return self.nano % unit == 0 and abs(self.nano // unit) < 2**63

    def __str__(self) -> str:
        """Return the canonical form: no fraction digits, the largest suffix that is exact.

        A binary amount that is not a whole number, or is below 1024, is written in decimal.
        """
        if self.family == "binary" and abs(self.nano) >= 1024 * NANO and self.nano % NANO == 0:
            amount = self.nano // NANO
            suffix, bits = next(each for each in _BINARY_SUFFIXES if amount % 2 ** each[1] == 0)
            return f"{amount // 2**bits}{suffix}"
        exact = (each for each in _DECIMAL_SUFFIXES if self.nano % 10 ** (each + 9) == 0)
        power = next(exact) if self.nano else 0
        suffix = _DECIMAL_SUFFIXES[power]
        if self.family == "exponent":
            suffix = f"e{power}" if power else ""
        return f"{self.nano // 10 ** (power + 9)}{suffix}"


def texts(amounts: Mapping[str, Quantity]) -> dict[str, str]:
    """Return the amounts as Kubernetes writes them."""
    return {name: str(amount) for name, amount in amounts.items()}


def parse(text: object, *, is_capped: bool = True) -> Quantity:
    """Parse a string or a JSON integer into a quantity.

    An amount beyond 2**63-1 is capped, and a fraction finer than 10**-9 is rounded away from zero,
    as in k8s.io/apimachinery/pkg/api/resource.

    Args:
        is_capped: False to cap only amounts in Ki, Mi, Gi, as there; by default all are, so that 64
            bits have room for them.

    Raises:
        QuantityError: The value is not a quantity, is longer than 64 characters, or has an
            exponent beyond 99.
    """
    if isinstance(text, int) and not isinstance(text, bool):
        text = str(text) if abs(text) < 10**_MAX_LENGTH else "a number of over 64 digits"
    if not isinstance(text, str):
        raise QuantityError(f"found {type(text).__name__}, expected a quantity such as 16Gi")
    return _parsed(text, is_capped)


@functools.lru_cache(maxsize=1024)  # an object has few different ones
def _parsed(text: str, is_capped: bool) -> Quantity:
    match = _SHAPE.fullmatch(text) if len(text) <= _MAX_LENGTH else None
    if match is None:
        meant = _BYTES.fullmatch(text) if len(text) <= _MAX_LENGTH else None
        hint = f" (did you mean {meant[1]}{meant[2].upper()}i?)" if meant else ""
        raise QuantityError(
            f"found {text[:_MAX_LENGTH]!r}, expected a quantity such as 100, 71200m or 16Gi{hint}"
        )

    digits, _, fraction = match["number"].partition(".")
    mantissa = int(digits + fraction or "0")
    suffix = match["suffix"]
    family: Family = "decimal"
    if suffix in _BINARY:
        family = "binary"
        power, factor = -len(fraction), 2 ** _BINARY[suffix]
    elif suffix in _DECIMAL:
        power, factor = _DECIMAL[suffix] - len(fraction), 1
    else:
        family = "exponent"
        exponent = int(suffix[1:]) if len(suffix) < 5 else _MAX_EXPONENT + 1
        if abs(exponent) > _MAX_EXPONENT:
            raise QuantityError(f"found exponent {suffix!r}, expected at most {_MAX_EXPONENT}")
        power, factor = exponent - len(fraction), 1
    shift = power + 9
    amount = mantissa * factor * int(10 ** max(0, shift))
    nano = -(-amount // int(10 ** max(0, -shift)))  # rounded up
    if is_capped or family == "binary":
        nano = min(nano, _MAX_NANO)
    return Quantity(-nano if match["sign"] == "-" else nano, family)
