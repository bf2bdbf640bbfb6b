"""Allocated claims: the scheduler's results, read from a ResourceClaim."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.errors import ClaimError
from tensorfusion_dra.core.kubernetes import name_rules, quantity
from tensorfusion_dra.core.kubernetes.field_errors import FieldError
from tensorfusion_dra.core.kubernetes.quantity import Quantity, QuantityError

# These become parts of file names, paths at the API server and names of CDI devices.
_UID: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?")

_MAX_SHOWN: Final = 320
"""Length of a claim's ``namespace/name`` from which an error shows a question mark instead."""
_MAX_TEXT: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectRef:
    """Reference to an object at the API server."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class ClaimRef(ObjectRef):
    """Reference to a claim, as in the kubelet's calls."""

    __slots__ = ()


class PodRef(ObjectRef):
    """Reference to a pod that a claim is reserved for."""

    __slots__ = ()

    def as_reference(self) -> dict[str, str]:
        """Return the pod as an Event refers to it."""
        named = {"namespace": self.namespace, "name": self.name, "uid": self.uid}
        return {"apiVersion": "v1", "kind": "Pod", **named}


@dataclass(frozen=True, slots=True, kw_only=True)
class OpaqueConfig:
    """Opaque parameters for this driver, copied by the scheduler from a class or the claim.

    Attributes:
        trusted: True if they come from a DeviceClass, which an administrator writes.
        requests: Requests or subrequests to which they apply; empty for all.
        parameters: The JSON value.
    """

    trusted: bool
    requests: tuple[str, ...]
    parameters: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """One result of the scheduler: a device, or a share of it, for one request of the claim.

    Attributes:
        request: The claim's main request. The kubelet and containers do not know the subrequest
            that a prioritized list chose.
        subrequest: Subrequest that the prioritized list chose; None for a request without a list.
        share_id: Set if the device may be allocated to several claims; without it the device is
            allocated exclusively.
        consumed: Amounts by capacity; empty for an exclusive allocation and for admin access.
        admin_access: Access to the device in addition to its users; consumes nothing.
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
    """A claim and its allocations of this driver's devices; other drivers' results are left out.

    Attributes:
        configs: In order of precedence, the lowest first: the class's, then the claim's.
        pods: Pods that the claim is reserved for.
        group: What else it is reserved for, such as a PodGroup (KEP-5729), whose pods the claim
            does not name; "" for nothing.
    """

    ref: ClaimRef
    allocations: tuple[Allocation, ...]
    configs: tuple[OpaqueConfig, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    pods: tuple[PodRef, ...] = ()
    group: str = ""


def is_uid(text: str) -> bool:
    """Return True if the text can be a claim's UID and part of a file name."""
    return _UID.fullmatch(text) is not None


def check_ref(ref: ClaimRef) -> None:
    """Check that all of a reference is safe in file names and in API paths.

    Raises:
        ClaimError: UID, namespace or name is not one that the API server would have accepted.
    """
    if not is_uid(ref.uid):
        raise ClaimError(
            f"claim {_shown(ref)}: UID {ref.uid[:80]!r}, expected letters, digits and dashes, "
            f"at most 63"
        )
    _check_name(ref, "namespace", ref.namespace, name_rules.label)
    _check_name(ref, "name", ref.name, name_rules.subdomain)


def _check_name(
    ref: ClaimRef, what: str, name: object, rule: Callable[[str, object], Iterator[FieldError]]
) -> None:
    if any(rule(what, name)):
        raise ClaimError(
            f"claim {_shown(ref)}: {what}: found {str(name)[:80]!a}, expected a Kubernetes name"
        )


def _shown(ref: ClaimRef) -> str:
    return str(ref) if str(ref).isprintable() and len(str(ref)) < _MAX_SHOWN else "?"


def allocated(ref: ClaimRef, stored: Mapping[str, Any]) -> AllocatedClaim:
    """Read the allocation of a stored ResourceClaim.

    Raises:
        ClaimError: It is another claim with the same name, it has no allocation, an amount in it
            is not a quantity, or the object is not a ResourceClaim.
    """
    try:
        uid = stored.get("metadata", {}).get("uid")
        if uid != ref.uid:
            raise ClaimError(f"claim {ref}: found UID {uid}, expected {ref.uid}: it was replaced")
        allocation = (stored.get("status") or {}).get("allocation")
        if not allocation:
            raise ClaimError(f"claim {ref}: found no allocation, expected one by the scheduler")
        devices = allocation.get("devices") or {}
        pods, groups = [], []
        for consumer in stored["status"].get("reservedFor") or []:
            if consumer.get("resource") == "pods" and not consumer.get("apiGroup"):
                name, uid = consumer["name"], str(consumer["uid"])
                # Both become parts of paths.
                _check_name(ref, "reservedFor", name, name_rules.subdomain)
                if not is_uid(uid):
                    raise ClaimError(
                        f"claim {ref}: reservedFor: UID {uid[:80]!r}, expected letters, digits "
                        "and dashes, at most 63"
                    )
                pods.append(PodRef(namespace=ref.namespace, name=name, uid=uid))
            else:
                groups.append(f"{consumer['resource']}/{consumer['name']}")
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
            annotations={
                key: _text(value)
                for key, value in (stored["metadata"].get("annotations") or {}).items()
            },
            pods=tuple(pods),
            group=", ".join(groups)[:_MAX_SHOWN],
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ClaimError(
            f"claim {ref}: found a malformed ResourceClaim: {error!r}"[:_MAX_TEXT]
        ) from error


def _config(entry: Mapping[str, Any]) -> OpaqueConfig:
    return OpaqueConfig(
        trusted=entry.get("source") == "FromClass",
        requests=tuple(_text(request) for request in entry.get("requests") or ()),
        parameters=entry["opaque"].get("parameters"),
    )


def _allocation(ref: ClaimRef, result: Mapping[str, Any]) -> Allocation:
    for key in ("request", "pool", "device"):
        if not isinstance(result.get(key), str):
            raise ClaimError(f"claim {ref}: {key}: found {result.get(key)!r}, expected a name")
    device = result["device"]
    consumed = {}
    for name, text in (result.get("consumedCapacity") or {}).items():
        try:
            consumed[name] = quantity.parse(text)
        except QuantityError as error:
            raise ClaimError(f"claim {ref}: {device}: {name}: {error}") from error
        if consumed[name].nano < 0:
            raise ClaimError(
                f"claim {ref}: {device}: {name}: found {consumed[name]}, expected 0 or more"
            )
    request, _, subrequest = result["request"].partition("/")
    # Request and share ID become part of the names of CDI devices and variables.
    _check_name(ref, "request", request, name_rules.label)
    share_id = result.get("shareID")
    if share_id is not None and (not isinstance(share_id, str) or not _UID.fullmatch(share_id)):
        raise ClaimError(f"claim {ref}: shareID: found {str(share_id)[:80]!r}, expected a UID")
    return Allocation(
        request=request,
        subrequest=subrequest or None,
        pool=result["pool"],
        device=device,
        share_id=share_id,
        consumed=consumed,
        admin_access=bool(result.get("adminAccess")),
    )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"found {value!r}, expected text")
    return value
