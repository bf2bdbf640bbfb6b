"""Claims inside the driver: allocated by the scheduler, prepared by the node.

As the API server stores them, they are in tests.support.stored_claims.
"""

from typing import Any, Final

from tensorfusion_dra.core import admission, quantity
from tensorfusion_dra.core.admission import HeldShare, Local
from tensorfusion_dra.core.claim import AllocatedClaim, Allocation, ClaimRef
from tensorfusion_dra.core.gpu import Gpu
from tensorfusion_dra.core.prepared import PreparedClaim
from tests.support.gpus import NODE, published

COMMON_NODES: Final = ("/dev/nvidiactl", "/dev/nvidia-uvm")


def ref(name: str) -> ClaimRef:
    """A claim in the namespace default."""
    return ClaimRef(namespace="default", name=name, uid=f"uid-{name}")


def share_id(number: int) -> str:
    """A share ID as the scheduler makes them: a lower-case UUID."""
    return f"5a5a5a5a-0000-4000-8000-{number:012x}"


def share(
    device: str, number: int, *, tflops: str = "100", vram: str = "16Gi", **changes: Any
) -> Allocation:
    """A share of a device; the number makes its share ID, changes name its other attributes."""
    amounts = {"tflops": quantity.parse(tflops), "vram": quantity.parse(vram)}
    given: dict[str, Any] = {
        "request": "gpu",
        "pool": NODE.pool,
        "share_id": share_id(number),
        "consumed": amounts,
    }
    return Allocation(device=device, **{**given, **changes})


def alone(device: str, *, request: str = "gpu", admin_access: bool = False) -> Allocation:
    """A device without a share: given alone, or for admin access beside its users."""
    return Allocation(
        request=request, pool=NODE.pool, device=device, consumed={}, admin_access=admin_access
    )


def allocated(name: str, *allocations: Allocation) -> AllocatedClaim:
    """A claim with these results of the scheduler."""
    return AllocatedClaim(ref=ref(name), allocations=allocations)


def local(*gpus: Gpu) -> Local:
    """A node with these cards; a card without a minor number is a simulated one."""
    devices = {device.name: device for device in published(*gpus)}
    return Local(
        pool=NODE.pool,
        devices=devices,
        device_nodes={
            name: () if device.gpu.minor is None else (f"/dev/nvidia{device.gpu.minor}",)
            for name, device in devices.items()
        },
        common_nodes=COMMON_NODES,
    )


def prepared(name: str, *allocations: Allocation, on: Local) -> PreparedClaim:
    """The record of such a claim on a node that holds nothing else."""
    return admission.admit(allocated(name, *allocations), on, [])


def held(*claims: PreparedClaim) -> list[HeldShare]:
    """The shares of these claims, as the ledger returns them."""
    return [HeldShare(claim=claim.ref, share=share) for claim in claims for share in claim.shares]
