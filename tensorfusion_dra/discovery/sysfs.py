"""Where a PCI device sits, from sysfs."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_ROOT_COMPLEX: Final = re.compile(r"pci[0-9a-f]{4,}:[0-9a-f]{2}")

_BUS_ID: Final = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A device's position in the machine.

    Attributes:
        pcie_root: ``pcidddd:bb`` of the root complex; None if the node does not tell.
        numa_node: None if the node does not tell or has only one.
    """

    pcie_root: str | None = None
    numa_node: int | None = None


def place(sysfs: Path, bus_id: str) -> Place:
    """The place of the device ``dddd:bb:ss.f``; what cannot be read is None.

    The root is found as Kubernetes' deviceattribute package finds it: the first root complex on
    the way to the device that /sys/bus/pci/devices links to.
    """
    link = sysfs / "bus" / "pci" / "devices" / bus_id
    return Place(pcie_root=_pcie_root(link), numa_node=_numa_node(link / "numa_node"))


def bound(sysfs: Path, driver: str = "nvidia") -> frozenset[str]:
    """The bus ids of the devices that a driver has now; none if that cannot be read."""
    try:
        names = [entry.name for entry in (sysfs / "bus" / "pci" / "drivers" / driver).iterdir()]
    except OSError:
        return frozenset()
    return frozenset(name for name in names if _BUS_ID.fullmatch(name))


def _pcie_root(link: Path) -> str | None:
    try:
        device = link.resolve(strict=True)
    except (OSError, RuntimeError):  # RuntimeError: a loop of links
        return None
    return next((part for part in device.parts if _ROOT_COMPLEX.fullmatch(part)), None)


def _numa_node(file: Path) -> int | None:
    try:
        node = int(file.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None
