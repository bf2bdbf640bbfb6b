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

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, Protocol, runtime_checkable

from tensorfusion_dra.core.claims import limits
from tensorfusion_dra.core.claims.enforcers import enforcer, limiters, nvidia
from tensorfusion_dra.enforcers.hami_core import HamiCore
from tensorfusion_dra.enforcers.registered import NoEnforcer
from tensorfusion_dra.enforcers.mps import Mps
from tensorfusion_dra.enforcers.nvidia.enforcer import Nvidia
from tensorfusion_dra.enforcers.tensor_fusion.enforcer import TensorFusion
from tensorfusion_dra.core.claims.evidence import Evidence, EvidencePaths, SharedMemory
from tensorfusion_dra.core.claims.limits import Limit
from tensorfusion_dra.core.claims.prepared import PreparedClaim, PreparedShare
from tensorfusion_dra.core.devices.gpu import Isolation


class State(StrEnum):
    """Whether the limits of a share hold at this moment."""

    ENFORCED = "Enforced"
    """Evidence shows it, or the share has no limit."""
    NOT_ENFORCED = "NotEnforced"
    """A container with this share can exceed its limits."""
    UNKNOWN = "Unknown"
    """Nothing on this node shows either."""


LIMITER_ACTIVE: Final = "LimiterActive"
NO_LIMIT: Final = "NoLimit"
LIMIT_IN_DRIVER: Final = "LimitInDriver"

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
HYPERVISOR_MISSING: Final = "HypervisorMissing"
LIBRARY_INSTALLED: Final = "LibraryInstalled"
NONE_FOUND: Final = "NoneFound"
ADVISORY: Final = "limits are advisory: the administrator chose enforcer=none"


_ORDER: Final = (State.ENFORCED, State.UNKNOWN, State.NOT_ENFORCED)
_LIMITS: Final = ("memory", "compute")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether the limits of one share hold.

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
            for name, each in kept.get("limits", {}).items()
        }
        return cls(
            verdict=Verdict(
                state=State(kept["state"]),
                reason=str(kept["reason"]),
                text=str(kept["message"]),
                # None if both are as the whole; an older release wrote none.
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


_WHOLE_PERCENT: Final = 100
OWN: Final = frozenset({TensorFusion.name, HamiCore.name, Mps.name, Nvidia.name})
"""The driver's own enforcers, but for `none`."""
STARTING_SECONDS: Final = 30.0
"""Time after new limits in which missing evidence means nothing yet. The hypervisor itself tries
for 30 seconds to make a pod's shared memory."""


@runtime_checkable
class Judge(Protocol):
    """An enforcer that judges by its own evidence."""

    def judge(self, claim: PreparedClaim, share: PreparedShare, evidence: Evidence, /) -> Verdict:
        """Return the verdict about one share with a limit.

        Args:
            claim: As it is prepared now.
            share: One of its shares, not of a simulated card.
            evidence: What was read at the claim's paths.
        """
        ...


def judge_of(enforcer: object) -> Judge | None:
    """Return the enforcer if it judges by its own evidence; None if it does not."""
    return enforcer if isinstance(enforcer, Judge) else None


def of_claim(
    claim: PreparedClaim,
    evidence: Evidence,
    *,
    is_new: bool,
    beside: Iterable[PreparedClaim] = (),
    judge: Judge | None = None,
    excess: Sequence[str] = (),
) -> tuple[Verdict, ...]:
    """Return the verdict about each share of the claim, in their order.

    Args:
        claim: As it is prepared now.
        evidence: What was read at the claim's paths.
        is_new: Its limits were set less than STARTING_SECONDS ago.
        beside: Other claims of the same pod, which share its limits.
        judge: The claim's enforcer if it is of another package and judges itself.
        excess: For each share, how it was seen to be over its limit, "" if it was not; () if
            nobody looked. It is stronger than any evidence of the enforcer, which a tenant can
            write.
    """
    others = tuple(beside)
    return tuple(
        (not_enforced(LIMIT_EXCEEDED, over) if over else None)
        or verdict_of_record(claim, share)
        or (
            _by_evidence(claim, share, evidence, is_new=is_new, beside=others)
            if claim.enforcer in OWN
            else _by_judge(claim, share, evidence, judge)
        )
        for share, over in zip(claim.shares, excess or [""] * len(claim.shares), strict=True)
    )


def beside(
    claim: PreparedClaim,
    paths: EvidencePaths,
    every: Iterable[tuple[PreparedClaim, EvidencePaths]],
) -> list[PreparedClaim]:
    """Return the other claims whose limits are in the same place: those of the same pod.

    Args:
        claim: The claim.
        paths: Its paths; without shared memory or limited pod, no claim shares its place.
        every: All claims of the node with their paths, this one included.
    """
    if not paths.shared_memory and not paths.limited_pod:
        return []
    return [
        other
        for other, others in every
        if (others.shared_memory, others.limited_pod) == (paths.shared_memory, paths.limited_pod)
        and other.ref.uid != claim.ref.uid
        and other.pods[:1] == claim.pods[:1]  # and not of an earlier pod of this name
    ]


def verdict_of_record(claim: PreparedClaim, share: PreparedShare) -> Verdict | None:
    """Return the verdict that follows from the record alone; None if evidence decides."""
    if share.limit is None:
        why = "admin access" if share.admin_access else f"isolation {share.isolation.value}"
        return enforced(NO_LIMIT, f"no limit to enforce: {why}")
    if enforcer.is_simulated([each for each in claim.shares if each.limit]):
        return unknown(SIMULATED, "simulated GPU: there is nothing to enforce")
    if claim.enforcer == NoEnforcer.name:
        return not_enforced(NO_ENFORCER, ADVISORY)
    if claim.enforcer == TensorFusion.name and share.isolation is not Isolation.SOFT:
        return unknown(
            LIMITER_IN_IMAGE,
            f"isolation {share.isolation.value}: the limiter is part of the container's image and "
            "leaves no sign on the node",
        )
    return None


def _by_judge(
    claim: PreparedClaim, share: PreparedShare, evidence: Evidence, judge: Judge | None
) -> Verdict:
    if judge is None:
        return unknown(UNKNOWN_ENFORCER, f"enforcer {claim.enforcer!r} is not known on this node")
    return judge.judge(claim, share, evidence)


def _by_evidence(
    claim: PreparedClaim,
    share: PreparedShare,
    evidence: Evidence,
    *,
    is_new: bool,
    beside: tuple[PreparedClaim, ...],
) -> Verdict:
    if claim.enforcer == TensorFusion.name:
        shares = [each for one in (claim, *beside) for each in one.shares]
        expected = limits.by_uuid((each.gpu_uuid, each.limit) for each in shares)
        return of_soft_limiter(share.gpu_uuid, expected[share.gpu_uuid], evidence, is_new=is_new)
    if claim.enforcer == HamiCore.name:
        of_request = enforcer.enforced(claim)[share.request]
        return _of_hami_core(share.request, limiters.limits(of_request), evidence)
    if claim.enforcer == Nvidia.name:
        return _of_nvidia(claim, share, evidence, beside)
    return _of_mps(evidence)


def _of_hami_core(request: str, expected: tuple[Limit, ...], evidence: Evidence) -> Verdict:
    """Return the verdict about the cards of one request under HAMi-core.

    HAMi-core is a library in the container that counts in a file of its claim. The first process
    that loads it writes its limits into the file; each process registers in it. So the file is
    there only once a process has loaded the library, and it has the limits by which the library
    really refuses. It has process IDs of the container, which cannot be looked up from outside, so
    a registered process may have been killed by now.

    Args:
        request: Name of the request.
        expected: The request's limits by the index of a card in the container.
        evidence: What was read.
    """
    cache = evidence.caches.get(request)
    if cache is None or not (cache.processes or cache.trouble):
        # A container that uses several requests of its claim counts in the file of one of them.
        # Their limits are equal (enforcers/limiters.py), so that one speaks for all.
        cache = next((each for each in evidence.caches.values() if each.processes), cache)
    if cache is not None and cache.trouble:
        return unknown(UNREADABLE, f"{cache.path}: {cache.trouble}")
    if cache is not None and cache.processes:
        for index, (limit, found) in enumerate(zip(expected, cache.limits, strict=False)):
            # HAMi-core takes 0 for no limit.
            exceeds_compute = (found.sm_percent or _WHOLE_PERCENT) > limit.sm_percent
            if exceeds_compute or not found.vram_bytes or found.vram_bytes > limit.vram_bytes:
                return not_enforced(
                    LIMITS_DIFFER,
                    f"{cache.path}: card {index}: found {found}, expected {limit}; the first "
                    "process in the container had other limits in its environment; start the pod "
                    "again",
                )
        return enforced(
            LIMITER_ACTIVE,
            f"limits in {cache.path} as in the claim, registered processes: {cache.processes}",
        )
    missing = [f"{file.path}: {file.trouble}" for file in evidence.files if file.trouble]
    if missing:
        return not_enforced(
            LIMITER_MISSING,
            f"{missing[0]}: no container can load HAMi-core; put it there",
        )
    return unknown(
        NO_PROCESS,
        "no process has registered with HAMi-core: none has used the GPU yet, or it runs without "
        "the library",
    )


def _of_mps(evidence: Evidence) -> Verdict:
    """Return the verdict about a claim under MPS, whose clients only its own tool shows."""
    daemon = evidence.daemon
    if daemon is None:
        return unknown(UNREADABLE, "its daemon was not looked for")
    if daemon.trouble:
        return not_enforced(
            DAEMON_SILENT,
            f"{daemon.path}: {daemon.trouble}: processes that start now run without limits; "
            "start nvidia-cuda-mps-control -d on this node",
        )
    return unknown(
        CLIENTS_HIDDEN,
        f"the MPS daemon answers at {daemon.path}; whether the container's processes are its "
        "clients only its tool shows: run get_client_list in nvidia-cuda-mps-control on the node",
    )


def _of_nvidia(
    claim: PreparedClaim,
    share: PreparedShare,
    evidence: Evidence,
    beside: tuple[PreparedClaim, ...],
) -> Verdict:
    """Return the verdict about one card of a pod that the NVIDIA driver limits."""
    expected = nvidia.memory_limits((claim, *beside))[share.gpu_uuid]
    found = evidence.memory.get(share.gpu_uuid)
    if found is None:
        silent = evidence.daemon.trouble if evidence.daemon else "its limit was not looked for"
        memory = unknown(UNREADABLE, silent)
    elif isinstance(found, str):
        memory = not_enforced(LIMITS_DIFFER, found)
    elif found[0] > expected:
        text = f"found a limit of {found[0]} bytes, expected {expected}; the driver sets it again"
        memory = not_enforced(LIMITS_DIFFER, text)
    else:
        text = f"the NVIDIA driver keeps the pod at {found[0]} bytes, of which it uses {found[1]}"
        memory = enforced(LIMIT_IN_DRIVER, text)
    compute = enforced(NO_LIMIT, "all of the card")
    if share.limit is not None and share.limit.sm_percent < _WHOLE_PERCENT:
        compute = unknown(
            COMPUTE_NOT_LIMITED,
            f"nothing keeps the container at {share.limit.sm_percent} percent: the card divides "
            "its time equally among those that are busy",
        )
    return of_limits(memory, compute)


FRESH_SECONDS: Final = 5.0
"""Greatest age of a heartbeat. The limiter wants two seconds; the rest is for whole seconds in the
file and for a busy node."""
_EARLY_SECONDS: Final = 2.0
"""Time by which a heartbeat may be ahead, since two clocks are read one after the other."""
_CURE: Final = "check that Tensor Fusion's hypervisor runs on this node and serves this pod"


def is_fresh(memory: SharedMemory, read_at: float) -> bool:
    """Return True if a hypervisor was at this shared memory a moment ago."""
    return memory.heartbeat > 0 and -_EARLY_SECONDS <= read_at - memory.heartbeat <= FRESH_SECONDS


def of_soft_limiter(gpu_uuid: str, expected: Limit, evidence: Evidence, *, is_new: bool) -> Verdict:
    """Return the verdict about one card of a pod.

    Args:
        gpu_uuid: The card.
        expected: The pod's limit on this card: that of all its shares of it together.
        evidence: What was read.
        is_new: The limits were set a moment ago, so the hypervisor may still be about to write.
    """
    memory = evidence.shared_memory
    if memory is None:
        return unknown(UNREADABLE, "its shared memory was not looked for")
    if memory.trouble and not memory.is_replaced:
        return unknown(UNREADABLE, f"{memory.path}: {memory.trouble}")
    trouble = _memory_trouble(gpu_uuid, expected, memory, evidence.read_at)
    if trouble is not None:
        starting = f"the limits were set a moment ago; {trouble.text}"
        return unknown(STARTING, starting) if is_new else trouble
    if memory.processes:
        return enforced(
            LIMITER_ACTIVE,
            f"hypervisor alive, limits in {memory.path} as in the claim, "
            f"registered processes: {memory.processes}",
        )
    missing = [f"{file.path}: {file.trouble}" for file in evidence.files if file.trouble]
    if missing:
        return not_enforced(
            LIMITER_MISSING,
            f"{missing[0]}: the hypervisor is alive, but no container can load the limiter; "
            "put the limiter there",
        )
    return unknown(
        NO_PROCESS,
        "hypervisor alive, limits as in the claim, but no process has registered: none has used "
        "the GPU yet, or it runs without the limiter",
    )


def _memory_trouble(
    gpu_uuid: str, expected: Limit, memory: SharedMemory, read_at: float
) -> Verdict | None:
    """Return why the hypervisor does not keep this limit; None if it does."""
    if memory.is_replaced:
        return not_enforced(
            SHARED_MEMORY_REPLACED,
            f"{memory.path}: its folder is not the one that the pod's containers have mounted, so "
            "they see no limits; delete the pod, so that a new one starts with them",
        )
    if not memory.found:
        return not_enforced(
            SHARED_MEMORY_MISSING,
            f"{memory.path}: not found: no hypervisor keeps the limits of this pod; {_CURE}",
        )
    if not is_fresh(memory, read_at):
        return not_enforced(
            HEARTBEAT_STALE,
            f"{memory.path}: {_age(memory, read_at)}, expected one of the last "
            f"{FRESH_SECONDS:g} s: compute is unlimited, and memory is limited by the usage of "
            f"then; {_CURE}",
        )
    by_uuid = {plain_uuid(uuid): limit for uuid, limit in memory.limits.items()}
    found = by_uuid.get(plain_uuid(gpu_uuid))
    if found is None:
        known = ", ".join(sorted(memory.limits)) or "no GPU"
        return not_enforced(
            DEVICE_MISSING, f"{memory.path}: found {known}, expected {gpu_uuid}; {_CURE}"
        )
    differing = ""
    if found.sm_percent > expected.sm_percent or found.vram_bytes > expected.vram_bytes:
        differing = f"{memory.path}: {gpu_uuid}: found {found}, expected {expected}; {_CURE}"
    elif memory.overruled:
        differing = f"the pod's annotations rule the hypervisor: {memory.overruled}"
    return not_enforced(LIMITS_DIFFER, differing) if differing else None


def plain_uuid(uuid: str) -> str:
    """Return a UUID without its prefix, in lower case: upstream's parts spell it in three ways."""
    return uuid.lower().removeprefix("gpu-")


def _age(memory: SharedMemory, read_at: float) -> str:
    if not memory.heartbeat:
        return "no heartbeat"
    seconds = round(read_at - memory.heartbeat)
    if seconds < 0:
        return f"a heartbeat {-seconds} s ahead of this node's clock"
    return f"the last heartbeat is {seconds} s old"
