"""Prepared claims: the records, from which CDI specs and answers to the kubelet follow.

Each claim has a limits document as well, which programs on the node read. If the record cannot be
read, that document describes the claim instead.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims.claim import AllocatedClaim, ClaimRef, PodRef
from tensorfusion_dra.core.claims.share_policy import API_VERSION
from tensorfusion_dra.core.devices import capacity
from tensorfusion_dra.core.devices import device as device_facts
from tensorfusion_dra.core.devices.gpu import Isolation, Qos, device_name
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.core.kubernetes import quantity
from tensorfusion_dra.core.kubernetes.quantity import Quantity

LIMITS_KIND: Final = "ClaimLimits"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """The part of one card that a container may use while it runs.

    Attributes:
        sm_percent: Percent of the card's compute, 1 to 100.
        vram_bytes: Device memory, in bytes.
    """

    sm_percent: int
    vram_bytes: int

    def __add__(self, other: "Limit") -> "Limit":
        return Limit(
            sm_percent=self.sm_percent + other.sm_percent,
            vram_bytes=self.vram_bytes + other.vram_bytes,
        )

    def __str__(self) -> str:
        return f"{self.sm_percent}% of compute, {Quantity.of_bytes(self.vram_bytes)} of memory"

    def as_json(self) -> dict[str, int]:
        """Return the limit as JSON, for a record."""
        return {"smPercent": self.sm_percent, "vramBytes": self.vram_bytes}

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> "Limit":
        """Return the limit that as_json() wrote."""
        return cls(sm_percent=kept["smPercent"], vram_bytes=kept["vramBytes"])


NOTHING: Final = Limit(sm_percent=0, vram_bytes=0)
UNDIVIDED: Final = Limit(sm_percent=-1, vram_bytes=-1)
"""In place of a limit that follows from other records, which are being read (lending.divided())."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A host path that is bind-mounted into a container, without devices and setuid programs."""

    host_path: str
    container_path: str
    read_only: bool = True

    def as_cdi(self) -> dict[str, Any]:
        """Return the mount as a CDI spec has it."""
        return {
            "hostPath": self.host_path,
            "containerPath": self.container_path,
            "options": ["ro" if self.read_only else "rw", "nosuid", "nodev", "bind"],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedShare:
    """One claim's part of one device (consumable capacity, KEP-5075).

    Attributes:
        request: The claim's main request that the share serves.
        share_id: Set by the scheduler if the device may be allocated more than once; else None.
        consumed: Amounts by capacity that count against the device: the whole device for an
            exclusive allocation, empty for admin access.
        exclusive: True if the device is allocated to this claim exclusively.
        admin_access: True if the container has the whole card without limits, beside its users.
        device_nodes: Paths on the host; empty for a simulated card.
        isolation: Separation of the container from the card's other tenants.
        qos: Level of service, passed on to the hypervisor.
        toolkit_device: The card's qualified CDI device in the spec of NVIDIA's container toolkit,
            which brings the driver's libraries; None if the node has no such spec.
        pci_bus_id: Determines the order of a container's cards; "" if unknown.
        wanted_vram_bytes: The memory limit that the share wants. It is more than the limit's if
            that was clamped to the card, or to what other tenants left of it.
        wanted_sm_percent: The compute limit that the share wants, in the same way; 0 if none.
        requested_sm_percent: Compute that the scheduler reserved; 0 if none.
        total: What the device's tenants divide, as it was last read.
        granted: The limit that the container's environment has, if it does not follow from the
            other claims (lending.py); else None.
        divides_memory: True if the memory limit follows from the other claims although the compute
            limit does not. `granted` then has the memory of the request.
        idle_compute: True if the container may use compute of its cards beyond the limit while
            their other tenants are idle. It is decided when the container starts.
        limit: What the container may use; None for admin access, in `shared` isolation, and where
            an administrator turned the limiter off. Computed, so it is not recorded.
    """

    request: str
    pool: str
    device: str
    gpu_uuid: str
    share_id: str | None
    consumed: Mapping[str, Quantity]
    exclusive: bool
    admin_access: bool
    device_nodes: tuple[str, ...]
    isolation: Isolation
    qos: Qos
    toolkit_device: str | None
    pci_bus_id: str
    wanted_vram_bytes: int
    limit: Limit | None
    wanted_sm_percent: int = 0
    requested_sm_percent: int = 0
    total: Limit = NOTHING
    granted: Limit | None = None
    divides_memory: bool = False
    idle_compute: bool = False

    @property
    def reserved(self) -> Limit:
        """Amounts that the scheduler reserved; no limit is ever lower."""
        vram_bytes = 0
        if self.consumed:
            vram_bytes = capacity.consumed_amount(self.consumed, names.CAPACITY_VRAM).ceil()
        return Limit(sm_percent=self.requested_sm_percent, vram_bytes=vram_bytes)

    @property
    def wanted(self) -> Limit:
        """The limit that the share wants."""
        return Limit(sm_percent=self.wanted_sm_percent, vram_bytes=self.wanted_vram_bytes)

    @property
    def memory_clamped(self) -> bool:
        """True if the memory limit is smaller than the wanted one."""
        return self.limit is not None and self.limit.vram_bytes < self.wanted_vram_bytes

    @property
    def compute_clamped(self) -> bool:
        """True if the compute limit is smaller than the wanted one."""
        return self.limit is not None and self.limit.sm_percent < self.wanted_sm_percent

    @property
    def clamped(self) -> bool:
        """True if the memory or the compute limit is smaller than the wanted one."""
        return self.memory_clamped or self.compute_clamped

    def as_json(self) -> dict[str, Any]:
        """Return the share as JSON, for its record."""
        return {
            "request": self.request,
            "pool": self.pool,
            "device": self.device,
            "gpuUUID": self.gpu_uuid,
            "shareID": self.share_id,
            "consumed": quantity.texts(self.consumed),
            "exclusive": self.exclusive,
            "adminAccess": self.admin_access,
            "deviceNodes": list(self.device_nodes),
            "isolation": self.isolation.value,
            "qos": self.qos.value,
            "toolkitDevice": self.toolkit_device,
            "pciBusID": self.pci_bus_id,
            "wantedVramBytes": self.wanted_vram_bytes,
            "wantedSmPercent": self.wanted_sm_percent,
            "requestSmPercent": self.requested_sm_percent,
            "total": self.total.as_json(),
            "limited": self.limit is not None,
            "granted": None if self.granted is None else self.granted.as_json(),
            # Left out if False: records of containers from before these were known have neither.
            **({"dividesMemory": True} if self.divides_memory else {}),
            **({"idleCompute": True} if self.idle_compute else {}),
        }

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> "PreparedShare":
        """Return the share that as_json() wrote; a limit that is to be computed is UNDIVIDED."""
        granted = None if kept["granted"] is None else Limit.from_json(kept["granted"])
        divides_memory = kept.get("dividesMemory", False)
        fixed = None if divides_memory else granted
        return cls(
            request=kept["request"],
            pool=kept["pool"],
            device=kept["device"],
            gpu_uuid=kept["gpuUUID"],
            share_id=kept["shareID"],
            consumed={name: quantity.parse(text) for name, text in kept["consumed"].items()},
            exclusive=kept["exclusive"],
            admin_access=kept["adminAccess"],
            device_nodes=tuple(kept["deviceNodes"]),
            isolation=Isolation(kept["isolation"]),
            qos=Qos(kept["qos"]),
            toolkit_device=kept["toolkitDevice"],
            pci_bus_id=kept["pciBusID"],
            wanted_vram_bytes=kept["wantedVramBytes"],
            limit=(fixed or UNDIVIDED) if kept["limited"] else None,
            wanted_sm_percent=kept["wantedSmPercent"],
            requested_sm_percent=kept["requestSmPercent"],
            total=Limit.from_json(kept["total"]),
            granted=granted,
            divides_memory=divides_memory,
            idle_compute=kept.get("idleCompute", False),
        )


def by_uuid(shares: Iterable[PreparedShare]) -> Mapping[str, Limit]:
    """Return the limits by GPU UUID; several shares of one card add up to at most the card.

    Shares without a limit are skipped.
    """
    merged: dict[str, Limit] = {}
    for share in shares:
        if share.limit is not None:
            known = merged.get(share.gpu_uuid)
            merged[share.gpu_uuid] = known + share.limit if known else share.limit
    return {
        uuid: Limit(sm_percent=min(100, limit.sm_percent), vram_bytes=limit.vram_bytes)
        for uuid, limit in merged.items()
    }


def kinds_by_card(claims: Iterable["PreparedClaim"]) -> Mapping[str, bool]:
    """Return by GPU UUID whether the shares of a card consume virtual amounts.

    One that does is enough: where both kinds are, the node counts physical amounts as virtual ones.
    """
    found: dict[str, bool] = {}
    for share in (each for claim in claims for each in claim.shares if each.consumed):
        is_virtual = capacity.is_virtual(share.consumed)
        found[share.gpu_uuid] = found.get(share.gpu_uuid, False) or is_virtual
    return found


Attributes = Mapping[str, Any]
"""A device's attributes as its ResourceSlice lists them: ``{"model": {"string": "A100"}}``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMetadata:
    """Facts that the containers of a claim may know of its devices.

    Attributes:
        attributes: By device name.
        subrequests: By main request, the subrequest that a prioritized list chose.
        pod_claim_name: Name of the claim in the pod's spec, if the claim was made of a template;
            else "".
        generation: Increases with every change.
    """

    attributes: Mapping[str, Attributes]
    subrequests: Mapping[str, str] = field(default_factory=dict)
    pod_claim_name: str = ""
    generation: int = 1

    def as_json(self) -> dict[str, Any]:
        """Return the metadata as JSON, for the store."""
        return {
            "attributes": dict(self.attributes),
            "subrequests": dict(self.subrequests),
            "podClaimName": self.pod_claim_name,
            "generation": self.generation,
        }

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> "DeviceMetadata":
        """Return the metadata that as_json() wrote."""
        return cls(
            attributes=kept["attributes"],
            subrequests=kept["subrequests"],
            pod_claim_name=kept["podClaimName"],
            generation=kept["generation"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedClaim:
    """A claim that this node has prepared.

    Attributes:
        sequence: Increases with every claim on the same cards; the lowest one borrows first.
        pods: Pods that the claim was reserved for when it was prepared.
        common_nodes: Device nodes that every container with a card needs, such as
            /dev/nvidiactl; paths on the host.
        driver_mounts: Driver libraries; empty where NVIDIA's container toolkit mounts them.
        enforcer: Name of the enforcer of its limits.
        boot_id: ID of the last boot in which these device nodes and mounts were right. In another
            boot they may belong to another card.
        metadata: What its containers may read of its devices; None if they get no such files.
    """

    ref: ClaimRef
    shares: tuple[PreparedShare, ...]
    sequence: int = 0
    pods: tuple[PodRef, ...] = ()
    common_nodes: tuple[str, ...] = ()
    driver_mounts: tuple[Mount, ...] = ()
    enforcer: str = ""
    boot_id: str = ""
    metadata: DeviceMetadata | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the claim as JSON, for its record."""
        kept = {
            "namespace": self.ref.namespace,
            "name": self.ref.name,
            "uid": self.ref.uid,
            "shares": [share.as_json() for share in self.shares],
            "sequence": self.sequence,
            "pods": [
                {"namespace": pod.namespace, "name": pod.name, "uid": pod.uid} for pod in self.pods
            ],
            "commonNodes": list(self.common_nodes),
            "driverMounts": [asdict(mount) for mount in self.driver_mounts],
            "enforcer": self.enforcer,
            "bootID": self.boot_id,
        }
        if self.metadata is not None:
            kept["metadata"] = self.metadata.as_json()
        return kept

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> "PreparedClaim":
        """Return the claim that as_json() wrote."""
        return cls(
            ref=ClaimRef(namespace=kept["namespace"], name=kept["name"], uid=kept["uid"]),
            shares=tuple(PreparedShare.from_json(share) for share in kept["shares"]),
            sequence=kept["sequence"],
            pods=tuple(PodRef(**pod) for pod in kept["pods"]),
            common_nodes=tuple(kept["commonNodes"]),
            driver_mounts=tuple(Mount(**mount) for mount in kept["driverMounts"]),
            enforcer=kept["enforcer"],
            boot_id=kept["bootID"],
            metadata=DeviceMetadata.from_json(kept["metadata"]) if "metadata" in kept else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CardAccess:
    """Access to one card; empty for a simulated card.

    Attributes:
        device_nodes: Paths on the host.
        toolkit_device: The card's qualified CDI device in the spec of NVIDIA's container toolkit;
            None if the node has no such spec.
    """

    device_nodes: tuple[str, ...] = ()
    toolkit_device: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedAccess:
    """Access that a container needs once, however many cards it has.

    Attributes:
        device_nodes: Paths on the host, such as /dev/nvidiactl.
        driver_mounts: Driver libraries; empty where NVIDIA's container toolkit mounts them.
    """

    device_nodes: tuple[str, ...] = ()
    driver_mounts: tuple[Mount, ...] = ()


Json = Mapping[str, Any]


def describes(record: PreparedClaim, claim: AllocatedClaim) -> bool:
    """Return True if a record describes the claim's present allocation.

    The scheduler generates a new ID for every share, so equal share IDs mean the same allocation.
    An exclusive allocation has no share ID, and a claim can get the same device twice. Then the
    pods decide: a claim is deallocated only when no pod is left in reservedFor, so a recorded pod
    that is still there proves that the allocation is the same.
    """
    recorded = Counter(
        (s.request, s.pool, s.device, s.share_id, s.admin_access) for s in record.shares
    )
    allocated = Counter(
        (a.request, a.pool, a.device, a.share_id, a.admin_access) for a in claim.allocations
    )
    if recorded != allocated:
        return False
    if all(share.share_id is not None for share in record.shares):
        return True
    return record.pods == claim.pods or bool({*record.pods} & {*claim.pods})


def reason_gone(recorded: PreparedClaim | ClaimRef, stored: Json) -> str:
    """Return why the claim has no device of this node any more; "" if it has one.

    Args:
        recorded: The record; or the reference, if nothing but the claim's existence is known.
            Then a device of this driver on any node counts.
        stored: The ResourceClaim with its namespace and name.

    Raises:
        RetryableError: `stored` is not a ResourceClaim.
    """
    ref = recorded.ref if isinstance(recorded, PreparedClaim) else recorded
    try:
        uid = (stored.get("metadata") or {}).get("uid")
        allocation = (stored.get("status") or {}).get("allocation") or {}
        results = (allocation.get("devices") or {}).get("results") or []
        pools = {str(each.get("pool")) for each in results if each.get("driver") == names.DRIVER}
    except (TypeError, AttributeError) as error:
        text = f"claim {ref}: found a malformed ResourceClaim: {error!r}"
        raise RetryableError(text[:500]) from error
    if not isinstance(uid, str):
        raise RetryableError(f"claim {ref}: found an answer without a UID")
    if uid != ref.uid:
        return f"replaced by UID {uid}"
    if not allocation:
        return "not allocated"
    if not pools:
        return "allocated without a device of this driver"
    if isinstance(recorded, PreparedClaim):
        here = {device_facts.node_name(share.pool) for share in recorded.shares}
        if not here & {device_facts.node_name(pool) for pool in pools}:
            return f"allocated from {', '.join(sorted(pools))}, not on this node"
    return ""


def refreshed(
    claim: PreparedClaim, cards: Mapping[str, CardAccess], shared: SharedAccess, *, boot_id: str
) -> PreparedClaim:
    """Return the claim with the access of this boot: minor numbers may change at a reboot.

    Args:
        claim: The recorded claim.
        cards: Access by device name. A share whose device is missing keeps its recorded access.
        shared: Used only if some share has device nodes.
        boot_id: ID of this boot. The claim gets it only if `cards` covers all its shares.
    """
    shares = tuple(
        replace(
            share,
            device_nodes=cards[share.device].device_nodes,
            toolkit_device=cards[share.device].toolkit_device,
        )
        if share.device in cards
        else share
        for share in claim.shares
    )
    if not any(share.device_nodes for share in shares):
        shared = SharedAccess()
    return replace(
        claim,
        shares=shares,
        common_nodes=shared.device_nodes,
        driver_mounts=shared.driver_mounts,
        boot_id=boot_id if cards.keys() >= {s.device for s in shares} else claim.boot_id,
    )


def limits_document(claim: PreparedClaim) -> dict[str, Any]:
    """Return the claim's document.

    The document is rewritten whenever a limit changes, and removed with the claim.
    """
    return {
        "apiVersion": API_VERSION,
        "kind": LIMITS_KIND,
        "claim": {
            "namespace": claim.ref.namespace,
            "name": claim.ref.name,
            "uid": claim.ref.uid,
        },
        "pods": [{"name": pod.name, "uid": pod.uid} for pod in claim.pods],
        "enforcer": claim.enforcer,
        "gpus": {uuid: limit.as_json() for uuid, limit in by_uuid(claim.shares).items()},
        "shares": [
            {
                "gpuUUID": share.gpu_uuid,
                "request": share.request,
                "shareID": share.share_id,
                "adminAccess": share.admin_access,
                "isolation": share.isolation.value,
                "qos": share.qos.value,
                "consumed": quantity.texts(share.consumed),
            }
            | (
                {"limits": share.limit.as_json() | {"clamped": share.clamped}}
                if share.limit
                else {}
            )
            for share in claim.shares
        ],
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Remains:
    """A claim whose record cannot be read, as its limits document describes it.

    Attributes:
        devices: Those of its shares.
        enforcer: The claim's.
        limits: By device and share ID.
    """

    ref: ClaimRef
    devices: frozenset[str]
    enforcer: str
    limits: Mapping[tuple[str, str | None], Limit]


def remains(found: object) -> Remains | None:
    """Return the claim of a limits document; None if the value is not such a document."""
    try:
        document: Any = found
        named, shares = document["claim"], document["shares"]
        texts = [named["namespace"], named["name"], named["uid"], document["enforcer"]]
        by_share = {
            (device_name(share["gpuUUID"]), share["shareID"]): share.get("limits")
            for share in shares
        }
        given = {key: Limit.from_json(limit) for key, limit in by_share.items() if limit}
    except (KeyError, TypeError, AttributeError):
        return None
    if not all(isinstance(each, str) for each in texts) or not all(texts[:3]):
        return None
    namespace, name, uid, enforcer = texts
    return Remains(
        ref=ClaimRef(namespace=namespace, name=name, uid=uid),
        devices=frozenset(device for device, _ in by_share),
        enforcer=enforcer,
        limits=given,
    )
