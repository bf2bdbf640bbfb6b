"""Keeps the node what its GPUPool in the cluster says it is."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import structlog

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims import pool_isolation
from tensorfusion_dra.core.devices import gpupool
from tensorfusion_dra.core.devices.device import Node
from tensorfusion_dra.core.errors import InputError, RetryableError
from tensorfusion_dra.core.kubernetes.node_selector import NodeLabels
from tensorfusion_dra.driver.catalog import CatalogReader
from tensorfusion_dra.driver.log_throttle import LogThrottle
from tensorfusion_dra.driver.ports.cluster import Events, Objects
from tensorfusion_dra.driver.wakeup import Wakeup

log = structlog.get_logger()

_FIRST_ANSWER_SECONDS: Final = 5.0
"""An API server that answers in time is not worth a line about waiting for it."""


class PoolSource(Protocol):
    """Tells what the node is now."""

    def read(self) -> Node:
        """The node as a member of its pool.

        Raises:
            RetryableError: Not known yet.
            InputError: Somebody has to put the pool right.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedPool:
    """The pool that the settings name.

    Attributes:
        nodes: The Node object of this node alone; asked only if the pool has rules for labels.
    """

    pools: Objects
    nodes: Objects
    gpupool: str
    node_name: str

    def read(self) -> Node:
        """See PoolSource."""
        found = gpupool.named(self.pools.items(), self.gpupool)
        labels = NodeLabels(name=self.node_name, labels={})
        if pool_isolation.has_rules(found):
            labels = _labels(self.nodes, self.node_name)
        return _member(found, labels)


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectingPool:
    """The pool whose node selector selects the node.

    Attributes:
        nodes: The Node object of this node alone.
    """

    pools: Objects
    nodes: Objects
    node_name: str

    def read(self) -> Node:
        """See PoolSource."""
        pools = self.pools.items()
        labels = _labels(self.nodes, self.node_name)
        return _member(gpupool.choose(pools, labels), labels)


def _labels(nodes: Objects, node_name: str) -> NodeLabels:
    for node in nodes.items():
        return NodeLabels.of(node)
    raise RetryableError(f"node {node_name}: found no such Node object")


def _member(pool: Mapping[str, Any], labels: NodeLabels) -> Node:
    """The node as a member of the pool.

    Raises:
        InputError: The pool cannot be read.
    """
    node = gpupool.parse(pool).node(labels.name)
    try:
        return replace(node, isolation=pool_isolation.of_node(pool, labels))
    except InputError as error:
        raise InputError(f"GPUPool {node.gpupool}: {error}") from error


class PoolFollower:
    """One loop that is woken when a pool or the Node object changed.

    What cannot be used changes nothing: the last good values stay, and before the first ones
    there is no catalog.
    """

    def __init__(
        self,
        source: PoolSource,
        catalog: CatalogReader,
        events: Events,
        *,
        on_served: Callable[[], None],
        expands_memory: bool,
    ) -> None:
        """Follows nothing yet.

        Args:
            on_served: The catalog is another one now.
            expands_memory: Whether the node's enforcer can give a card more memory than it has.
        """
        self._source = source
        self._catalog = catalog
        self._events = events
        self._on_served = on_served
        self._expands_memory = expands_memory
        self._wakeup = Wakeup()
        self._served: Node | None = None
        self._throttle = LogThrottle(quiet_seconds=math.inf)

    def wake(self) -> None:
        """Something changed: look now."""
        self._wakeup.wake()

    def stop(self) -> None:
        """Ends run()."""
        self._wakeup.stop()

    def run(self) -> None:
        """Follows until stopped."""
        self._wakeup.wait(_FIRST_ANSWER_SECONDS)
        while self._wakeup.next_round():
            self.follow()
            self._wakeup.wait()

    def follow(self) -> None:
        """Reads the pool once and serves what it says."""
        try:
            node = self._source.read()
            self._check(node)
        except (InputError, RetryableError) as error:
            self._tell(error)
            return
        changed = node != self._served
        if self._throttle.over() or changed:
            log.info("gpupool_read", pool=node.pool, qos=node.qos)
        self._served = node
        if changed and self._catalog.set_node(node):
            self._on_served()

    def _check(self, node: Node) -> None:
        ratios = node.oversubscription
        if ratios is not None and ratios.expands_memory and not self._expands_memory:
            raise InputError(
                f"GPUPool {node.gpupool}: spec.capacityConfig.oversubscription: found "
                f"vramExpandToHostMem {ratios.host_memory_percent} and vramExpandToHostDisk "
                f"{ratios.host_disk_percent}, expected 0 for both: this node's enforcer cannot "
                "expand a GPU's memory"
            )

    def _tell(self, error: InputError | RetryableError) -> None:
        """Says so once, also to whoever looks at the Node if it does not pass by itself."""
        text = str(error)
        if not self._throttle.is_new(text):
            return
        if self._served is None:
            log.warning("gpupool_awaited", error=text)
            consequence = "no GPU of this node is published until this is put right"
        else:
            log.warning("gpupool_unusable", pool=self._served.pool, error=text)
            consequence = "the node's GPUs stay published as before"
        if isinstance(error, InputError):
            self._events.warn(names.EVENT_GPUPOOL_INVALID, f"{text}; {consequence}")
