"""Pools of devices that a node can reach.

dynamic-resource-allocation/structured/internal/incubating/pools_incubating.go, release 1.36.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tensorfusion_dra.core.errors import InputError
from tensorfusion_dra.core.kubernetes import node_selector
from tensorfusion_dra.core.kubernetes.node_selector import NodeLabels
from tensorfusion_dra.scheduling.devices import Device, Slice
from tensorfusion_dra.scheduling.requests import SchedulingError


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """One pool in its newest generation.

    Attributes:
        devices: In the order in which the search tries them: by slice name, then as published.
        trouble: Reason why no device of the pool is allocated; "" if there is none.
        is_incomplete: Slices of this generation are still missing.
    """

    driver: str
    name: str
    devices: tuple[Device, ...] = ()
    trouble: str = ""
    is_incomplete: bool = False

    def __str__(self) -> str:
        return f"{self.driver}/{self.name}"


def gather(slices: Sequence[Slice], node: Mapping[str, Any]) -> list[Pool]:
    """Return the node's pools in the order in which the search tries them: by driver, then by name.

    A pool that is incomplete on this node is left out if other nodes have a newer generation of it.

    Raises:
        SchedulingError: The nodeSelector of a slice is malformed.
    """
    newest: dict[tuple[str, str], list[Slice]] = {}
    for candidate in slices:
        if not candidate.is_supported or not _reaches(candidate, node):
            continue
        found = newest.setdefault((candidate.driver, candidate.pool), [])
        if found and candidate.generation < found[0].generation:
            continue
        if found and candidate.generation > found[0].generation:
            found.clear()
        found.append(candidate)
    pools = (_pool(found, slices) for found in newest.values())
    return sorted(filter(None, pools), key=lambda pool: (pool.driver, pool.name))


def selects_node(selector: Mapping[str, Any] | None, node: Mapping[str, Any]) -> bool:
    """Return True if a NodeSelector of a slice or an allocation selects the node.

    Raises:
        SchedulingError: The selector is malformed: the API server accepts ``Gt`` and ``Lt`` with a
            value that is not a number.
    """
    try:
        return node_selector.selects(selector, NodeLabels.of(node))
    except InputError as error:
        raise SchedulingError(f"node selector: {error}") from error


def _reaches(candidate: Slice, node: Mapping[str, Any]) -> bool:
    if candidate.node_name:
        return bool(candidate.node_name == node["metadata"]["name"])
    if candidate.all_nodes:
        return True
    return selects_node(candidate.node_selector, node)


def _pool(found: list[Slice], everywhere: Iterable[Slice]) -> Pool | None:
    first = found[0]
    if len(found) != first.expected_slices:
        same_pool = [
            other
            for other in everywhere
            if (other.driver, other.pool) == (first.driver, first.pool)
        ]
        if any(other.generation > first.generation for other in same_pool):
            return None
        present = sum(other.generation == first.generation for other in same_pool)
        if present != first.expected_slices:
            trouble = f"{present} of {first.expected_slices} slices"
            return Pool(driver=first.driver, name=first.pool, trouble=trouble, is_incomplete=True)
    ordered = sorted(found, key=lambda member: member.name)
    devices = tuple(device for member in ordered for device in member.devices)
    seen: set[str] = set()
    for device in devices:
        if device.id.device in seen:
            trouble = f"duplicate device name {device.id.device}"
            return Pool(driver=first.driver, name=first.pool, trouble=trouble)
        seen.add(device.id.device)
    return Pool(driver=first.driver, name=first.pool, devices=devices)
