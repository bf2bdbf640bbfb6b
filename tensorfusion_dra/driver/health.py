"""What the kubelet is told of the health of each device."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from tensorfusion_dra.driver.catalog import Catalog, CatalogReader

HEARTBEAT_SECONDS: Final = 10.0
"""A third of the time after which the kubelet calls a device's health unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceHealth:
    """The health of one device.

    Attributes:
        message: What a user may read in the pod's status; ASCII.
    """

    pool: str
    device: str
    healthy: bool
    message: str = ""


def reports(
    catalog: CatalogReader, stopped: Callable[[], bool]
) -> Iterator[tuple[DeviceHealth, ...]]:
    """The complete list of devices, at once, after every change and every ten seconds.

    Ends when stopped() is true and somebody calls wake_waiting() on the catalog.
    """
    while not stopped():
        seen = catalog.current()
        yield _report(seen)
        catalog.wait_changed(seen, seconds=HEARTBEAT_SECONDS, stopped=stopped)


def _report(catalog: Catalog | None) -> tuple[DeviceHealth, ...]:
    if catalog is None:
        return ()
    pool = catalog.node.pool
    present = (DeviceHealth(pool=pool, device=d.name, healthy=True) for d in catalog.devices)
    gone = (
        DeviceHealth(pool=pool, device=name, healthy=False, message="GPU is gone from the node")
        for name in sorted(catalog.gone)
    )
    return (*present, *gone)
