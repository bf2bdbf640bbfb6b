"""Oversubscription: what a pool offers beyond its cards (Tensor Fusion's GPUPool capacityConfig).

Compute is multiplied by a ratio. Memory is extended by a part of the host's memory and disk, which
the node's cards divide in proportion to their own memory.

Example: cards with 16Gi and 48Gi, on a host with 64Gi of memory at 50 % and a disk of 320Gi at
10 %. The host adds 32Gi + 32Gi = 64Gi, of which the cards get 16Gi and 48Gi. Their virtual memory
is 32Gi and 96Gi.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from tensorfusion_dra.core.devices.gpu import Gpu, HostResources
from tensorfusion_dra.core.kubernetes.quantity import MIB, Quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class Oversubscription:
    """A pool's ratios, in percent as in the GPUPool.

    Attributes:
        tflops_percent: Virtual compute in relation to physical; 500 hands out five times the card.
        host_memory_percent: Part of the host's memory that extends the cards' memory.
        host_disk_percent: Part of the host's data disk that extends the cards' memory.
    """

    tflops_percent: int
    host_memory_percent: int
    host_disk_percent: int

    @property
    def expands_memory(self) -> bool:
        """True if the host's memory or disk extends the cards' memory."""
        return self.host_memory_percent > 0 or self.host_disk_percent > 0


NO_MORE: Final = Oversubscription(tflops_percent=100, host_memory_percent=0, host_disk_percent=0)
"""Ratios that hand out the cards and nothing beyond them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Virtual:
    """The virtual totals of one card."""

    tflops: Quantity
    vram_bytes: int


def usable_vram_bytes(gpu: Gpu) -> int:
    """Return the memory that containers can allocate, in whole MiB, the step of its shares."""
    return (gpu.vram_bytes - gpu.reserved_bytes) // MIB * MIB


def virtual(
    gpus: Iterable[Gpu], ratios: Oversubscription, host: HostResources
) -> Mapping[str, Virtual]:
    """Return the virtual totals by GPU UUID.

    The cards divide host memory and disk in proportion to their own memory, rounded down to whole
    MiB, so that the parts never add up to more than the whole.
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
