"""What the kubelet is told of the health of each device."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from tensorfusion_dra.core import printable
from tensorfusion_dra.driver.catalog import Catalog, CatalogReader

HEARTBEAT_SECONDS: Final = 10.0
"""A third of the time after which the kubelet calls a device's health unknown."""

_MAX_MESSAGE: Final = 1024
"""Characters; the kubelet cuts a longer one."""


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
    """Of an absent device as well: the pods that have it are to know."""
    if catalog is None:
        return ()
    listed = dict.fromkeys([*(device.name for device in catalog.devices), *sorted(catalog.sick)])
    return tuple(_of_device(catalog, name) for name in listed)


def _of_device(catalog: Catalog, name: str) -> DeviceHealth:
    sickness = catalog.sick.get(name)
    if sickness is None:
        return DeviceHealth(pool=catalog.node.pool, device=name, healthy=True)
    text = printable.one_line(sickness.worst.text)
    message = text.encode("ascii", "replace").decode()[:_MAX_MESSAGE]
    return DeviceHealth(pool=catalog.node.pool, device=name, healthy=False, message=message)
