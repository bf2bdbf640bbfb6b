"""Records of prepared claims, built without a node or a scheduler."""

from typing import Any, Final

from tensorfusion_dra.core.claims.claim import ClaimRef, PodRef
from tensorfusion_dra.core.claims.prepared import Limit, PreparedClaim, PreparedShare
from tensorfusion_dra.core.devices.gpu import Isolation, Qos
from tensorfusion_dra.core.kubernetes import quantity
from tensorfusion_dra.core.kubernetes.quantity import GIB

POD: Final = PodRef(namespace="team-a", name="trainer-0", uid="pod-uid-0")


def limit(percent: int, vram_gib: int) -> Limit:
    """Return a limit in percent of compute and whole GiB."""
    return Limit(sm_percent=percent, vram_bytes=vram_gib * GIB)


def prepared_share(card: int = 0, limit: Limit | None = None, **changes: Any) -> PreparedShare:
    """Return a share of the node's nth card by PCI bus ID, with soft isolation and request gpu."""
    given: dict[str, Any] = {
        "request": "gpu",
        "pool": "default/node-01",
        "device": f"gpu-{card}",
        "gpu_uuid": f"GPU-{card}",
        "share_id": None,
        "consumed": {"tflops": quantity.parse("100"), "vram": quantity.parse("8Gi")},
        "exclusive": False,
        "admin_access": False,
        "device_nodes": (f"/dev/nvidia{card}",),
        "isolation": Isolation.SOFT,
        "qos": Qos.MEDIUM,
        "toolkit_device": None,
        "pci_bus_id": f"0000:{card + 1:02x}:00.0",
        "wanted_vram_bytes": 0 if limit is None else limit.vram_bytes,
        "limit": limit,
    }
    return PreparedShare(**{**given, **changes})


def simulated_share(card: int = 0, limit: Limit | None = None, **changes: Any) -> PreparedShare:
    """Return a share of a simulated card, which has no device nodes."""
    return prepared_share(card, limit, device_nodes=(), **changes)


def admin_share(card: int = 0, request: str = "monitor") -> PreparedShare:
    """Return an administrator's access to a whole card."""
    return prepared_share(card, request=request, admin_access=True, consumed={})


def prepared_claim(*shares: PreparedShare, **changes: Any) -> PreparedClaim:
    """Return a claim of a pod in the namespace team-a with these shares.

    Changes set its other attributes.
    """
    ref = ClaimRef(namespace="team-a", name="a", uid="uid-a")
    return PreparedClaim(**{"ref": ref, "shares": shares, "pods": (POD,), **changes})
