"""Findings about GPUPools: their CustomResourceDefinitions, and the pools that nodes wait for."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.devices import device as devices
from tensorfusion_dra.core.devices import gpupool
from tensorfusion_dra.core.doctor.finding import Finding, note, ok, problem, warning
from tensorfusion_dra.core.errors import InputError
from tensorfusion_dra.core.kubernetes.node_selector import NodeLabels
from tensorfusion_dra.core.kubernetes.untyped_json import as_list, as_map

DEFINITIONS: Final = {
    f"{names.GPUPOOLS}.{names.TENSOR_FUSION_GROUP}": "draConfig",
    f"{names.SCHEDULING_CONFIG_TEMPLATES}.{names.TENSOR_FUSION_GROUP}": "dra",
}
"""The field of spec that turns DRA on, by CRD name. Tensor Fusion's own CRDs lack it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where node plugins take the GPUPool of their node from.

    Attributes:
        kind: Value of pool-source.
        gpupool: Value of gpupool.
    """

    kind: str
    gpupool: str


def awaited(
    source: Source, pools: Sequence[Mapping[str, Any]] | None, nodes: Sequence[Mapping[str, Any]]
) -> Finding | None:
    """Return why all of these nodes wait for a GPUPool and publish nothing; None if they do not.

    Args:
        source: The node plugins' settings.
        pools: The cluster's GPUPools; None if it does not have the kind.
        nodes: Node objects.
    """
    subject = f"GPUPool (pool-source={source.kind})"
    if source.kind == "settings":
        return None
    found = ""
    if pools is None:
        found = "the API server has no GPUPools: their CustomResourceDefinition is missing"
    else:
        for node in nodes:
            try:
                if source.kind == "object":
                    gpupool.parse(gpupool.named(pools, source.gpupool))
                else:
                    gpupool.parse(gpupool.choose(pools, NodeLabels.of(node)))
            except InputError as error:
                found = found or str(error)
            else:
                return None
    if not found:
        return None
    return problem(
        subject,
        f"{found}: the node plugin waits for it and publishes nothing",
        expected="a GPUPool of the node",
        cure=gpupool.CURE,
    )


def published(
    slices: Sequence[Mapping[str, Any]], pools: Sequence[Mapping[str, Any]]
) -> Iterator[Finding]:
    """Judge whether nodes are in pools by their settings, beside GPUPools of other names.

    Args:
        slices: This driver's slices of all nodes.
        pools: The cluster's GPUPools.
    """
    names_of_objects = {str(pool["metadata"]["name"]) for pool in pools}
    by_settings = devices.gpupools(slices) - names_of_objects
    if not names_of_objects or not by_settings:
        return
    yield warning(
        "GPUPools of the nodes",
        f"nodes publish {', '.join(sorted(by_settings))}, and the cluster's GPUPools are "
        f"{', '.join(sorted(names_of_objects))}",
        expected="the same names: a pod that names a GPUPool which no node publishes waits",
        cure="set pool-source=node-labels or object on the node plugins, so that their nodes are "
        "in these GPUPools; or have pods name what the nodes publish",
    )


def definition(name: str, stored: Mapping[str, Any] | None) -> Iterator[Finding]:
    """Judge a CustomResourceDefinition; yield nothing if the cluster has none.

    Args:
        name: One of DEFINITIONS.
    """
    if stored is None:
        return
    field = DEFINITIONS[name]
    subject = f"CustomResourceDefinition {name}"
    if all(
        _keeps(version, field) for version in as_list(as_map(stored.get("spec")).get("versions"))
    ):
        yield ok(subject, f"keeps spec.{field}")
        return
    yield note(
        subject,
        f"has no spec.{field}, so the API server drops it and no pool can turn DRA on by it",
        expected=f"pods that turn DRA on by the annotation {names.ANNOTATION_DRA_ENABLED}",
        cure="annotate the pods, or replace Tensor Fusion's own definition by "
        f"daemonset/chart/tensor-fusion-crds/{name.partition('.')[0]}.yaml",
    )


def _keeps(version: object, field: str) -> bool:
    found = as_map(as_map(version).get("schema"))
    for name in ("openAPIV3Schema", "properties", "spec"):
        found = as_map(found.get(name))
    keeps_unknown = found.get("x-kubernetes-preserve-unknown-fields") is True
    return keeps_unknown or field in as_map(found.get("properties"))
