"""Status of this driver's devices in a claim (AllocatedDeviceStatus, KEP-4817)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims import resize
from tensorfusion_dra.core.claims.prepared import PreparedClaim, PreparedShare
from tensorfusion_dra.core.claims.resize import Resize
from tensorfusion_dra.core.claims.use import Used
from tensorfusion_dra.core.claims.verdicts import CurrentVerdict, State
from tensorfusion_dra.core.devices import device as device_facts
from tensorfusion_dra.core.devices.device import Enforcement
from tensorfusion_dra.core.devices.health import Unhealthy
from tensorfusion_dra.core.kubernetes import quantity, resource_claims
from tensorfusion_dra.core.kubernetes.quantity import Quantity
from tensorfusion_dra.core.kubernetes.untyped_json import map_at, objects_at

CONDITION_READY: Final = "Ready"
REASON_PREPARED: Final = "Prepared"
REASON_CLAMPED: Final = "MemoryLimitClamped"
REASON_COMPUTE_CLAMPED: Final = "ComputeLimitClamped"
REASON_UNHEALTHY: Final = "GPUUnhealthy"
REASON_NOT_ENFORCED: Final = "LimitsNotEnforceable"
CONDITION_ENFORCED: Final = "LimitsEnforced"
CONDITION_CHANGED: Final = "LimitChanged"
_LEFT: Final = "the card and its other tenants leave less"
_FIXED: Final = "set when the container started, and stays until the pod starts again"
_LENT: Final = "the rest is lent while the card's other tenants are idle"
_MAX_MESSAGE: Final = 4096
_STATUS: Final = {State.ENFORCED: "True", State.NOT_ENFORCED: "False", State.UNKNOWN: "Unknown"}

_KEY: Final = ("driver", "pool", "device", "shareID")

Entry = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """State of a device for one claim: ready or not, and since when.

    Attributes:
        since: Time since when it has been ready or not; timezone-aware.
        unhealthy: None if the device is healthy.
        reason: Why the claim's limits cannot be enforced on it; "" if they are.
    """

    since: datetime
    unhealthy: Unhealthy | None = None
    reason: str = ""

    @property
    def is_ready(self) -> bool:
        """True if the device is healthy and the claim's limits are enforced."""
        return self.unhealthy is None and not self.reason


def status(
    claim: PreparedClaim,
    readiness: Mapping[str, Readiness],
    current: Sequence[CurrentVerdict] = (),
    used: Sequence[Used | None] = (),
    resized: tuple[Resize, datetime] | None = None,
) -> list[Entry]:
    """Return the entries of ``status.devices`` for the claim's devices, one for each.

    A claim may have admin access to one device by several requests. The API server identifies an
    entry by driver, pool, device and share ID, so these requests have one entry in common. If
    another allocation of the claim has the same key, the entry describes that one, because it has
    limits.

    Args:
        claim: The claim as it is prepared now.
        readiness: By device name; one for each of the claim's devices.
        current: Whether the limits of each of the claim's shares hold; empty to leave this out.
        used: What each of the shares uses; empty to leave this out.
        resized: What the claim's annotations ask for while it runs, and since when; None if
            nothing.
    """
    by_key: dict[
        tuple[str, str, str | None], tuple[PreparedShare, CurrentVerdict | None, Used | None]
    ] = {}
    if len(used) != len(claim.shares):
        used = [None] * len(claim.shares)
    for index, share in enumerate(claim.shares):
        key = (share.pool, share.device, share.share_id)
        if key not in by_key or by_key[key][0].admin_access:
            by_key[key] = (share, current[index] if current else None, used[index])
    return [
        _with_resize(_entry(share, readiness[share.device], holds, own), share, own, resized)
        for share, holds, own in by_key.values()
    ]


def _with_resize(
    entry: Entry,
    share: PreparedShare,
    used: Used | None,
    resized: tuple[Resize, datetime] | None,
) -> Entry:
    """Return an entry with what came of a change of the share's limits."""
    if resized is None or share.admin_access:
        return entry
    found, since = resized
    reason, text = found.outcome(share, used)
    status = "True" if reason == resize.GRANTED else "False"
    condition = _condition(CONDITION_CHANGED, status, reason, text[:_MAX_MESSAGE], since=since)
    return {
        **entry,
        "data": {**entry["data"], "asked": dict(found.asked)},
        "conditions": [*entry["conditions"], condition],
    }


def awaiting(claim: Mapping[str, Any], node_name: str = "") -> list[Mapping[str, Any]]:
    """Return the results of a stored claim that the scheduler binds only with an enforcer.

    Args:
        node_name: The node of the devices; "" for any.
    """
    return [
        result
        for result in resource_claims.results(claim)
        if result["driver"] == names.DRIVER
        and names.BINDING_READY in (result.get("bindingConditions") or ())
        and node_name in {"", device_facts.node_name(result["pool"])}
    ]


def true_conditions(claim: Mapping[str, Any], result: Mapping[str, Any]) -> set[str]:
    """Return the types of the conditions that are True of a result's device."""
    entries = (claim.get("status") or {}).get("devices") or ()
    conditions = (each.get("conditions") or () for each in entries if key(each) == key(result))
    return {each["type"] for every in conditions for each in every if each["status"] == "True"}


def key(device: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what a result and the entry for its device have in common."""
    return tuple(device.get(name) for name in _KEY)


def consumed(claim: Mapping[str, Any], result: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the amounts of an allocated device, by capacity; {} if they are not known yet.

    For an exclusive device the scheduler writes none; the node does when it prepares the claim.
    """
    entries = objects_at(claim, "status", "devices")
    of_node = (map_at(each, "data", "consumed") for each in entries if key(each) == key(result))
    return next(filter(None, (map_at(result, "consumedCapacity"), *of_node)), {})


def condition(device: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """Return a condition of a claim's entry for a device; {} if it has none of this type."""
    found = (each for each in device.get("conditions") or () if each["type"] == kind)
    return next(found, {})


def binding(
    claim: Mapping[str, Any], node_name: str, enforcement: Enforcement, now: datetime
) -> list[Entry]:
    """Return the entries by which a waiting claim is bound, or given up; empty if none waits.

    Args:
        claim: As it is stored.
        node_name: This node; devices of others are left out.
        enforcement: What the node's devices show now.
    """
    kind, reason = names.BINDING_READY, "EnforcerReady"
    text = f"node {node_name} has enforcer {enforcement.enforcer}"
    if enforcement.given_up_since is not None:
        kind, reason = names.BINDING_FAILED, "EnforcerMissing"
        text = f"node {node_name} had no enforcer for enforcer-wait-seconds"
    waiting = awaiting(claim, node_name)
    if all({names.BINDING_READY, kind} & true_conditions(claim, result) for result in waiting):
        return []
    condition = _condition(kind, "True", reason, text, since=now)
    return [
        {name: value for name, value in zip(_KEY, each, strict=True) if value is not None}
        | {"conditions": [condition]}
        for each in dict.fromkeys(map(key, waiting))
    ]


def _entry(
    share: PreparedShare,
    readiness: Readiness,
    current: CurrentVerdict | None,
    used: Used | None,
) -> Entry:
    reason = REASON_PREPARED
    if share.clamped:
        reason = REASON_CLAMPED if share.memory_clamped else REASON_COMPUTE_CLAMPED
    message = _message(share)
    if readiness.reason:
        reason = REASON_NOT_ENFORCED
        message = f"{readiness.reason}; {message}"[:_MAX_MESSAGE]
    if readiness.unhealthy is not None:
        reason = REASON_UNHEALTHY
        message = f"{readiness.unhealthy.worst.text}; {message}"[:_MAX_MESSAGE]
    entry: Entry = {
        "driver": names.DRIVER,
        "pool": share.pool,
        "device": share.device,
        "data": _data(share) | ({"used": used.as_json()} if used else {}),
        "conditions": [
            _condition(
                CONDITION_READY,
                "True" if readiness.is_ready else "False",
                reason,
                message,
                since=readiness.since,
            )
        ],
    }
    if current is not None:
        found = current.verdict
        if found.limits:
            entry["data"]["enforcement"] = found.limits_json()
        entry["conditions"].append(
            _condition(
                CONDITION_ENFORCED,
                _STATUS[found.state],
                found.reason,
                found.text[:_MAX_MESSAGE],
                since=current.since,
            )
        )
    if share.share_id is not None:
        entry["shareID"] = share.share_id
    return entry


def _condition(
    kind: str, status: str, reason: str, message: str, *, since: datetime
) -> dict[str, str]:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        # metav1.Time has no fractions of a second.
        "lastTransitionTime": f"{since.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}",
    }


def _data(share: PreparedShare) -> dict[str, Any]:
    if share.admin_access:
        return {"uuid": share.gpu_uuid, "adminAccess": True}
    data: dict[str, Any] = {
        "uuid": share.gpu_uuid,
        "isolation": share.isolation.value,
        "qos": share.qos.value,
        "consumed": quantity.texts(share.consumed),
    }
    if share.limit is not None:
        data["limits"] = {**share.limit.as_json(), "clamped": share.clamped}
        if share.memory_clamped:
            data["limits"]["wantedVramBytes"] = share.wanted_vram_bytes
        if share.compute_clamped:
            data["limits"]["wantedSmPercent"] = share.wanted_sm_percent
    return data


def _message(share: PreparedShare) -> str:
    if share.admin_access:
        return f"{share.gpu_uuid}: admin access, no limits"
    if share.limit is None:
        return f"{share.gpu_uuid}: no limits, isolation {share.isolation.value}"
    text = f"{share.gpu_uuid}: {share.limit}, isolation {share.isolation.value}"
    wanted: dict[str, list[str]] = {}
    if share.compute_clamped:
        why = _LENT if share.idle_compute else _FIXED if share.granted else _LEFT
        wanted.setdefault(why, []).append(f"{share.wanted_sm_percent}% of compute")
    if share.memory_clamped:
        why = _FIXED if share.granted and not share.divides_memory else _LEFT
        memory = Quantity.of_bytes(share.wanted_vram_bytes)
        wanted.setdefault(why, []).append(f"{memory} of memory")
    clamped = (f"clamped from {' and '.join(each)}: {why}" for why, each in wanted.items())
    return "; ".join([text, *clamped])
