"""Findings about GPUPools: CRDs that turn DRA on, pools that nodes wait for, and other names."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tensorfusion_dra.core.doctor import pools
from tensorfusion_dra.core.doctor.finding import Level
from tests.support.builders.gpupools import gpupool_document

CRDS = Path(__file__).parents[3] / "daemonset" / "chart" / "tensor-fusion-crds"


def definition(**spec: Any) -> dict[str, Any]:
    schema = {"openAPIV3Schema": {"properties": {"spec": spec}}}
    return {"spec": {"versions": [{"name": "v1", "schema": schema}]}}


@pytest.mark.parametrize("name", pools.DEFINITIONS)
def test_projects_own_definitions_keep_the_field(name: str) -> None:
    stored = yaml.safe_load((CRDS / f"{name.partition('.')[0]}.yaml").read_text())

    assert stored["metadata"]["name"] == name
    assert [found.level for found in pools.definition(name, stored)] == [Level.OK]


@pytest.mark.parametrize("name", pools.DEFINITIONS)
def test_definition_that_drops_the_field_is_a_note(name: str) -> None:
    (found,) = pools.definition(name, definition(properties={"qosConfig": {}}))

    assert found.level is Level.NOTE
    assert f"has no spec.{pools.DEFINITIONS[name]}, so the API server drops it" in found.found
    assert "tensor-fusion.ai/dra-enabled" in found.expected


def test_definition_that_preserves_unknown_fields_keeps_the_field() -> None:
    stored = definition(**{"x-kubernetes-preserve-unknown-fields": True})

    for name in pools.DEFINITIONS:
        assert [found.level for found in pools.definition(name, stored)] == [Level.OK]


def test_cluster_without_tensor_fusion_has_no_findings() -> None:
    assert not [found for name in pools.DEFINITIONS for found in pools.definition(name, None)]


NODE = {"metadata": {"name": "node-01", "labels": {"tier": "prod"}}}


def selecting(value: str) -> dict[str, Any]:
    requirement = {"key": "tier", "operator": "In", "values": [value]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [requirement]}]}
    return gpupool_document("prod", nodeManagerConfig={"nodeSelector": terms})


@pytest.mark.parametrize(
    ("kind", "stored", "found"),
    [
        ("settings", None, None),
        ("node-labels", None, "the API server has no GPUPools"),
        ("node-labels", [], "node node-01: no GPUPool selects it"),
        ("node-labels", [selecting("test")], "node node-01: no GPUPool selects it"),
        ("node-labels", [selecting("prod")], None),
        ("object", [], "GPUPool prod: found none of this name"),
        ("object", [selecting("test")], None),
    ],
)
def test_missing_pool_is_named_as_the_cause_why_nothing_is_published(
    kind: str, stored: list[dict[str, Any]] | None, found: str | None
) -> None:
    cause = pools.awaited(pools.Source(kind=kind, gpupool="prod"), stored, [NODE])

    if found is None:
        assert cause is None
        return
    assert cause is not None
    assert (cause.level, cause.found.startswith(found)) == (Level.PROBLEM, True)
    for cure in ("crds.install", "nodeSelector", "pool-source=settings"):
        assert cure in cause.cure


@pytest.mark.parametrize(
    ("published", "objects", "levels"),
    [
        ("default", [], []),
        ("prod", ["prod"], []),
        ("default", ["prod"], [Level.WARNING]),
    ],
)
def test_pools_of_settings_beside_gpupools_of_other_names_are_a_warning(
    published: str, objects: list[str], levels: list[Level]
) -> None:
    stored = {"spec": {"pool": {"name": f"{published}/node-01"}}}

    found = list(pools.published([stored], [gpupool_document(name) for name in objects]))

    assert [each.level for each in found] == levels
    assert all(published in each.found and "prod" in each.found for each in found)
