"""Verdicts about the shares of a claim: does the limit of each hold now?

Theory of operation. Each share is in one of three states:

- Enforced: evidence of the enforcer shows that it keeps the limits of this claim, and that a
  process of the container takes part. A share without a limit is Enforced as well (reason NoLimit),
  because nobody can exceed what there is not; the same for admin access.
- NotEnforced: evidence that has to be there is missing, or says something else than the claim; or
  the share was seen to use more memory than its limit.
- Unknown: nothing on the node can show it (a limiter in the image, clients of MPS, a simulated
  GPU), or not yet (a claim that was prepared a moment ago, a container that has not used its GPU).

A file that is only installed never makes a share Enforced. The evidence is written by the enforcer
into memory that the container can write as well, so a tenant can deceive this check about its own
share, and about no other. What NVML shows of its use (use.py) it cannot change.

Example: a pod starts under the soft limiter. Unknown (Starting) while the hypervisor makes its
shared memory, Unknown (NoProcessYet) until the first CUDA call, Enforced from then on. The
hypervisor dies: NotEnforced (HeartbeatStale). It returns: Enforced.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Final


class State(StrEnum):
    """State of the limits of a share at this moment."""

    ENFORCED = "Enforced"
    """Evidence shows it, or the share has no limit."""
    NOT_ENFORCED = "NotEnforced"
    """A container with this share can exceed its limits."""
    UNKNOWN = "Unknown"
    """Nothing on this node shows either."""


LIMITER_ACTIVE: Final = "LimiterActive"
IDLE_COMPUTE_LENT: Final = "IdleComputeLent"
LIMITER_SEEN: Final = frozenset({LIMITER_ACTIVE, IDLE_COMPUTE_LENT})
"""A limiter in the container takes part."""
NO_LIMIT: Final = "NoLimit"
LIMIT_IN_DRIVER: Final = "LimitInDriver"
LIMIT_IN_HARDWARE: Final = "LimitInHardware"

SHARED_MEMORY_MISSING: Final = "SharedMemoryMissing"
SHARED_MEMORY_REPLACED: Final = "SharedMemoryReplaced"
HEARTBEAT_STALE: Final = "HeartbeatStale"
DEVICE_MISSING: Final = "DeviceMissing"
LIMITS_DIFFER: Final = "LimitsDiffer"
LIMIT_EXCEEDED: Final = "LimitExceeded"
LIMITER_MISSING: Final = "LimiterMissing"
DAEMON_SILENT: Final = "DaemonSilent"
NO_ENFORCER: Final = "NoEnforcer"
DRIVER_CANNOT_LIMIT: Final = "DriverCannotLimit"

STARTING: Final = "Starting"
NO_PROCESS: Final = "NoProcessYet"
LIMITER_IN_IMAGE: Final = "LimiterInImage"
CLIENTS_HIDDEN: Final = "ClientsNotVisible"
COMPUTE_NOT_LIMITED: Final = "ComputeNotLimited"
SIMULATED: Final = "SimulatedGPU"
UNREADABLE: Final = "SignsUnreadable"
UNKNOWN_ENFORCER: Final = "UnknownEnforcer"
NO_SIGNS: Final = "NoSigns"

ENFORCER_ALIVE: Final = "EnforcerAlive"
LIBRARY_INSTALLED: Final = "LibraryInstalled"
NONE_FOUND: Final = "NoneFound"
ADVISORY: Final = "limits are advisory: the administrator chose enforcer=none"


_ORDER: Final = (State.ENFORCED, State.UNKNOWN, State.NOT_ENFORCED)
_LIMITS: Final = ("memory", "compute")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Verdict on the limits of one share: do they hold?

    Attributes:
        reason: In CamelCase, for programs; one of the constants of this module.
        text: What was seen and, if there is something to do, what.
        limits: State and reason of the limit of `memory` and of `compute`, if they are judged
            apart; then the verdict is the worse of both. Otherwise it holds for each of them.
    """

    state: State
    reason: str
    text: str
    limits: Mapping[str, tuple[State, str]] = field(default_factory=dict)

    def is_same(self, other: "Verdict") -> bool:
        """Return True if states and reasons are equal; texts differ in ages and counts."""
        return (self.state, self.reason, self.limits) == (other.state, other.reason, other.limits)

    def as_json(self) -> dict[str, Any]:
        """Return the verdict as JSON."""
        return {
            "state": self.state.value,
            "reason": self.reason,
            "message": self.text,
            "limits": self.limits_json(),
        }

    def limits_json(self) -> dict[str, dict[str, str]]:
        """Return state and reason of each limit as JSON."""
        whole = dict.fromkeys(_LIMITS, (self.state, self.reason))
        return {
            name: {"state": state.value, "reason": reason}
            for name, (state, reason) in (self.limits or whole).items()
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentVerdict:
    """The current verdict, and the time since when its state has been the same.

    Attributes:
        since: Timezone-aware.
    """

    verdict: Verdict
    since: datetime

    def after(self, newer: Verdict, now: datetime) -> "CurrentVerdict":
        """Return the verdict after a newer one; its text only counts if the rest differs."""
        if newer.is_same(self.verdict):
            return self
        since = self.since if newer.state is self.verdict.state else now
        return CurrentVerdict(verdict=newer, since=since)

    def as_json(self) -> dict[str, Any]:
        """Return the current verdict as JSON."""
        return {**self.verdict.as_json(), "since": self.since.isoformat()}

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> "CurrentVerdict":
        """Return the current verdict that as_json() wrote.

        Raises:
            ValueError: It did not write this.
            KeyError: It did not write this.
        """
        limits = {
            name: (State(each["state"]), str(each["reason"]))
            for name, each in kept["limits"].items()
        }
        return cls(
            verdict=Verdict(
                state=State(kept["state"]),
                reason=str(kept["reason"]),
                text=str(kept["message"]),
                # None if both are as the whole.
                limits=limits if len({*limits.values()}) > 1 else {},
            ),
            since=datetime.fromisoformat(str(kept["since"])),
        )


def of_limits(memory: Verdict, compute: Verdict) -> Verdict:
    """Return the verdict about a share whose limits are judged apart: the worse of both."""
    found = max(memory, compute, key=lambda each: _ORDER.index(each.state))
    both = {_LIMITS[0]: (memory.state, memory.reason), _LIMITS[1]: (compute.state, compute.reason)}
    return replace(found, text=f"memory: {memory.text}; compute: {compute.text}", limits=both)


def worst(verdicts: Iterable[Verdict]) -> Verdict | None:
    """Return the first verdict of the worst state; None if there are none."""
    return max(verdicts, key=lambda each: _ORDER.index(each.state), default=None)


def enforced(reason: str, text: str) -> Verdict:
    """Return a verdict that the limits hold."""
    return Verdict(state=State.ENFORCED, reason=reason, text=text)


def not_enforced(reason: str, text: str) -> Verdict:
    """Return a verdict that the limits do not hold."""
    return Verdict(state=State.NOT_ENFORCED, reason=reason, text=text)


def unknown(reason: str, text: str) -> Verdict:
    """Return a verdict that nothing shows whether the limits hold."""
    return Verdict(state=State.UNKNOWN, reason=reason, text=text)


WHOLE_PERCENT: Final = 100
STARTING_SECONDS: Final = 30.0
"""Time after new limits in which missing evidence means nothing yet. The hypervisor itself tries
for 30 seconds to make a pod's shared memory."""
