"""Cards of a node."""

from typing import Any

from tensorfusion_dra import testing
from tensorfusion_dra.core.devices.gpu import Gpu
from tensorfusion_dra.core.kubernetes.quantity import MIB


def gpu(index: int = 0, **changes: Any) -> Gpu:
    """Return an A100 with 80Gi and 312 TFLOPS; changes set its other attributes."""
    given = {
        "uuid": f"GPU-8f3a0000-0000-4000-8000-{index:012X}",
        "driver_version": "550.54.15",
        "cuda_driver_version": (12, 4),
    }
    return testing.gpu(index, **{**given, **changes})


def partition(number: int = 0, card: int = 0, **changes: Any) -> Gpu:
    """Return a partition of a card, a seventh of its compute; changes set its other attributes."""
    given = {
        "uuid": f"MIG-{number:08x}-0000-4000-8000-{card:012x}",
        "partition": "1g.10gb",
        "parent_uuid": gpu(card).uuid,
        "vram_bytes": 9728 * MIB,
        "milli_tflops": 40_444,
        "gpu_instance": 7 + number,
        "capability_minors": (66 + 9 * number, 67 + 9 * number),
    }
    return gpu(card, **{**given, **changes})


def gpus(count: int) -> tuple[Gpu, ...]:
    """Return this number of equal cards."""
    return tuple(gpu(index) for index in range(count))
