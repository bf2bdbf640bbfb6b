"""Verdict about the limits of one share: whether they hold now, and why."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final


class State(StrEnum):
    """Whether the limits of a share hold at this moment."""

    ENFORCED = "Enforced"
    """Live signs show it, or the share has no limit."""
    NOT_ENFORCED = "NotEnforced"
    """A container with this share can exceed its limits."""
    UNKNOWN = "Unknown"
    """Nothing on this node shows either."""


LIMITER_ACTIVE: Final = "LimiterActive"
NO_LIMIT: Final = "NoLimit"

SHARED_MEMORY_MISSING: Final = "SharedMemoryMissing"
SHARED_MEMORY_REPLACED: Final = "SharedMemoryReplaced"
HEARTBEAT_STALE: Final = "HeartbeatStale"
DEVICE_MISSING: Final = "DeviceMissing"
LIMITS_DIFFER: Final = "LimitsDiffer"
LIMITER_MISSING: Final = "LimiterMissing"
DAEMON_SILENT: Final = "DaemonSilent"

STARTING: Final = "Starting"
NO_PROCESS: Final = "NoProcessYet"
LIMITER_IN_IMAGE: Final = "LimiterInImage"
CLIENTS_HIDDEN: Final = "ClientsNotVisible"
SIMULATED: Final = "SimulatedGPU"
UNREADABLE: Final = "SignsUnreadable"
UNKNOWN_ENFORCER: Final = "UnknownEnforcer"
NO_SIGNS: Final = "NoSigns"

ENFORCER_ALIVE: Final = "EnforcerAlive"
HYPERVISOR_MISSING: Final = "HypervisorMissing"
LIBRARY_INSTALLED: Final = "LibraryInstalled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether the limits of one share hold.

    Attributes:
        reason: In CamelCase, for programs; one of the constants of this module.
        text: What was seen and, if there is something to do, what.
    """

    state: State
    reason: str
    text: str

    def is_same(self, other: "Verdict") -> bool:
        """Return True if state and reason are equal; texts differ in ages and counts."""
        return (self.state, self.reason) == (other.state, other.reason)

    def as_json(self) -> dict[str, Any]:
        """Return the verdict as JSON."""
        return {"state": self.state.value, "reason": self.reason, "message": self.text}


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A verdict that stands, and the time since when its state has been the same.

    Attributes:
        since: Timezone-aware.
    """

    verdict: Verdict
    since: datetime

    def after(self, newer: Verdict, now: datetime) -> "Standing":
        """Return what stands after a newer verdict; its text only counts if the rest differs."""
        if newer.is_same(self.verdict):
            return self
        since = self.since if newer.state is self.verdict.state else now
        return Standing(verdict=newer, since=since)

    def as_json(self) -> dict[str, Any]:
        """Return the standing verdict as JSON."""
        return {**self.verdict.as_json(), "since": self.since.isoformat()}

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> "Standing":
        """Return the standing verdict that as_json() wrote.

        Raises:
            ValueError: It did not write this.
            KeyError: It did not write this.
        """
        return cls(
            verdict=Verdict(
                state=State(kept["state"]), reason=str(kept["reason"]), text=str(kept["message"])
            ),
            since=datetime.fromisoformat(str(kept["since"])),
        )


def worst(verdicts: Iterable[Verdict]) -> Verdict | None:
    """Return the first verdict of the worst state; None if there are none."""
    order = (State.ENFORCED, State.UNKNOWN, State.NOT_ENFORCED)
    return max(verdicts, key=lambda each: order.index(each.state), default=None)


def enforced(reason: str, text: str) -> Verdict:
    """Return a verdict that the limits hold."""
    return Verdict(state=State.ENFORCED, reason=reason, text=text)


def not_enforced(reason: str, text: str) -> Verdict:
    """Return a verdict that the limits do not hold."""
    return Verdict(state=State.NOT_ENFORCED, reason=reason, text=text)


def unknown(reason: str, text: str) -> Verdict:
    """Return a verdict that nothing shows whether the limits hold."""
    return Verdict(state=State.UNKNOWN, reason=reason, text=text)
