"""Cards of a node."""

from dataclasses import replace
from typing import Any

from tensorfusion_dra.core.devices.gpu import Gpu, TflopsSource
from tensorfusion_dra.core.kubernetes.quantity import GIB


def gpu(index: int = 0, **changes: Any) -> Gpu:
    """Return an A100 with 80Gi and 312 TFLOPS; changes set its other attributes."""
    card = Gpu(
        uuid=f"GPU-8f3a0000-0000-4000-8000-{index:012X}",
        index=index,
        minor=index,
        product_name="NVIDIA A100-SXM4-80GB",
        model="A100",
        milli_tflops=312_000,
        tflops_source=TflopsSource.TABLE,
        vram_bytes=80 * GIB,
        brand="NVIDIA",
        architecture="ampere",
        compute_capability=(8, 0),
        driver_version="550.54.15",
        cuda_driver_version=(12, 4),
        pci_bus_id=f"0000:{index + 1:02x}:00.0",
        pcie_root="pci0000:00",
        numa_node=0,
    )
    return replace(card, **changes)


def gpus(count: int) -> tuple[Gpu, ...]:
    """Return this number of equal cards."""
    return tuple(gpu(index) for index in range(count))
