"""What the steps share: folders, the times of measurements, and the fixed kernel."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gpucheck import tenant
from gpucheck.machine import Machine
from gpucheck.node import Node
from gpucheck.steps import Deadline, Json
from gpucheck.tenant import Environment, Tenant

WINDOWS: Final = 6
"""Parts of a measurement, for its spread."""

_KERNEL_MS: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Kernels per second.

    Attributes:
        low: Of the slowest window.
        high: Of the fastest window.
    """

    rate: float
    low: float
    high: float

    def row(self, label: str, base: "Measured", *, limit_percent: int | None = None) -> Json:
        """Return the rates in percent of those without a limit.

        Args:
            limit_percent: The limit in force; None if there is none.
        """
        found = {"percent": self.rate, "low_percent": self.low, "high_percent": self.high}
        return {
            "label": label,
            "limit_percent": limit_percent,
            **{name: round(100 * value / base.rate, 1) for name, value in found.items()},
            "kernels_per_second": round(self.rate, 1),
        }


class Workplace:
    """The machine, and how long is measured on it.

    Attributes:
        folder: For temporary files.
        seconds: Time of each measurement.
        warm_seconds: Time before each, in which limiters that regulate find their place.
        tolerance_percent: Points by which a share may exceed its limit.
    """

    def __init__(
        self,
        machine: Machine,
        folder: Path,
        *,
        seconds: float,
        tolerance_percent: float,
    ) -> None:
        self.machine: Final = machine
        self.folder: Final = folder
        self.seconds: Final = seconds
        self.warm_seconds: Final = seconds / 2
        self.tolerance_percent: Final = tolerance_percent
        self._kernel: Mapping[str, int] = {}

    def bare(self) -> Environment:
        """Return the environment of a process without limits."""
        return tenant.bare(self.machine, self.folder / "libraries")

    @contextmanager
    def limited(self, node: Node, *, percent: int, vram_bytes: int) -> Iterator[Environment]:
        """Prepare a claim; yield the environment of its container's processes.

        Raises:
            CheckError: The claim was refused.
        """
        with node.prepared(percent=percent, vram_bytes=vram_bytes) as prepared:
            yield tenant.of_edits(prepared.edits, self.machine, self.folder / "libraries")

    def kernel(self, deadline: Deadline) -> Mapping[str, int]:
        """Return blocks and rounds of the kernel that everything is measured with.

        Raises:
            CheckError: The card cannot be used without a limit.
        """
        if not self._kernel:
            with Tenant("process without a limit", self.bare(), deadline) as free:
                self._kernel = free.ask("calibrate", milliseconds=_KERNEL_MS)
        return self._kernel

    def unlimited(self, deadline: Deadline) -> Measured:
        """Measure a process without a limit.

        Raises:
            CheckError: It cannot use the card.
        """
        return self.measure({"process without a limit": self.bare()}, deadline)[0]

    def measure(self, places: Mapping[str, Environment], deadline: Deadline) -> Sequence[Measured]:
        """Measure processes that run at the same time.

        Raises:
            CheckError: One of them cannot use the card.
        """
        kernel = self.kernel(deadline)
        tenants: list[Tenant] = []
        try:
            for name, place in places.items():
                tenants.append(Tenant(name, place, deadline))
            return self.together(tenants, kernel)
        finally:
            for each in tenants:
                each.close()

    def together(self, tenants: Sequence[Tenant], kernel: Mapping[str, int]) -> Sequence[Measured]:
        """Measure tenants that run already.

        Raises:
            CheckError: One of them failed.
        """
        for each in tenants:
            each.start(
                "rate",
                **kernel,
                warm_seconds=self.warm_seconds,
                seconds=self.seconds,
                windows=WINDOWS,
            )
        return [_measured(each.finish()) for each in tenants]


def _measured(answer: dict[str, Any]) -> Measured:
    rates = answer["rates"]
    return Measured(rate=answer["rate"], low=min(rates), high=max(rates))
