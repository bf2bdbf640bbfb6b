"""What a look at one thing found, what should be there, and how to get it there."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Level(StrEnum):
    """How bad a finding is, in this order."""

    OK = "ok"
    NOTE = "note"
    """Nothing to do; good to know."""
    WARNING = "warning"
    """Works now; something is lost by it, or will be."""
    COULD_NOT_LOOK = "could-not-look"
    """There may be a problem."""
    PROBLEM = "problem"
    """Claims fail or GPUs are not published until somebody acts."""


_ORDER: Final = tuple(Level)

EXIT_CODES: Final[Mapping[Level, int]] = {
    Level.OK: 0,
    Level.NOTE: 0,
    Level.PROBLEM: 1,
    Level.WARNING: 3,
    Level.COULD_NOT_LOOK: 4,
}
"""By the worst finding; 2 is for bad input, as with every verb."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        looked_at: The thing itself: a path, an object, a right.
        expected: "" where what was found is what was expected.
        cure: What to do; "" where there is nothing to do.
    """

    level: Level
    looked_at: str
    found: str
    expected: str = ""
    cure: str = ""

    def as_json(self) -> dict[str, str]:
        """For programs; every key is always there."""
        return {
            "level": self.level.value,
            "lookedAt": self.looked_at,
            "found": self.found,
            "expected": self.expected,
            "cure": self.cure,
        }


def ok(looked_at: str, found: str) -> Finding:
    """All is well."""
    return Finding(level=Level.OK, looked_at=looked_at, found=found)


def note(looked_at: str, found: str, *, expected: str = "", cure: str = "") -> Finding:
    """Good to know."""
    return Finding(level=Level.NOTE, looked_at=looked_at, found=found, expected=expected, cure=cure)


def warning(looked_at: str, found: str, *, expected: str, cure: str) -> Finding:
    """Something is lost, or will be."""
    return Finding(
        level=Level.WARNING, looked_at=looked_at, found=found, expected=expected, cure=cure
    )


def could_not_look(looked_at: str, found: str, *, cure: str = "") -> Finding:
    """Nobody knows; found says what was in the way."""
    return Finding(level=Level.COULD_NOT_LOOK, looked_at=looked_at, found=found, cure=cure)


def problem(looked_at: str, found: str, *, expected: str, cure: str) -> Finding:
    """Something does not work."""
    return Finding(
        level=Level.PROBLEM, looked_at=looked_at, found=found, expected=expected, cure=cure
    )


def worst(findings: Iterable[Finding]) -> Level:
    """The level that the others are better than; OK if there are none."""
    return max((finding.level for finding in findings), key=_ORDER.index, default=Level.OK)
