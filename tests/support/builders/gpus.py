"""Cards of a node."""

from typing import Any

from tensorfusion_dra import testing
from tensorfusion_dra.core.devices.gpu import Gpu


def gpu(index: int = 0, **changes: Any) -> Gpu:
    """Return an A100 with 80Gi and 312 TFLOPS; changes set its other attributes."""
    given = {
        "uuid": f"GPU-8f3a0000-0000-4000-8000-{index:012X}",
        "driver_version": "550.54.15",
        "cuda_driver_version": (12, 4),
    }
    return testing.gpu(index, **{**given, **changes})


def gpus(count: int) -> tuple[Gpu, ...]:
    """Return this number of equal cards."""
    return tuple(gpu(index) for index in range(count))
