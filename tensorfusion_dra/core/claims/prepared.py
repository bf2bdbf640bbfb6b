"""A prepared claim: the ledger's record, from which its CDI spec and its answer follow."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims.claim import ClaimRef, PodRef
from tensorfusion_dra.core.claims.limits import Limit
from tensorfusion_dra.core.claims.mounts import Mount
from tensorfusion_dra.core.devices import capacity
from tensorfusion_dra.core.devices.sharing import Isolation, Qos
from tensorfusion_dra.core.kubernetes import quantity
from tensorfusion_dra.core.kubernetes.quantity import Quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedShare:
    """One claim's part of one device (consumable capacity, KEP-5075).

    Attributes:
        request: The claim's main request that it serves.
        share_id: Set by the scheduler if the device may be allocated more than once; else None.
        consumed: Amount by capacity that counts against the device: all of it if the device is
            given alone, nothing for admin access.
        exclusive: The device is given alone.
        admin_access: The container sees the whole card, without limits.
        device_nodes: Paths on the host; none for a simulated card.
        isolation: How the container is kept apart from the card's other tenants.
        qos: The level of service that the hypervisor is told.
        toolkit_device: The card's qualified CDI device in the spec of NVIDIA's container toolkit,
            which brings the driver's libraries; None if the node has none.
        pci_bus_id: Orders the cards of a container; "" if unknown.
        wanted_vram_bytes: The memory limit that was asked for; more than the limit's if that was
            clamped to the card, or to what other tenants left of it.
        wanted_sm_percent: The compute limit that was asked for, as wanted_vram_bytes; 0 if none.
        limit: What the container may use; None for admin access, for a card that is shared
            without limits, and where an administrator turned the limiter off.
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

    @property
    def vram_request_bytes(self) -> int:
        """What the scheduler reserved; no limit ever goes below it."""
        if not self.consumed:
            return 0
        return capacity.taken(self.consumed, names.CAPACITY_VRAM).ceil()

    @property
    def memory_clamped(self) -> bool:
        """The memory limit is smaller than what was asked for."""
        return self.limit is not None and self.limit.vram_bytes < self.wanted_vram_bytes

    @property
    def compute_clamped(self) -> bool:
        """The compute limit is smaller than what was asked for."""
        return self.limit is not None and self.limit.sm_percent < self.wanted_sm_percent

    @property
    def clamped(self) -> bool:
        """One of the limits is smaller than what was asked for."""
        return self.memory_clamped or self.compute_clamped

    def as_json(self) -> dict[str, Any]:
        """The share as the ledger keeps it."""
        return {
            "request": self.request,
            "pool": self.pool,
            "device": self.device,
            "gpuUUID": self.gpu_uuid,
            "shareID": self.share_id,
            "consumed": {name: str(amount) for name, amount in self.consumed.items()},
            "exclusive": self.exclusive,
            "adminAccess": self.admin_access,
            "deviceNodes": list(self.device_nodes),
            "isolation": self.isolation.value,
            "qos": self.qos.value,
            "toolkitDevice": self.toolkit_device,
            "pciBusID": self.pci_bus_id,
            "wantedVramBytes": self.wanted_vram_bytes,
            "wantedSmPercent": self.wanted_sm_percent,
            "limit": None if self.limit is None else self.limit.as_json(),
        }

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> "PreparedShare":
        """The share that as_json wrote."""
        limit = None if kept["limit"] is None else Limit.from_json(kept["limit"])
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
            limit=limit,
            # Before compute was divided as memory is, every share got what it asked for.
            wanted_sm_percent=kept.get("wantedSmPercent", limit.sm_percent if limit else 0),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedClaim:
    """A claim that this node has prepared.

    Attributes:
        sequence: Grows with every claim on the same cards: who came first is served first.
        pods: Those that the claim was reserved for when it was prepared.
        common_nodes: Device nodes that every container with a card needs, such as
            /dev/nvidiactl; paths on the host.
        driver_mounts: Libraries of the driver, where no toolkit brings them.
        enforcer: The name of what enforces its limits.
        boot_id: The boot in which device nodes and mounts were last as they are here; in another
            one they may be another card's.
    """

    ref: ClaimRef
    shares: tuple[PreparedShare, ...]
    sequence: int = 0
    pods: tuple[PodRef, ...] = ()
    common_nodes: tuple[str, ...] = ()
    driver_mounts: tuple[Mount, ...] = ()
    enforcer: str = ""
    boot_id: str = ""

    def as_json(self) -> dict[str, Any]:
        """The claim as the ledger keeps it."""
        return {
            "namespace": self.ref.namespace,
            "name": self.ref.name,
            "uid": self.ref.uid,
            "shares": [share.as_json() for share in self.shares],
            "sequence": self.sequence,
            "pods": [asdict(pod) for pod in self.pods],
            "commonNodes": list(self.common_nodes),
            "driverMounts": [asdict(mount) for mount in self.driver_mounts],
            "enforcer": self.enforcer,
            "bootID": self.boot_id,
        }

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> "PreparedClaim":
        """The claim that as_json wrote."""
        return cls(
            ref=ClaimRef(namespace=kept["namespace"], name=kept["name"], uid=kept["uid"]),
            shares=tuple(PreparedShare.from_json(share) for share in kept["shares"]),
            sequence=kept["sequence"],
            pods=tuple(PodRef(**pod) for pod in kept["pods"]),
            common_nodes=tuple(kept["commonNodes"]),
            driver_mounts=tuple(Mount(**mount) for mount in kept["driverMounts"]),
            enforcer=kept["enforcer"],
            # Records of ledger version 1 have none.
            boot_id=kept.get("bootID", ""),
        )
