"""Allocations: the scheduler's results, as the driver reads them from a claim."""

from typing import Any

from tensorfusion_dra.core.claims.claim import Allocation
from tensorfusion_dra.core.kubernetes import quantity
from tests.support.builders.devices import NODE


def share_id(number: int) -> str:
    """Return a share ID in the scheduler's form: a lower-case UUID."""
    return f"5a5a5a5a-0000-4000-8000-{number:012x}"


def allocation(
    device: str, number: int, *, tflops: str = "100", vram: str = "16Gi", **changes: Any
) -> Allocation:
    """Return a share of a device. The number sets its share ID, changes set other attributes."""
    amounts = {"tflops": quantity.parse(tflops), "vram": quantity.parse(vram)}
    given: dict[str, Any] = {
        "request": "gpu",
        "pool": NODE.pool,
        "share_id": share_id(number),
        "consumed": amounts,
    }
    return Allocation(device=device, **{**given, **changes})


def exclusive_allocation(
    device: str, *, request: str = "gpu", admin_access: bool = False
) -> Allocation:
    """Return a device without a share: allocated exclusively, or for admin access."""
    return Allocation(
        request=request, pool=NODE.pool, device=device, consumed={}, admin_access=admin_access
    )
