"""The cards that nodes publish, summed up so that the webhook can keep them for any cluster.

A cluster of 5,000 nodes has few kinds of cards, and few combinations of them on a node. So of each
slice the kinds and their numbers are kept, and nodes with the same ones are counted together.

A node writes its own slices, so whoever has a node's credentials decides what they say. Of one node
a few slices with a few kinds of cards are kept, and where several kinds are compared, one that a
single node has does not count beside others of many nodes.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, NamedTuple

from tensorfusion_dra.core import names
from tensorfusion_dra.core.devices import device
from tensorfusion_dra.core.devices.capacity import VIRTUAL_OF
from tensorfusion_dra.core.kubernetes import quantity
from tensorfusion_dra.core.kubernetes.quantity import Quantity, QuantityError
from tensorfusion_dra.core.kubernetes.untyped_json import as_list, as_map, name_of

Item = Mapping[str, Any]

MAX_SLICES: Final = 8
"""Of a node that are kept. A slice has up to 128 devices."""
_MAX_KINDS: Final = 16
_MANY_NODES: Final = 3
_TEXTS: Final = (
    names.ATTR_MODEL,
    names.ATTR_PRODUCT_NAME,
    names.ATTR_POOL_NAME,
    names.ATTR_PARTITION,
)


class CardKind(NamedTuple):
    """A kind of published GPU.

    Attributes:
        vram, tflops: What it has.
        most_vram, most_tflops: What its shares divide, which is more in a pool that oversubscribes.
        is_virtual: True if its shares divide the virtual amounts.
        is_partition: True for partitions, which only pods with isolation partitioned get.
    """

    vram: Quantity
    tflops: Quantity
    most_vram: Quantity
    most_tflops: Quantity
    is_virtual: bool
    model: str
    product: str
    pool: str
    is_partition: bool = False

    def is_of(self, model: str) -> bool:
        """Return True if this is its model, short or full; "" is any."""
        return device.shortened(model) in ("", self.model, self.product)

    def is_in(self, pool: str) -> bool:
        """Return True if this is its GPUPool; "" is any."""
        return device.shortened(pool) in ("", self.pool)


class OfNode(NamedTuple):
    """What a node publishes.

    Attributes:
        pools: GPUPools by the names of its resource pools.
        cards: Kinds of cards and their numbers.
    """

    pools: tuple[str, ...]
    cards: tuple[tuple[CardKind, int], ...]


@dataclass(frozen=True, slots=True)
class Cards:
    """The cards of all nodes.

    Attributes:
        nodes: What nodes publish, with the number of nodes and the name of one that publish this.
    """

    nodes: Mapping[OfNode, tuple[int, str]] = field(default_factory=dict)

    def every(self) -> Iterator[tuple[CardKind, int, str]]:
        """Yield kinds of cards, each with a number of nodes and the name of one; some repeat."""
        for of_node, (count, name) in self.nodes.items():
            for card, _ in of_node.cards:
                yield card, count, name

    def kinds(self, is_wanted: Callable[[CardKind], bool]) -> Mapping[CardKind, str]:
        """Return the kinds of cards that count among those that are wanted, with a node's name."""
        counts = Counter[CardKind]()
        for card, count, _ in self.every():
            counts[card] += count if is_wanted(card) else 0
        example = {card: name for card, _, name in self.every()}
        return {card: example[card] for card in _counting(+counts)}

    def pools(self) -> frozenset[str]:
        """Return the GPUPools that nodes publish, whoever they are."""
        return frozenset(pool for of_node in self.nodes for pool in of_node.pools)

    def usual_pools(self) -> frozenset[str]:
        """Return the GPUPools that count; see _counting()."""
        counts = Counter[str]()
        for of_node, (count, _) in self.nodes.items():
            counts.update(dict.fromkeys(of_node.pools, count))
        return frozenset(_counting(counts))

    def number(self) -> int:
        """Return how many cards there are."""
        return sum(
            count * number
            for of_node, (count, _) in self.nodes.items()
            for _, number in of_node.cards
        )


def _counting(nodes: Counter[Any]) -> Iterable[Any]:
    """Return the entries without those of a single node, if another entry has three nodes."""
    if max(nodes.values(), default=0) < _MANY_NODES:
        return nodes
    return [each for each, count in nodes.items() if count > 1]


def of_slice(item: Item) -> OfNode:
    """Return the pool and the kinds of cards that a slice adds to its node."""
    found = Counter(_devices(item))
    pool = name_of(as_map(item.get("spec")).get("pool")).rpartition("/")[0]
    return OfNode((pool,), tuple(sorted(found.items())[:_MAX_KINDS]))


def together(slices: Iterable[OfNode]) -> OfNode:
    """Return what a node publishes in its slices."""
    pools: set[str] = set()
    found = Counter[CardKind]()
    for each in slices:
        pools |= {*each.pools}
        found.update(dict(each.cards))
    return OfNode(tuple(sorted(pools)), tuple(sorted(found.items())[:_MAX_KINDS]))


class PublishedNodes:
    """What nodes publish, added up slice by slice; not for several threads."""

    def __init__(self) -> None:
        self._slices: dict[str, dict[str, OfNode]] = {}  # by node, then by the slice's name
        self._published: dict[str, OfNode] = {}  # by node
        self._alike: dict[OfNode, dict[str, None]] = {}  # the nodes that publish this

    def put(self, node: str, name: str, found: OfNode | None) -> None:
        """Replace what a slice adds to its node, unless that has many others; None removes it."""
        slices = self._slices.setdefault(node, {})
        if found is None:
            slices.pop(name, None)
        elif name in slices or len(slices) < MAX_SLICES:
            slices[name] = found
        if before := self._published.pop(node, None):
            del self._alike[before][node]
            if not self._alike[before]:
                del self._alike[before]
        if slices:
            self._published[node] = together(slices.values())
            self._alike.setdefault(self._published[node], {})[node] = None
        else:
            del self._slices[node]

    def cards(self) -> Cards:
        """Return the cards of all nodes."""
        return Cards({each: (len(nodes), next(iter(nodes))) for each, nodes in self._alike.items()})


def of_slices(slices: Iterable[Item]) -> Cards:
    """Return the cards in these slices."""
    nodes = PublishedNodes()
    for number, each in enumerate(slices):
        nodes.put(str(as_map(each.get("spec")).get("nodeName", "")), str(number), of_slice(each))
    return nodes.cards()


def _devices(item: Item) -> Iterator[CardKind]:
    for entry in map(as_map, as_list(as_map(item.get("spec")).get("devices"))):
        attributes, given = as_map(entry.get("attributes")), as_map(entry.get("capacity"))
        own = (names.CAPACITY_VRAM, names.CAPACITY_TFLOPS)
        divided = (VIRTUAL_OF[each] if VIRTUAL_OF[each] in given else each for each in own)
        amounts = (str(as_map(given.get(name)).get("value")) for name in (*own, *divided))
        texts = (_text(attributes, name) for name in _TEXTS)
        is_virtual = VIRTUAL_OF[names.CAPACITY_VRAM] in given
        found = _card(tuple(amounts), is_virtual, *texts)
        if found is not None:
            yield found


@lru_cache(maxsize=256)  # many nodes have the same
def _card(amounts: tuple[str, ...], is_virtual: bool, *texts: str) -> CardKind | None:
    """Return a card; None for a device without amounts, which this driver publishes on no node."""
    try:
        vram, tflops, most_vram, most_tflops = map(quantity.parse, amounts)
        model, product, pool, partition = texts
        kind = (is_virtual, model, product, pool, bool(partition))
        return CardKind(vram, tflops, most_vram, most_tflops, *kind)
    except QuantityError:
        return None


def _text(attributes: Mapping[str, object], name: str) -> str:
    return str(as_map(attributes.get(name)).get("string", ""))
