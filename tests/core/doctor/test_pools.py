"""Findings about the CRDs by which GPUPools turn DRA on."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tensorfusion_dra.core.doctor import pools
from tensorfusion_dra.core.doctor.finding import Level

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
