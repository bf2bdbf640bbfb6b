"""The outcome of a search, one device for one request at a time."""

from collections.abc import Mapping
from dataclasses import dataclass

from tensorfusion_dra.core.kubernetes.quantity import Quantity
from tensorfusion_dra.scheduling.devices import Device
from tensorfusion_dra.scheduling.requests import Wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class Pick:
    """One device for one request.

    Attributes:
        consumed: Consumed amount of every capacity; None if the device is not shared.
    """

    wanted: Wanted
    device: Device
    consumed: Mapping[str, Quantity] | None = None
