"""Use of the cards by processes: to which share each process belongs, and whether it is too much.

NVML says which process uses which card, and the kernel says in which cgroup a process is. Neither
can be changed by a tenant, unlike the files that limiters keep.

A process belongs to a share if its pod has the share and the share is of its card. Where a pod has
several shares of one card, nothing on the node tells them apart: what the pod uses then fills them
in their order, so that the sum is right, and the last one is over its limit if the pod is.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tensorfusion_dra.core.claims.prepared import Limit, PreparedClaim, PreparedShare
from tensorfusion_dra.core.kubernetes.quantity import MIB, Quantity

# The first match counts: a container may make cgroups of any name below its own.
_CONTAINER: Final = re.compile(
    r"pod(?P<pod>[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?:\.slice)?"
    r"/(?:[a-z]+(?:-[a-z]+)*-)?(?P<id>[0-9a-f]{64})(?=\.scope|/|$)",
    re.MULTILINE,
)
_MIN_EXCESS_BYTES: Final = 64 * MIB
_EXCESS_PART: Final = 32
"""A share is over its limit by more than 1/32 of it and 64 MiB: limiters count what a program asks
for, NVML what the driver took for it, which is in whole pages and a little more."""
_NEAR_PART: Final = 20
"""A share is at its limit if less than 1/20 of it is left."""
_NOTABLE_PART: Final = 16
_NOTABLE_PERCENT: Final = 25
_MAX_CONTAINERS: Final = 16
"""A container takes about 80 of the 10 KiB that the API server allows for a device's data."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Container:
    """A container of a pod.

    Attributes:
        pod_uid: The pod's UID; for a static pod the kubelet's hash.
        id: 64 hexadecimal digits, which the container runtime gave.
    """

    pod_uid: str
    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """One process that uses a card.

    Attributes:
        name: Of its program; "" if it is not known.
        vram_bytes: Memory of the card; 0 if NVML does not say it.
        sm_percent: Part of the last seconds in which its kernels ran, in percent.
        container: None outside of containers of Kubernetes.
    """

    pid: int
    vram_bytes: int
    sm_percent: int = 0
    container: Container | None = None
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """Use of a card by a share, by a container, or by everything outside of the shares.

    Attributes:
        vram_bytes: Memory, with what the driver takes for each process.
        sm_percent: Part of the last seconds in which kernels ran, in percent of the whole card.
        processes: Their number.
        containers: Memory by container ID.
        raised_percent: Part of the card that the share may use for the moment, because the other
            tenants are idle; 0 if that is no more than its limit.
    """

    vram_bytes: int = 0
    sm_percent: int = 0
    processes: int = 0
    raised_percent: int = 0
    containers: Mapping[str, int] = field(default_factory=dict)

    @property
    def memory(self) -> Quantity:
        """The memory in whole MiB, for display."""
        return Quantity.of_bytes(self.vram_bytes // MIB * MIB)

    def as_json(self) -> dict[str, Any]:
        """Return it as a claim's status has it, with the largest containers by their IDs."""
        largest = sorted(self.containers.items(), key=lambda each: (-each[1], each[0]))
        return {
            "vramBytes": self.vram_bytes,
            "smPercent": self.sm_percent,
            "processes": self.processes,
            "containers": dict(largest[:_MAX_CONTAINERS]),
        } | ({"raisedSmPercent": self.raised_percent} if self.raised_percent else {})

    def exceeds(self, limit: Limit | None) -> bool:
        """Return True if it is clearly more memory than the limit.

        Compute is not compared: NVML's utilization is the time in which any kernel ran, however
        small its part of the card.
        """
        if limit is None:
            return False
        slack = max(limit.vram_bytes // _EXCESS_PART, _MIN_EXCESS_BYTES)
        return self.vram_bytes > limit.vram_bytes + slack

    def is_near(self, limit: Limit | None) -> bool:
        """Return True if next to nothing is left of the memory limit, or less."""
        if limit is None:
            return False
        return self.vram_bytes > limit.vram_bytes - limit.vram_bytes // _NEAR_PART

    def differs(self, other: "Used", whole_bytes: int) -> bool:
        """Return True if the use differs by 1/16 of the whole, or by 25 percentage points."""
        return (
            abs(self.vram_bytes - other.vram_bytes) * _NOTABLE_PART >= max(whole_bytes, 1)
            or abs(self.sm_percent - other.sm_percent) >= _NOTABLE_PERCENT
            or self.containers.keys() != other.containers.keys()
            or self.raised_percent != other.raised_percent
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeUse:
    """The use of all cards at one moment.

    Attributes:
        shares: By claim UID, for each share of the claim in its order; None if its card's use is
            not known.
        foreign: By GPU UUID, what belongs to no share; cards without any are missing.
        foreign_text: By GPU UUID, the processes behind it.
        reason: Why some or all of it is not known; "" if it is.
    """

    shares: Mapping[str, Sequence[Used | None]]
    foreign: Mapping[str, Used]
    foreign_text: Mapping[str, str]
    reason: str = ""


NOTHING: Final = NodeUse(shares={}, foreign={}, foreign_text={})


def container_of(cgroups: str) -> Container | None:
    """Return the container that a process is in; None if it is in none of Kubernetes.

    Args:
        cgroups: Content of /proc/PID/cgroup: of cgroup v1 or v2, under the systemd or the cgroupfs
            driver, of any runtime, relative to any cgroup above the pods.
    """
    found = _CONTAINER.search(cgroups)
    if found is None:
        return None
    return Container(pod_uid=found["pod"].replace("_", "-"), id=found["id"])


def of_node(
    claims: Iterable[PreparedClaim],
    cards: Mapping[str, Sequence[GpuProcess]],
    *,
    pods: Mapping[str, Collection[str]],
    exact: Mapping[tuple[str, str], int] | None = None,
    raised: Mapping[str, int] = {},
    reason: str = "",
) -> NodeUse:
    """Return who uses the cards.

    Args:
        claims: All prepared claims.
        cards: The processes by GPU UUID.
        pods: UIDs of further pods of a claim by its UID: those that came after it was prepared.
        exact: Memory in bytes by pod UID and GPU UUID where the NVIDIA driver counts it by pod, in
            place of the sum over processes.
        raised: Claims whose compute limits are raised, by UID; see Used.raised_percent.
        reason: Why some of it is not known.
    """
    counted = exact or {}
    cards = {**{uuid: () for _, uuid in counted}, **cards}
    parts: dict[str, list[Used | None]] = {}
    tenants: dict[tuple[str, str], list[tuple[str, int, PreparedShare]]] = {}
    for claim in claims:
        uid = claim.ref.uid
        none = Used(raised_percent=raised.get(uid, 0))
        parts[uid] = [none if share.gpu_uuid in cards else None for share in claim.shares]
        for pod in {*(each.uid for each in claim.pods), *pods.get(uid, ())}:
            for index, share in enumerate(claim.shares):
                tenants.setdefault((pod, share.gpu_uuid), []).append((uid, index, share))
    foreign: dict[str, Used] = {}
    texts: dict[str, str] = {}
    for uuid, processes in cards.items():
        by_pod: dict[str, list[GpuProcess]] = {}
        for process in processes:
            pod = process.container.pod_uid if process.container else ""
            by_pod.setdefault(pod if (pod, uuid) in tenants else "", []).append(process)
        by_pod |= {pod: by_pod.get(pod, []) for pod, card in counted if card == uuid}
        if others := by_pod.pop("", None):
            foreign[uuid] = _sum(others)
            texts[uuid] = _text(others)
        for pod, own in by_pod.items():
            owners = tenants[pod, uuid]
            used = _sum(own)
            used = replace(used, vram_bytes=counted.get((pod, uuid), used.vram_bytes))
            parts_of_pod = _divided(used, [share.limit for _, _, share in owners])
            for (uid, index, _), part in zip(owners, parts_of_pod, strict=True):
                parts[uid][index] = _added(parts[uid][index] or Used(), part)
    return NodeUse(shares=parts, foreign=foreign, foreign_text=texts, reason=reason)


def _divided(used: Used, limits: Sequence[Limit | None]) -> Sequence[Used]:
    """Return the parts of one pod's shares of a card; each is filled up to its limit."""
    parts = []
    for limit in limits[:-1]:
        part = used
        if limit is not None:
            part = replace(
                used,
                vram_bytes=min(used.vram_bytes, limit.vram_bytes),
                sm_percent=min(used.sm_percent, limit.sm_percent),
            )
        parts.append(part)
        used = replace(
            used,
            vram_bytes=used.vram_bytes - part.vram_bytes,
            sm_percent=used.sm_percent - part.sm_percent,
        )
    return [*parts, used]


def _sum(processes: Iterable[GpuProcess]) -> Used:
    total = Used()
    for each in processes:
        used = Used(
            vram_bytes=each.vram_bytes,
            sm_percent=each.sm_percent,
            processes=1,
            containers={each.container.id: each.vram_bytes} if each.container else {},
        )
        total = _added(total, used)
    return total


def _added(one: Used, other: Used) -> Used:
    both = one.containers.keys() | other.containers.keys()
    containers = {key: one.containers.get(key, 0) + other.containers.get(key, 0) for key in both}
    return replace(
        one,
        vram_bytes=one.vram_bytes + other.vram_bytes,
        sm_percent=one.sm_percent + other.sm_percent,
        processes=one.processes + other.processes,
        containers=containers,
    )


_MAX_NAMED: Final = 5


def _text(processes: Sequence[GpuProcess]) -> str:
    ordered = sorted(processes, key=lambda each: (-each.vram_bytes, each.pid))
    named = [
        f"process {each.pid} {each.name or '(no name)'}"
        + (f" of pod {each.container.pod_uid}" if each.container else "")
        + f" uses {each.vram_bytes // MIB} MiB"
        for each in ordered[:_MAX_NAMED]
    ]
    more = len(processes) - len(named)
    return ", ".join(named) + (f", and {more} more" if more else "")
