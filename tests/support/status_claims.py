"""Prepared claims with a share, for tests of their status."""

from typing import Any, Final

from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.limits import Limit
from tensorfusion_dra.core.claims.prepared import PreparedClaim, PreparedShare
from tensorfusion_dra.core.devices.sharing import Isolation, Qos
from tensorfusion_dra.core.kubernetes import quantity
from tensorfusion_dra.core.kubernetes.quantity import GIB

POOL: Final = "default/node-01"
DEVICE: Final = "gpu-8f3a0000-0000-4000-8000-000000000000"
GPU_UUID: Final = "GPU-8f3a0000-0000-4000-8000-000000000000"
SHARE_ID: Final = "5a5a5a5a-0000-4000-8000-000000000001"


def share(**changes: Any) -> PreparedShare:
    """Return a share of 100 TFLOPS and 16Gi with limits of 40% and 24Gi.

    Changes set its other attributes.
    """
    given: dict[str, Any] = {
        "request": "gpu",
        "pool": POOL,
        "device": DEVICE,
        "gpu_uuid": GPU_UUID,
        "share_id": SHARE_ID,
        "consumed": {"tflops": quantity.parse("100"), "vram": quantity.parse("16Gi")},
        "exclusive": False,
        "admin_access": False,
        "device_nodes": (),
        "isolation": Isolation.SOFT,
        "qos": Qos.HIGH,
        "toolkit_device": None,
        "pci_bus_id": "",
        "wanted_vram_bytes": 24 * GIB,
        "limit": limit(24),
    }
    return PreparedShare(**{**given, **changes})


def limit(vram_gib: int) -> Limit:
    """Return a limit of 40% of the card's compute and this much memory."""
    return Limit(sm_percent=40, vram_bytes=vram_gib * GIB)


def admin(request: str = "monitor", **changes: Any) -> PreparedShare:
    """Return admin access to the whole card, in addition to its users."""
    given: dict[str, Any] = {
        "request": request,
        "share_id": None,
        "consumed": {},
        "admin_access": True,
        "wanted_vram_bytes": 0,
        "limit": None,
    }
    return share(**{**given, **changes})


def claim(name: str, *shares: PreparedShare, uid: str = "") -> PreparedClaim:
    """Return a claim in the namespace default with these shares; by default with one."""
    ref = ClaimRef(namespace="default", name=name, uid=uid or f"uid-of-{name}")
    return PreparedClaim(ref=ref, shares=shares or (share(),), enforcer="tensor-fusion")
