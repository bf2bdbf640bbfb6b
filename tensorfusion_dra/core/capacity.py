"""How much of a card there is to share, and what a claim that names nothing takes of it."""

from collections.abc import Mapping
from dataclasses import dataclass

from tensorfusion_dra.core import names
from tensorfusion_dra.core.gpu import Gpu
from tensorfusion_dra.core.quantity import MIB, Quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """One consumable capacity of a device (KEP-5075).

    Attributes:
        value: What all shares together may consume.
        default: What a claim consumes that does not name this capacity. It is the whole value, so
            that no mix of claims can over-commit the card.
        minimum: The smallest share. It is never left out: without it a negative request would
            lower the sum and so take from other tenants (Kubernetes up to 1.36).
        step: A share is rounded up to the minimum and a whole number of steps; None means no
            rounding, which keeps fractions such as 71200m.
    """

    value: Quantity
    default: Quantity
    minimum: Quantity
    step: Quantity | None = None

    def as_api(self) -> dict[str, object]:
        """The DeviceCapacity of resource.k8s.io/v1."""
        valid_range = {"min": str(self.minimum)}
        if self.step is not None:
            valid_range["step"] = str(self.step)
        return {
            "value": str(self.value),
            "requestPolicy": {"default": str(self.default), "validRange": valid_range},
        }


def physical(gpu: Gpu) -> Mapping[str, Capacity]:
    """The capacities of a card whose pool does not oversubscribe."""
    tflops = Quantity.milli(gpu.milli_tflops)
    vram = Quantity.of_bytes(usable_vram_bytes(gpu))
    mib = Quantity.of_bytes(MIB)
    return {
        names.CAPACITY_TFLOPS: Capacity(value=tflops, default=tflops, minimum=Quantity.whole(0)),
        names.CAPACITY_VRAM: Capacity(value=vram, default=vram, minimum=mib, step=mib),
    }


def usable_vram_bytes(gpu: Gpu) -> int:
    """The card's memory floored to whole MiB, the step in which it is shared."""
    return gpu.vram_bytes // MIB * MIB
