"""An attribute that is equal for the cards of a node which NVLink connects.

A claim for several cards gets cards of one island with a constraint:

    constraints:
    - requests: [gpu]
      matchAttribute: example.com/nvlink_island

Two cards are in one island if a chain of active links leads from one to the other. Cards that are
connected to an NVSwitch are all in one island. The island is named by the lowest UUID in it, so a
card without links is an island of its own.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import pynvml

from tensorfusion_dra.extend import AttributeValue, Gpu, Node, Reading

ATTRIBUTE: Final = "example.com/nvlink_island"
SWITCH: Final = "NVSwitch"

Links = Callable[[Sequence[Gpu]], Mapping[str, Sequence[str]]]

_BUS: Final = re.compile(r"0*([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f])")


class NvlinkIslands:
    """Provider of the attribute; it asks NVML again only when other cards are there."""

    def __init__(self, links: Links | None = None) -> None:
        """Read nothing yet.

        Args:
            links: Returns what is at the other ends of each card's links; None to ask NVML.
        """
        self._links = links or nvml_links
        self._cards: frozenset[str] = frozenset()
        self._islands: Mapping[str, str] = {}

    def begin(self, reading: Reading) -> None:
        """Read the links of all cards; connections do not change while the node runs."""
        real = [gpu for gpu in reading.gpus if not gpu.simulated]
        cards = frozenset(gpu.uuid for gpu in real)
        if cards != self._cards:
            self._islands = islands(self._links(real))
            self._cards = cards

    def __call__(self, gpu: Gpu, node: Node) -> Mapping[str, AttributeValue]:
        """Return the card's island."""
        return {ATTRIBUTE: self._islands.get(gpu.uuid, gpu.uuid)}


def islands(links: Mapping[str, Iterable[str]]) -> Mapping[str, str]:
    """Return the island of each card.

    Args:
        links: By UUID of a card, the UUIDs at the other ends of its links, or SWITCH.
    """
    joined: dict[str, set[str]] = {}
    for uuid, others in links.items():
        group = {uuid, *others}
        for member in tuple(group):
            group |= joined.get(member, set())
        joined.update(dict.fromkeys(group, group))
    return {uuid: min(joined[uuid] - {SWITCH}) for uuid in links}


def nvml_links(gpus: Sequence[Gpu]) -> Mapping[str, Sequence[str]]:
    """Return what is at the other ends of each card's links.

    Raises:
        pynvml.NVMLError: NVML cannot be initialised, so that nothing is known.
    """
    if not gpus:
        return {}
    by_bus = {_bus(gpu.pci_bus_id): gpu.uuid for gpu in gpus if gpu.pci_bus_id}
    pynvml.nvmlInit()
    try:
        return {gpu.uuid: _ends(gpu, by_bus) for gpu in gpus}
    finally:
        pynvml.nvmlShutdown()


def _ends(gpu: Gpu, by_bus: Mapping[str, str]) -> Sequence[str]:
    """Return the other ends of a card's links; none for a card that does not answer."""
    try:
        card = pynvml.nvmlDeviceGetHandleByIndex(gpu.index)
        if _text(pynvml.nvmlDeviceGetUUID(card)) != gpu.uuid:
            return ()
    except pynvml.NVMLError:
        return ()
    found = (_end(card, link, by_bus) for link in range(pynvml.NVML_NVLINK_MAX_LINKS))
    return [end for end in found if end]


def _end(card: Any, link: int, by_bus: Mapping[str, str]) -> str:
    """Return what is at the other end of a link: a UUID, SWITCH, or "" for nothing of this node."""
    try:
        if not pynvml.nvmlDeviceGetNvLinkState(card, link):
            return ""
        kind = pynvml.nvmlDeviceGetNvLinkRemoteDeviceType(card, link)
        if kind == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
            return SWITCH
        remote = pynvml.nvmlDeviceGetNvLinkRemotePciInfo(card, link)
    except pynvml.NVMLError:  # no such link, or no NVLink at all
        return ""
    return by_bus.get(_bus(_text(remote.busId)), "")


def _bus(text: str) -> str:
    """Return a PCI bus ID in one spelling; NVML's domains have eight digits, others four."""
    match = _BUS.fullmatch(text.lower())
    return match[1] if match else text


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
