"""What is known about the limits of one prepared claim: the verdicts that stand, and since when."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from tensorfusion_dra.core.claims.enforcement import presence, verdict
from tensorfusion_dra.core.claims.enforcement.signs import Places
from tensorfusion_dra.core.claims.enforcement.verdict import Standing, State, Verdict
from tensorfusion_dra.core.claims.prepared import PreparedClaim

SPACING_SECONDS: Final = 60.0
"""Shortest time between two changes of a claim's standing verdicts, unless it is for the worse."""


@dataclass(slots=True, kw_only=True)
class WatchedLimits:
    """A claim, and what is known about its limits.

    Attributes:
        places: Where the claim's enforcer leaves signs.
        limits_since: Time on the clock at which its present limits were set.
        standing: For each share; None until the first verdict.
        is_shown: True if the standing verdicts are in the claim's status, or on their way.
        settled_until: Time on the clock before which the standing verdicts are not replaced, except
            once limits hold no longer.
        is_warned: True if a warning was given that has not been withdrawn.
    """

    claim: PreparedClaim
    places: Places
    limits_since: float
    standing: tuple[Standing, ...] | None = None
    is_shown: bool = True
    settled_until: float = -math.inf
    is_warned: bool = False

    @property
    def is_looked_at(self) -> bool:
        """True if signs decide about a share of the claim."""
        return presence.needs_enforcer(self.claim)

    def worst(self) -> Verdict | None:
        """Return the worst standing verdict; None if there is none."""
        return verdict.worst(each.verdict for each in self.standing or ())

    def begin(self, found: Sequence[Verdict], now: datetime) -> Sequence[Standing]:
        """Have these verdicts stand unless some stand already; return those that stand."""
        if self.standing is None:
            self.standing = tuple(Standing(verdict=each, since=now) for each in found)
        return self.standing

    def replace(self, found: Sequence[Verdict], now: datetime, *, clock_seconds: float) -> bool:
        """Replace the standing verdicts if others were found and enough time has passed.

        Return True if they were replaced. The first ones replace none.
        """
        standing = self.begin(found, now)
        newer = tuple(old.after(each, now) for old, each in zip(standing, found, strict=True))
        is_worse = _are_broken(newer) and not _are_broken(standing)
        if newer == standing or (clock_seconds < self.settled_until and not is_worse):
            return False
        self.standing = newer
        self.settled_until = clock_seconds + SPACING_SECONDS
        return True

    def as_json(self) -> list[dict[str, Any]]:
        """Return the standing verdicts as JSON."""
        return [each.as_json() for each in self.standing or ()]


def followed(claim: PreparedClaim, places: Places, kept: object) -> WatchedLimits:
    """Return a claim from before this process.

    Args:
        claim: As it is recorded.
        places: Where its enforcer leaves signs.
        kept: What as_json() returned, or anything else. Without it, the claim's status is written
            anew, since nobody knows what it shows.
    """
    watched = WatchedLimits(claim=claim, places=places, limits_since=-math.inf)
    watched.is_shown = not watched.is_looked_at
    if not isinstance(kept, list) or len(kept) != len(claim.shares):
        return watched
    try:
        watched.standing = tuple(map(Standing.from_json, kept))
    except (ValueError, KeyError, TypeError):
        return watched
    watched.is_shown = True
    watched.is_warned = _are_broken(watched.standing)
    return watched


def _are_broken(standing: Sequence[Standing]) -> bool:
    """Return True if the limits of a share do not hold."""
    return any(each.verdict.state is State.NOT_ENFORCED for each in standing)
