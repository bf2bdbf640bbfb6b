"""Cards that a device plugin or another DRA driver gives to containers as well.

Device plugins and other DRA drivers do not count this driver's claims, nor does it count theirs. So
a card that one of them has to give, or that a container got from it, has a taint that keeps new
claims away, and the attribute `used_by` names the other one. As long as such a container holds a
card, claims on it are not prepared either.

Example: a node moves from NVIDIA's device plugin to this driver. Pod A got card 0 from the plugin
before. Once the plugin is gone, card 1 is shared; card 0 has the taint until A ends.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.devices.gpu import Gpu
from tensorfusion_dra.core.kubernetes.projection import Projection
from tensorfusion_dra.core.kubernetes.untyped_json import as_map

_MARKS: Final = frozenset({names.ATTR_UUID, "pciBusID", "pcieBusID"})
"""Attributes by which drivers name a card, without their domain."""
_PLUGINS: Final = {"nvidia.com": names.NVIDIA_DEVICE_PLUGIN}
"""Names of device plugins by the domain of their resources; others are named by the domain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletDevices:
    """Devices that plugins offer and containers hold on the node, as the kubelet lists them.

    Attributes:
        offered: Healthy devices of device plugins: resource and device ID, such as
            ``("nvidia.com/gpu", "GPU-8f3a...")``. A plugin that shares a card appends to its UUID.
        held: Those that containers have, also of a device plugin that is gone.
        claims: Devices of claims that containers have: driver, pool and device.
    """

    offered: frozenset[tuple[str, str]] = frozenset()
    held: frozenset[tuple[str, str]] = frozenset()
    claims: frozenset[tuple[str, str, str]] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherUser:
    """A device plugin or another DRA driver that gives a card to containers.

    Attributes:
        name: Name of the DRA driver; for a device plugin ``nvidia-device-plugin``, or the domain of
            its resource.
        holds: True if a container has the card from it now.
        since: Time since when it has been the card's other user; timezone-aware.
    """

    name: str
    holds: bool
    since: datetime


def of_cards(
    gpus: Iterable[Gpu],
    allocations: KubeletDevices,
    slices: Sequence[Mapping[str, Any]],
    *,
    before: Mapping[str, OtherUser],
    now: datetime,
) -> Mapping[str, OtherUser]:
    """Return the cards' other users by GPU UUID; one that holds the card comes first.

    Args:
        slices: The node's ResourceSlices of other drivers.
        before: The other users until now; one that stays is there since then.
        now: The present time.
    """
    published = [
        (item["spec"]["driver"], item["spec"]["pool"]["name"], device)
        for item in slices
        for device in item["spec"].get("devices") or ()
    ]
    found = {}
    for gpu in gpus:
        uuid = gpu.uuid.lower()
        users = [
            (driver, (driver, pool, device["name"]) in allocations.claims)
            for driver, pool, device in published
            if {uuid, gpu.pci_bus_id} & {*marks(device)}
        ]
        users += [
            (_PLUGINS.get(domain, domain), (resource, device_id) in allocations.held)
            for resource, device_id in sorted(allocations.offered | allocations.held)
            if uuid in device_id.lower()
            # As long as a taint's value may be.
            for domain in [resource.partition("/")[0][:63].rstrip("-.")]
        ]
        if users:
            name, holds = max(users, key=lambda user: user[1])
            known = before.get(gpu.uuid)
            since = known.since if known is not None and known.name == name else now
            found[gpu.uuid] = OtherUser(name=name, holds=holds, since=since)
    return found


def _identifying(attributes: object) -> dict[str, object]:
    return {
        name: value
        for name, value in as_map(attributes).items()
        if name.rpartition("/")[2] in _MARKS
    }


SLICE: Final[Projection] = {
    "metadata!": {"name!": str, "uid": str, "resourceVersion": str},
    "spec!": {
        "driver!": str,
        "nodeName": str,
        "pool!": {"name!": str},
        "devices": [{"name!": str, "attributes": _identifying}],
    },
}
"""What of_cards() needs of another driver's slice."""


def marks(device: Mapping[str, Any]) -> Iterator[str]:
    """Yield the attribute values that identify a card within its node, in lower case."""
    for name, value in (device.get("attributes") or {}).items():
        text = str(as_map(value).get("string") or "").lower()
        if text and name.rpartition("/")[2] in _MARKS:
            yield text
