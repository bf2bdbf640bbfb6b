"""Findings about the CustomResourceDefinitions by which GPUPools can turn DRA on."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.doctor.finding import Finding, note, ok
from tensorfusion_dra.core.kubernetes.untyped_json import as_list, as_map

DEFINITIONS: Final = {
    f"{names.GPUPOOLS}.{names.TENSOR_FUSION_GROUP}": "draConfig",
    f"{names.SCHEDULING_CONFIG_TEMPLATES}.{names.TENSOR_FUSION_GROUP}": "dra",
}
"""The field of spec that turns DRA on, by CRD name. Tensor Fusion's own CRDs lack it."""


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
