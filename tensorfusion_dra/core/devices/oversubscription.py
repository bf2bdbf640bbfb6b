"""How much more than its cards a pool hands out (Tensor Fusion's GPUPool capacityConfig)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tensorfusion_dra.core.devices.gpu import Gpu, HostResources
from tensorfusion_dra.core.errors import InputError
from tensorfusion_dra.core.kubernetes.quantity import MIB, Quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class Oversubscription:
    """A pool's ratios, in percent as GPUPool has them.

    Attributes:
        tflops_percent: Virtual compute, of the physical; 500 hands out five times the card.
        host_memory_percent: Part of the host's memory that extends the cards' memory.
        host_disk_percent: Part of the host's data disk that extends it.
    """

    tflops_percent: int
    host_memory_percent: int
    host_disk_percent: int

    @property
    def expands_memory(self) -> bool:
        """Whether the cards' memory is extended by the host's."""
        return self.host_memory_percent > 0 or self.host_disk_percent > 0


NO_MORE: Final = Oversubscription(tflops_percent=100, host_memory_percent=0, host_disk_percent=0)
"""Hands out the cards and nothing beyond them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Virtual:
    """The virtual totals of one card."""

    tflops: Quantity
    vram_bytes: int


# (field of Oversubscription, field of GPUPool, default, least, most), from the GPUPool CRD.
_FIELDS: Final = (
    ("tflops_percent", "tflopsOversellRatio", 500, 100, 100_000),
    ("host_memory_percent", "vramExpandToHostMem", 50, 0, 100),
    ("host_disk_percent", "vramExpandToHostDisk", 70, 0, 100),
)


def parse(found: Mapping[str, Any]) -> Oversubscription:
    """The ratios in a GPUPool's spec.capacityConfig.oversubscription; absent ones by default.

    Raises:
        InputError: Names every value that is no whole number in its range, and its range.
    """
    errors: list[str] = []
    values: dict[str, int] = {}
    for field, key, default, least, most in _FIELDS:
        value = found.get(key)
        if value is None:
            value = default
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            errors.append(f"{key}: found {value!r}, expected a whole number {least} to {most}")
        else:
            values[field] = value
    if errors:
        raise InputError("oversubscription: " + "; ".join(errors))
    return Oversubscription(**values)


def usable_vram_bytes(gpu: Gpu) -> int:
    """The memory that containers can allocate, in whole MiB, the step in which it is shared."""
    return (gpu.vram_bytes - gpu.reserved_bytes) // MIB * MIB


def virtual(
    gpus: Iterable[Gpu], ratios: Oversubscription, host: HostResources
) -> Mapping[str, Virtual]:
    """The virtual totals by GPU UUID.

    Host memory and disk are shared among the cards in proportion to their own memory, rounded
    down to whole MiB, so that the parts never add up to more than the whole.
    """
    cards = tuple(gpus)
    own = {gpu.uuid: usable_vram_bytes(gpu) for gpu in cards}
    total = sum(own.values())
    extra = (
        host.memory_bytes * ratios.host_memory_percent // 100
        + host.disk_bytes * ratios.host_disk_percent // 100
    )
    return {
        gpu.uuid: Virtual(
            tflops=Quantity(Quantity.milli(gpu.milli_tflops).nano * ratios.tflops_percent // 100),
            vram_bytes=own[gpu.uuid] + extra * own[gpu.uuid] // total // MIB * MIB,
        )
        for gpu in cards
    }
