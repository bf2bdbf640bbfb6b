"""How much of a card a container may use."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tensorfusion_dra.core import names
from tensorfusion_dra.core.gpu import Gpu
from tensorfusion_dra.core.quantity import Quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """The part of one card that is enforced while the container runs.

    Attributes:
        sm_percent: Of the card's compute, 1 to 100.
        vram_bytes: Device memory.
    """

    sm_percent: int
    vram_bytes: int

    def as_json(self) -> dict[str, int]:
        """The limit as the ledger keeps it."""
        return {"smPercent": self.sm_percent, "vramBytes": self.vram_bytes}

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> "Limit":
        """The limit that as_json wrote."""
        return cls(sm_percent=kept["smPercent"], vram_bytes=kept["vramBytes"])


def of_consumed(gpu: Gpu, consumed: Mapping[str, Quantity]) -> Limit:
    """The limit of a container that may use what its claim consumes and no more."""
    return Limit(
        sm_percent=_percent(consumed[names.CAPACITY_TFLOPS], gpu),
        vram_bytes=consumed[names.CAPACITY_VRAM].ceil(),
    )


def _percent(tflops: Quantity, gpu: Gpu) -> int:
    """Rounded up and within 1..100, as Tensor Fusion's hypervisor computes it."""
    whole = Quantity.milli(gpu.milli_tflops)
    return min(100, max(1, -(-100 * tflops.nano // whole.nano)))
