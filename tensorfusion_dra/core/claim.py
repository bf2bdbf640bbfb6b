"""What the scheduler gave to a claim, read from its ResourceClaim."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tensorfusion_dra.core import names, quantity
from tensorfusion_dra.core.errors import ClaimError
from tensorfusion_dra.core.quantity import Quantity, QuantityError

# A UID becomes part of file names and of CDI device names.
_UID: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRef:
    """A claim as the kubelet names it."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRef:
    """A pod that a claim is reserved for."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpaqueConfig:
    """Parameters for this driver, as the scheduler copied them from class and claim.

    Attributes:
        trusted: They come from a DeviceClass, which an administrator writes.
        requests: Which requests or subrequests they are for; empty for all.
        parameters: The JSON value.
    """

    trusted: bool
    requests: tuple[str, ...]
    parameters: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """One result of the scheduler: a device, or a share of it, for one request of the claim.

    Attributes:
        request: The claim's request, without the subrequest that a prioritized list chose: the
            kubelet and containers know the main request only.
        subrequest: What the prioritized list chose; None for a request without one.
        share_id: Set if the device may be given to several claims; else the device is given alone.
        consumed: Amount by capacity; empty if the device is given alone or for admin access.
        admin_access: Access beside whoever uses the device; it consumes nothing.
    """

    request: str
    pool: str
    device: str
    subrequest: str | None = None
    share_id: str | None = None
    consumed: Mapping[str, Quantity]
    admin_access: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatedClaim:
    """A claim and what it holds of this driver's devices; other drivers' results are left out.

    Attributes:
        configs: In the order of precedence, the lowest first: of the class, then of the claim.
        pods: Those that the claim is reserved for.
    """

    ref: ClaimRef
    allocations: tuple[Allocation, ...]
    configs: tuple[OpaqueConfig, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    pods: tuple[PodRef, ...] = ()


def is_uid(text: str) -> bool:
    """Whether it can be a claim's UID, and be part of a file's name."""
    return _UID.fullmatch(text) is not None


def checked_ref(ref: ClaimRef) -> ClaimRef:
    """The reference, its UID known to be fit for file names.

    Raises:
        ClaimError: The UID holds anything but letters, digits and dashes, or is too long.
    """
    if not is_uid(ref.uid):
        raise ClaimError(
            f"claim {ref}: UID {ref.uid[:80]!r}, expected letters, digits and dashes, at most 63"
        )
    return ref


def allocated(ref: ClaimRef, stored: Mapping[str, Any]) -> AllocatedClaim:
    """The allocation in a stored ResourceClaim.

    Raises:
        ClaimError: It is another claim of the same name, has no allocation, or an amount in it is
            no quantity.
    """
    uid = stored.get("metadata", {}).get("uid")
    if uid != ref.uid:
        raise ClaimError(f"claim {ref}: found UID {uid}, expected {ref.uid}: it was replaced")
    allocation = (stored.get("status") or {}).get("allocation")
    if not allocation:
        raise ClaimError(f"claim {ref}: found no allocation, expected one by the scheduler")
    devices = allocation.get("devices") or {}
    return AllocatedClaim(
        ref=ref,
        allocations=tuple(
            _allocation(ref, result)
            for result in devices.get("results") or []
            if result.get("driver") == names.DRIVER
        ),
        configs=tuple(
            _config(entry)
            for entry in devices.get("config") or []
            if (entry.get("opaque") or {}).get("driver") == names.DRIVER
        ),
        annotations=stored["metadata"].get("annotations") or {},
        pods=tuple(
            PodRef(namespace=ref.namespace, name=consumer["name"], uid=consumer["uid"])
            for consumer in stored["status"].get("reservedFor") or []
            if consumer.get("resource") == "pods"
        ),
    )


def _config(entry: Mapping[str, Any]) -> OpaqueConfig:
    return OpaqueConfig(
        trusted=entry.get("source") == "FromClass",
        requests=tuple(entry.get("requests") or ()),
        parameters=entry["opaque"].get("parameters"),
    )


def _allocation(ref: ClaimRef, result: Mapping[str, Any]) -> Allocation:
    for key in ("request", "pool", "device"):
        if not isinstance(result.get(key), str):
            raise ClaimError(f"claim {ref}: {key}: found {result.get(key)!r}, expected a name")
    device = result["device"]
    consumed = {
        name: _amount(f"claim {ref}: {device}: {name}", text)
        for name, text in (result.get("consumedCapacity") or {}).items()
    }
    request, _, subrequest = result["request"].partition("/")
    return Allocation(
        request=request,
        subrequest=subrequest or None,
        pool=result["pool"],
        device=device,
        share_id=result.get("shareID"),
        consumed=consumed,
        admin_access=bool(result.get("adminAccess")),
    )


def _amount(subject: str, text: object) -> Quantity:
    try:
        amount = quantity.parse(text)
    except QuantityError as error:
        raise ClaimError(f"{subject}: {error}") from error
    if amount.nano < 0:
        raise ClaimError(f"{subject}: found {amount}, expected 0 or more")
    return amount
