"""Settings of a GPUPool for its pods: use of DRA, claim template, physical or virtual amounts."""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims import isolation
from tensorfusion_dra.core.devices import gpupool
from tensorfusion_dra.core.devices.gpu import Isolation
from tensorfusion_dra.core.errors import InputError
from tensorfusion_dra.core.kubernetes import review
from tensorfusion_dra.core.kubernetes.untyped_json import as_map

Item = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class DraPool:
    """A GPUPool's settings for its pods.

    Attributes:
        name: Name of the GPUPool; "" for pods without one.
        enabled: True if its pods use DRA unless their annotations say otherwise.
        template: Name of their ResourceClaimTemplate.
        isolations: Isolation modes that the pool may set for its nodes.
    """

    name: str = ""
    enabled: bool = False
    template: str = names.CLAIM_TEMPLATE
    isolations: frozenset[Isolation] = frozenset()


def choose(pools: Sequence[Item], name: str) -> Item | None:
    """Return the pool of this name, or the default pool if the name is "".

    Return None if there are no GPUPools; the pools of nodes then come from their settings.

    Raises:
        InputError: No pool has this name; or none is named, and not exactly one is the default.
    """
    if not pools:
        return None
    if name:
        try:
            return gpupool.named(pools, name)
        except InputError as error:
            known = ", ".join(sorted(map(_name, pools))[:10])
            raise InputError(f"found {name!r}, expected a GPUPool such as {known}") from error
    default = [
        pool
        for pool in pools
        if review.annotations_of(pool).get(names.ANNOTATION_DEFAULT_POOL) == "true"
    ]
    if len(default) == 1:
        return default[0]
    if default:
        found = ", ".join(sorted(map(_name, default)))
        raise InputError(f"found no name and the defaults {found}, expected one default GPUPool")
    raise InputError("found no name and no default GPUPool, expected the name of a GPUPool")


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


def parse(pool: Item, templates: Iterable[Item]) -> DraPool:
    """Return a GPUPool's settings for its pods.

    The pool's own draConfig takes precedence over the SchedulingConfigTemplate that it names. The
    CRDs of Tensor Fusion have neither field, so the API server drops them; those of the chart
    have both.
    """
    spec = as_map(pool.get("spec"))
    own = as_map(spec.get("draConfig"))
    shared: Mapping[str, object] = {}
    for template in templates:
        if _name(template) == spec.get("schedulingConfigTemplate"):
            shared = as_map(as_map(template.get("spec")).get("dra"))
    enabled = shared.get("enable") if own.get("enable") is None else own.get("enable")
    name = own.get("resourceClaimTemplateName") or shared.get("resourceClaimTemplateName")
    return DraPool(
        name=_name(pool),
        enabled=enabled is True,
        template=str(name or names.CLAIM_TEMPLATE),
        isolations=isolation.pool_modes(pool),
    )


def divides_virtual(pool: Item) -> bool:
    """Return True if tenants divide the virtual amounts of its cards, not the physical ones.

    Raises:
        InputError: The pool has a malformed value.
    """
    return gpupool.parse(pool).oversubscription is not None


def _name(item: Item) -> str:
    return str(item["metadata"]["name"])
