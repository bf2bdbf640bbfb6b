"""Short names of devices, for tables that people read."""

from collections.abc import Iterable
from typing import Final

_LEAST_LENGTH: Final = len("gpu-") + 4


def of(devices: Iterable[str]) -> dict[str, str]:
    """Return each name cut to the fewest characters that are unique, such as ``gpu-363a``."""
    every = set(devices)
    for length in range(_LEAST_LENGTH, max(map(len, every), default=0)):
        if len({name[:length] for name in every}) == len(every):
            return {name: name[:length] for name in every}
    return {name: name for name in every}
