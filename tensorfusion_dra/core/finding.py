"""A finding of `doctor`, `why` or the webhook: what was found and expected, and how to fix it."""

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


EXIT_CODES: Final[Mapping[Level, int]] = {
    Level.OK: 0,
    Level.NOTE: 0,
    Level.WARNING: 1,
    Level.COULD_NOT_LOOK: 2,
    Level.PROBLEM: 1,
}
"""Exit code by the worst finding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Result of one examination.

    Attributes:
        subject: What was examined: a path, an object, a right.
        expected: What was expected; "" if it equals what was found.
        remedy: What to do; "" for nothing.
    """

    level: Level
    subject: str
    found: str
    expected: str = ""
    remedy: str = ""

    def as_json(self) -> dict[str, str]:
        """Return the finding for programs; every key is always present."""
        return {
            "level": self.level.value,
            "lookedAt": self.subject,
            "found": self.found,
            "expected": self.expected,
            "cure": self.remedy,
        }


def ok(subject: str, found: str) -> Finding:
    """Return a finding without complaint."""
    return Finding(level=Level.OK, subject=subject, found=found)


def note(subject: str, found: str, *, expected: str = "", remedy: str = "") -> Finding:
    """Return a finding that is information only."""
    return Finding(level=Level.NOTE, subject=subject, found=found, expected=expected, remedy=remedy)


def warning(subject: str, found: str, *, expected: str, remedy: str) -> Finding:
    """Return a finding of something that works with a disadvantage."""
    return Finding(
        level=Level.WARNING, subject=subject, found=found, expected=expected, remedy=remedy
    )


def not_checked(subject: str, found: str, *, remedy: str = "") -> Finding:
    """Return a finding of something that could not be examined; `found` gives the reason."""
    return Finding(level=Level.COULD_NOT_LOOK, subject=subject, found=found, remedy=remedy)


def problem(subject: str, found: str, *, expected: str, remedy: str) -> Finding:
    """Return a finding of something that does not work."""
    return Finding(
        level=Level.PROBLEM, subject=subject, found=found, expected=expected, remedy=remedy
    )


def worst(findings: Iterable[Finding]) -> Level:
    """Return the worst level; OK if there are no findings."""
    return max((finding.level for finding in findings), key=list(Level).index, default=Level.OK)
