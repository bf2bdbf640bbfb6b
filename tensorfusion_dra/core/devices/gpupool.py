"""GPUPool objects (tensor-fusion.ai/v1): their settings, and the choice of a node's pool."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from tensorfusion_dra.core.devices.capacity import NO_MORE, Oversubscription
from tensorfusion_dra.core.devices.device import Node
from tensorfusion_dra.core.devices.gpu import Qos
from tensorfusion_dra.core.errors import InputError
from tensorfusion_dra.core.kubernetes import field_errors, name_rules, node_fit
from tensorfusion_dra.core.kubernetes.field_errors import Fields, whole_number
from tensorfusion_dra.core.kubernetes.node_fit import NodeLabels

QOS_LEVELS: Final = tuple(level.value for level in Qos)
DEFAULT_QOS: Final = Qos.MEDIUM.value
"""Level of a pool that sets none, as in Tensor Fusion."""

# (field of Oversubscription, field of GPUPool, default, least, most), from the GPUPool CRD.
_RATIOS: Final = (
    ("tflops_percent", "tflopsOversellRatio", 500, 100, 100_000),
    ("host_memory_percent", "vramExpandToHostMem", 50, 0, 100),
    ("host_disk_percent", "vramExpandToHostDisk", 70, 0, 100),
)

REMEDY: Final = (
    "install the CustomResourceDefinitions (chart value crds.install) and create a GPUPool whose "
    "nodeSelector selects the node's labels, or set pool-source=settings"
)
"""Remedy for a node that waits for its GPUPool."""


class NotSelectedError(InputError):
    """There are GPUPools, and by their selectors none of them is this node's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPool:
    """Settings of one GPUPool.

    Attributes:
        oversubscription: None if the pool does not oversubscribe.
    """

    name: str
    qos: str
    oversubscription: Oversubscription | None

    def node(self, name: str) -> Node:
        """Return the node with this name as a member of the pool.

        Raises:
            InputError: The two names together are too long for the name of a resource pool.
        """
        node = Node(
            name=name, gpupool=self.name, qos=self.qos, oversubscription=self.oversubscription
        )
        found = len(node.pool.encode())
        if found > name_rules.POOL_NAME_BYTES:
            raise InputError(
                f"GPUPool {self.name}: {found} bytes with the node's name, "
                f"expected at most {name_rules.POOL_NAME_BYTES}"
            )
        return node


def parse(pool: Mapping[str, Any]) -> GpuPool:
    """Parse the settings of a GPUPool object.

    Raises:
        InputError: Some values cannot be used; the text lists all of them.
    """
    spec = Fields(pool).inner("spec")
    qos = spec.inner("qosConfig").read(
        "defaultQoS",
        # Tensor Fusion takes an empty one for an absent one, too.
        lambda found: field_errors.choice(found, Qos).value if found != "" else DEFAULT_QOS,
        DEFAULT_QOS,
    )
    capacity = spec.inner("capacityConfig")
    found = capacity.inner("oversubscription")
    ratios = {
        field: found.read(key, partial(whole_number, least=least, most=most), default)
        for field, key, default, least, most in _RATIOS
    }
    if spec.errors:
        raise InputError(f"GPUPool {_name(pool)}: {'; '.join(map(str, spec.errors))}")
    wanted = Oversubscription(**ratios)
    is_set = capacity.found.get("oversubscription") is not None and wanted != NO_MORE
    return GpuPool(name=_name(pool), qos=qos, oversubscription=wanted if is_set else None)


def named(pools: Iterable[Mapping[str, Any]], name: str) -> Mapping[str, Any]:
    """Return the pool with this name.

    Raises:
        InputError: There is no such pool.
    """
    for pool in pools:
        if _name(pool) == name:
            return pool
    raise InputError(f"GPUPool {name}: found none of this name")


def choose(pools: Iterable[Mapping[str, Any]], node: NodeLabels) -> Mapping[str, Any]:
    """Return the only pool whose node selector selects the node.

    A pool with a malformed selector selects nothing. If no other pool selects the node, the
    malformed selector is the likely reason, so the error names it.

    Raises:
        NotSelectedError: There are pools, and none of them selects the node.
        InputError: There is no pool, more than one selects the node, or a selector is malformed.
    """
    selecting: list[Mapping[str, Any]] = []
    malformed: list[str] = []
    found = tuple(pools)
    for pool in found:
        try:
            if _selects(pool, node):
                selecting.append(pool)
        except InputError as error:
            malformed.append(f"GPUPool {_name(pool)}: nodeSelector: {error}")
    if len(selecting) > 1:
        names = ", ".join(sorted(map(_name, selecting)))
        raise InputError(f"node {node.name}: {names} select it, expected one GPUPool")
    if not selecting:
        reasons = "".join(f"; {text}" for text in malformed)
        text = f"node {node.name}: no GPUPool selects it, expected one{reasons}"
        raise NotSelectedError(text) if found and not malformed else InputError(text)
    return selecting[0]


def _selects(pool: Mapping[str, Any], node: NodeLabels) -> bool:
    """Return True if the pool selects the node; selectors by vendor replace the common selector."""
    config = Fields(pool).inner("spec").inner("nodeManagerConfig")
    by_vendor = config.inner("multiVendorNodeSelector")
    errors = [str(error) for error in config.errors]
    if errors:
        raise InputError("; ".join(errors))
    for selector in list(by_vendor.found.values()) or [config.found.get("nodeSelector")]:
        try:
            if node_fit.selects(selector, node):
                return True
        except InputError as error:
            errors.append(str(error))
    if errors:
        raise InputError("; ".join(errors))
    return False


def _name(pool: Mapping[str, Any]) -> str:
    return str(pool["metadata"]["name"])
