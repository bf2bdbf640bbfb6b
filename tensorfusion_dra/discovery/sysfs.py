"""Places of PCI devices in the machine, from sysfs."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_ROOT_COMPLEX: Final = re.compile(r"pci[0-9a-f]{4,}:[0-9a-f]{2}")

_BUS_ID: Final = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


@dataclass(frozen=True, slots=True, kw_only=True)
class PciPlace:
    """Place of a PCI device in the machine.

    Attributes:
        pcie_root: ``pcidddd:bb`` of the root complex; None if sysfs does not have it.
        numa_node: None if sysfs does not have it, or if the machine has only one.
    """

    pcie_root: str | None = None
    numa_node: int | None = None


def place(sysfs: Path, bus_id: str) -> PciPlace:
    """Return the place of the device ``dddd:bb:ss.f``; a field that cannot be read is None.

    The root is found as in Kubernetes' deviceattribute package: the first root complex in the path
    of the device to which /sys/bus/pci/devices links.
    """
    link = sysfs / "bus" / "pci" / "devices" / bus_id
    return PciPlace(pcie_root=_pcie_root(link), numa_node=_numa_node(link / "numa_node"))


def bound(sysfs: Path, driver: str = "nvidia") -> frozenset[str]:
    """Return the bus IDs of the devices bound to a driver; none if they cannot be read."""
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
