"""Membership of the node in a GPUPool, kept as the objects in the cluster define it."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import structlog

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims import isolation
from tensorfusion_dra.core.claims.ports import Events, Objects
from tensorfusion_dra.core.devices import gpupool
from tensorfusion_dra.core.devices.device import Node
from tensorfusion_dra.core.errors import InputError, RetryableError
from tensorfusion_dra.core.kubernetes.node_fit import NodeLabels
from tensorfusion_dra.driver.publish import CatalogBuilder
from tensorfusion_dra.runtime.loops import LogThrottle, Wakeup

log = structlog.get_logger()

_FIRST_ANSWER_SECONDS: Final = 5.0
"""Wait for the first lists, so that an API server that answers in time causes no warning."""


def member(pools: Objects, nodes: Objects, *, node_name: str, pool_name: str = "") -> Node:
    """Return the node as a member of its GPUPool.

    Args:
        pools: The pools in the cluster, or the one with the name.
        nodes: Cache of this node's Node object; with a named pool it is read only if the pool has
            rules for node labels.
        node_name: This node.
        pool_name: Name of the pool; "" for the one whose node selector matches the node.

    Raises:
        RetryableError: The pool or the Node object is not known yet.
        InputError: There is no such pool, or it has to be corrected by an administrator.
    """
    known = pools.items()
    pool = gpupool.named(known, pool_name) if pool_name else None
    labels = NodeLabels(name=node_name, labels={})
    if pool is None or isolation.pool_has_rules(pool):
        found = nodes.items()
        if not found:
            raise RetryableError(f"node {node_name}: found no such Node object")
        labels = NodeLabels.of(found[0])
    if pool is None:
        pool = gpupool.choose(known, labels)
    node = gpupool.parse(pool).node(labels.name)
    try:
        return replace(node, isolation=isolation.pool_mode(pool, labels))
    except InputError as error:
        raise InputError(f"GPUPool {node.gpupool}: {error}") from error


class PoolFollower:
    """Loop that reads the pool when a pool or the Node object has changed.

    A pool that cannot be used changes nothing: the last usable values stay in effect. Without any
    so far, there is no catalog and nothing is published.

    An instance without a pool is not ready (check()): a rollout that seemed to succeed would have
    published nothing, and a rolling update would stop an instance with usable values for one that
    can prepare no new claim. A node that no pool selects while there are pools is the exception: it
    may be outside of all pools on purpose, and must not hold up the rollout for the others.
    """

    def __init__(
        self,
        source: Callable[[], Node],
        builder: CatalogBuilder,
        events: Events,
        *,
        expands_memory: bool,
        wakeup: Wakeup | None = None,
    ) -> None:
        """Args:
        source: Returns the node as a member of its pool, see member(); called at each round.
        builder: Gets the node of the pool.
        events: Writer for this loop's thread only.
        expands_memory: True if the node's enforcer can give a card more memory than it has.
        wakeup: Wakes the loop, because a pool or the Node object may have changed.
        """
        self._source = source
        self._builder = builder
        self._events = events
        self._expands_memory = expands_memory
        self._wakeup = wakeup or Wakeup()
        self._node: Node | None = None  # as last read
        self._throttle = LogThrottle(quiet_seconds=math.inf)
        self._awaited: RetryableError | None = RetryableError(
            "waits for a GPUPool: none was read yet"
        )

    def check(self) -> None:
        """Return if the node's pool is known, or if there are pools and it belongs to none.

        Raises:
            RetryableError: The node waits for its pool; the text says why, and what to do.
        """
        if self._awaited is not None:
            raise self._awaited

    def stop(self) -> None:
        """End run()."""
        self._wakeup.stop()

    def run(self) -> None:
        """Read the pool after every change, until stopped."""
        self._wakeup.wait(_FIRST_ANSWER_SECONDS)
        while self._wakeup.next_round():
            self.follow()
            self._wakeup.wait()

    def follow(self) -> None:
        """Read the pool once and pass the node on to the builder of the catalog."""
        try:
            node = self._source()
            self._check(node)
        except (InputError, RetryableError) as error:
            self._report(error)
            return
        self._awaited = None
        changed = node != self._node
        if self._throttle.over() or changed:
            log.info("gpupool_read", pool=node.pool, qos=node.qos)
        self._node = node
        if changed:
            self._builder.set_node(node)

    def _check(self, node: Node) -> None:
        ratios = node.oversubscription
        if ratios is not None and ratios.expands_memory and not self._expands_memory:
            raise InputError(
                f"GPUPool {node.gpupool}: spec.capacityConfig.oversubscription: found "
                f"vramExpandToHostMem {ratios.host_memory_percent} and vramExpandToHostDisk "
                f"{ratios.host_disk_percent}, expected 0 for both: this node's enforcer cannot "
                "expand a GPU's memory"
            )

    def _report(self, error: InputError | RetryableError) -> None:
        """Log an error once; if an administrator has to act, also write an Event on the Node."""
        text = str(error)
        if self._node is None:
            if isinstance(error, InputError):
                text = f"{text}; {gpupool.REMEDY}"
            is_outside = isinstance(error, gpupool.NotSelectedError)
            self._awaited = None if is_outside else RetryableError(f"waits for a GPUPool: {text}")
            self._builder.on_awaited_pool(text)
        if not self._throttle.is_new(text):
            return
        if self._node is None:
            log.warning("gpupool_awaited", error=text)
            consequence = "no GPU of this node is published until this is corrected"
        else:
            log.warning("gpupool_unusable", pool=self._node.pool, error=text)
            consequence = "the node's GPUs stay published as before"
        if isinstance(error, InputError):
            self._events.warn(names.EVENT_GPUPOOL_INVALID, f"{text}; {consequence}")
