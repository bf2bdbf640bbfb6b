"""A finding of the doctor: what was found, what was expected, and how to fix it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Level(StrEnum):
    """Severity of a finding, in ascending order."""

    OK = "ok"
    NOTE = "note"
    """Information only; nothing to do."""
    WARNING = "warning"
    """Works now, with a disadvantage now or later."""
    COULD_NOT_LOOK = "could-not-look"
    """Not examined; there may be a problem."""
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
"""Exit code by the worst finding; 2 is bad input, as for every verb."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Result of one examination.

    Attributes:
        looked_at: What was examined: a path, an object, a right.
        expected: What was expected; "" if it equals what was found.
        cure: What to do; "" for nothing.
    """

    level: Level
    looked_at: str
    found: str
    expected: str = ""
    cure: str = ""

    def as_json(self) -> dict[str, str]:
        """Return the finding for programs; every key is always present."""
        return {
            "level": self.level.value,
            "lookedAt": self.looked_at,
            "found": self.found,
            "expected": self.expected,
            "cure": self.cure,
        }


def ok(looked_at: str, found: str) -> Finding:
    """Return a finding without complaint."""
    return Finding(level=Level.OK, looked_at=looked_at, found=found)


def note(looked_at: str, found: str, *, expected: str = "", cure: str = "") -> Finding:
    """Return a finding that is information only."""
    return Finding(level=Level.NOTE, looked_at=looked_at, found=found, expected=expected, cure=cure)


def warning(looked_at: str, found: str, *, expected: str, cure: str) -> Finding:
    """Return a finding of something that works with a disadvantage."""
    return Finding(
        level=Level.WARNING, looked_at=looked_at, found=found, expected=expected, cure=cure
    )


def could_not_look(looked_at: str, found: str, *, cure: str = "") -> Finding:
    """Return a finding of something that could not be examined; `found` gives the reason."""
    return Finding(level=Level.COULD_NOT_LOOK, looked_at=looked_at, found=found, cure=cure)


def problem(looked_at: str, found: str, *, expected: str, cure: str) -> Finding:
    """Return a finding of something that does not work."""
    return Finding(
        level=Level.PROBLEM, looked_at=looked_at, found=found, expected=expected, cure=cure
    )


def worst(findings: Iterable[Finding]) -> Level:
    """Return the worst level; OK if there are no findings."""
    return max((finding.level for finding in findings), key=_ORDER.index, default=Level.OK)
