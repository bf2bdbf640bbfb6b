"""Prepared claims with the amounts and limits that tests of the claim's status expect."""

from typing import Any, Final

from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.prepared import Limit, PreparedClaim, PreparedShare
from tensorfusion_dra.core.devices.gpu import Qos
from tensorfusion_dra.core.kubernetes import quantity
from tensorfusion_dra.core.kubernetes.quantity import GIB
from tests.support.builders.prepared_claims import limit, prepared_claim, prepared_share

POOL: Final = "default/node-01"
DEVICE: Final = "gpu-8f3a0000-0000-4000-8000-000000000000"
GPU_UUID: Final = "GPU-8f3a0000-0000-4000-8000-000000000000"
SHARE_ID: Final = "5a5a5a5a-0000-4000-8000-000000000001"


def reported_limit(vram_gib: int) -> Limit:
    """Return a limit of 40% of the card's compute and this much memory."""
    return limit(40, vram_gib)


def reported_share(**changes: Any) -> PreparedShare:
    """Return a share of 100 TFLOPS and 16Gi with limits of 40% and 24Gi.

    Changes set its other attributes.
    """
    given: dict[str, Any] = {
        "pool": POOL,
        "device": DEVICE,
        "gpu_uuid": GPU_UUID,
        "share_id": SHARE_ID,
        "consumed": {"tflops": quantity.parse("100"), "vram": quantity.parse("16Gi")},
        "device_nodes": (),
        "qos": Qos.HIGH,
        "pci_bus_id": "",
        "wanted_vram_bytes": 24 * GIB,
        "limit": reported_limit(24),
    }
    return prepared_share(**{**given, **changes})


def reported_admin_share(request: str = "monitor", **changes: Any) -> PreparedShare:
    """Return admin access to the whole card, in addition to its users."""
    given: dict[str, Any] = {
        "request": request,
        "share_id": None,
        "consumed": {},
        "admin_access": True,
        "wanted_vram_bytes": 0,
        "limit": None,
    }
    return reported_share(**{**given, **changes})


def reported_claim(name: str, *shares: PreparedShare, uid: str = "") -> PreparedClaim:
    """Return a claim in the namespace default with these shares; by default with one."""
    ref = ClaimRef(namespace="default", name=name, uid=uid or f"uid-of-{name}")
    return prepared_claim(
        *(shares or (reported_share(),)), ref=ref, pods=(), enforcer="tensor-fusion"
    )
