"""The GPUPool of a pod, and what it sets for its pods."""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims import isolation
from tensorfusion_dra.core.devices.gpu import Isolation
from tensorfusion_dra.core.kubernetes import review
from tensorfusion_dra.core.kubernetes.untyped_json import as_map

Item = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class PodPool:
    """A GPUPool's settings for its pods.

    Attributes:
        name: Name of the GPUPool; "" for pods without one.
        enabled: True if its pods use DRA unless their annotations say otherwise.
        template: Name of their ResourceClaimTemplate.
        isolations: Isolation modes that the pool may set for its nodes.
        document: The GPUPool; None if the nodes' settings name the pool.
        unknown: Why there is no such pool; "" if there is one.
    """

    name: str = ""
    enabled: bool = False
    template: str = names.CLAIM_TEMPLATE
    isolations: frozenset[Isolation] = frozenset()
    document: Item | None = None
    unknown: str = ""


def choose(pools: Sequence[Item], templates: Iterable[Item], name: str) -> PodPool:
    """Return the settings of the pool of this name, or of the default pool if the name is "".

    If there are no GPUPools, the pools of nodes come from their settings. The pool's own draConfig
    takes precedence over the SchedulingConfigTemplate that it names. The CRDs of Tensor Fusion have
    neither field, so the API server drops them; those of the chart have both.

    The pool is unknown if none has this name; or if none is named, and not exactly one is the
    default.
    """
    if not pools:
        return PodPool(name=name)
    if name:
        found = [pool for pool in pools if _name(pool) == name]
        if not found:
            known = ", ".join(sorted(map(_name, pools))[:10])
            return PodPool(unknown=f"found {name!r}, expected a GPUPool such as {known}")
    else:
        found = [
            pool
            for pool in pools
            if review.annotations_of(pool).get(names.ANNOTATION_DEFAULT_POOL) == "true"
        ]
        if not found:
            text = "found no name and no default GPUPool, expected the name of a GPUPool"
            return PodPool(unknown=text)
        if len(found) > 1:
            several = ", ".join(sorted(map(_name, found)))
            text = f"found no name and the defaults {several}, expected one default GPUPool"
            return PodPool(unknown=text)
    spec = as_map(found[0].get("spec"))
    own = as_map(spec.get("draConfig"))
    shared: Mapping[str, object] = {}
    for template in templates:
        if _name(template) == spec.get("schedulingConfigTemplate"):
            shared = as_map(as_map(template.get("spec")).get("dra"))
    enabled = shared.get("enable") if own.get("enable") is None else own.get("enable")
    claims = own.get("resourceClaimTemplateName") or shared.get("resourceClaimTemplateName")
    return PodPool(
        name=_name(found[0]),
        enabled=enabled is True,
        template=str(claims or names.CLAIM_TEMPLATE),
        isolations=isolation.pool_modes(found[0]),
        document=found[0],
    )


def is_by_settings(name: str, pools: Sequence[Item], published: AbstractSet[str]) -> bool:
    """Return True if a pod's nodes are in their pools by settings, whatever GPUPools there are.

    Pods have to get devices as nodes publish them. Example: node plugins with pool-source=settings
    publish `default`, and the cluster has the default GPUPool `prod` for Tensor Fusion's own
    scheduler. Then a pod may name `default`, and a pod that names none gets GPUs of every pool. A
    GPUPool that no node publishes may still get nodes, so a pod that names one waits.

    Args:
        name: The pool that the pod names; "" for none.
        pools: The cluster's GPUPools.
        published: The GPUPools that nodes publish.
    """
    known = set(map(_name, pools))
    if name:
        return name not in known and name in published
    return bool(published) and published.isdisjoint(known)


def _name(item: Item) -> str:
    return str(item["metadata"]["name"])
