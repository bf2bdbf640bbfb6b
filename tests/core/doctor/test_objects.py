"""Findings about this driver's objects in the cluster."""

import copy
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tensorfusion_dra.core.devices import slices
from tensorfusion_dra.core.doctor import objects
from tensorfusion_dra.core.doctor.finding import Level
from tensorfusion_dra.core.doctor.objects import Source
from tests.support.builders.devices import NODE
from tests.support.builders.devices import published_devices as devices
from tests.support.builders.gpupools import gpupool_document
from tests.support.builders.gpus import gpus

CRDS = Path(__file__).parents[3] / "daemonset" / "chart" / "tensor-fusion-crds"


def definition(**spec: Any) -> dict[str, Any]:
    schema = {"openAPIV3Schema": {"properties": {"spec": spec}}}
    return {"spec": {"versions": [{"name": "v1", "schema": schema}]}}


@pytest.mark.parametrize("name", objects.DEFINITIONS)
def test_projects_own_definitions_keep_the_field(name: str) -> None:
    stored = yaml.safe_load((CRDS / f"{name.partition('.')[0]}.yaml").read_text())

    assert stored["metadata"]["name"] == name
    assert [found.level for found in objects.definition(name, stored)] == [Level.OK]


@pytest.mark.parametrize("name", objects.DEFINITIONS)
def test_definition_that_drops_the_field_is_a_note(name: str) -> None:
    (found,) = objects.definition(name, definition(properties={"qosConfig": {}}))

    assert found.level is Level.NOTE
    assert f"has no spec.{objects.DEFINITIONS[name]}, so the API server drops it" in found.found
    assert "tensor-fusion.ai/dra-enabled" in found.expected


def test_definition_that_preserves_unknown_fields_keeps_the_field() -> None:
    stored = definition(**{"x-kubernetes-preserve-unknown-fields": True})

    for name in objects.DEFINITIONS:
        assert [found.level for found in objects.definition(name, stored)] == [Level.OK]


def test_cluster_without_tensor_fusion_has_no_findings() -> None:
    assert not [found for name in objects.DEFINITIONS for found in objects.definition(name, None)]


PROD_NODE = {"metadata": {"name": "node-01", "labels": {"tier": "prod"}}}


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
    cause = objects.awaited_pool(objects.Source(kind=kind, gpupool="prod"), stored, [PROD_NODE])

    if found is None:
        assert cause is None
        return
    assert cause is not None
    assert (cause.level, cause.found.startswith(found)) == (Level.PROBLEM, True)
    for cure in ("crds.install", "nodeSelector", "pool-source=settings"):
        assert cure in cause.cure


@pytest.mark.parametrize(
    ("published", "stored_pools", "levels"),
    [
        ("default", [], []),
        ("prod", ["prod"], []),
        ("default", ["prod"], [Level.WARNING]),
    ],
)
def test_pools_of_settings_beside_gpupools_of_other_names_are_a_warning(
    published: str, stored_pools: list[str], levels: list[Level]
) -> None:
    stored = {"spec": {"pool": {"name": f"{published}/node-01"}}}

    found = list(
        objects.published_pools([stored], [gpupool_document(name) for name in stored_pools])
    )

    assert [each.level for each in found] == levels
    assert all(published in each.found and "prod" in each.found for each in found)


DRIVER = "tensor-fusion.ai.dra-driver"


def class_with_selectors(*expressions: str, config: list[Any] | None = None) -> dict[str, Any]:
    selectors = [{"cel": {"expression": text}} for text in expressions]
    return {"spec": {"selectors": selectors, "config": config or []}}


@pytest.mark.parametrize(
    ("stored", "level"),
    [
        (class_with_selectors(f'device.driver == "{DRIVER}"'), Level.OK),
        (class_with_selectors("true", f"device.driver=='{DRIVER}'"), Level.OK),
        (class_with_selectors('device.driver == "gpu.nvidia.com"'), Level.WARNING),
        (class_with_selectors(), Level.WARNING),
        (None, Level.PROBLEM),
    ],
)
def test_class_must_exist_and_select_this_driver(
    stored: dict[str, Any] | None, level: Level
) -> None:
    (finding,) = objects.device_class(stored)

    assert finding.level is level


def test_malformed_parameters_are_a_problem() -> None:
    good = {"apiVersion": "tensor-fusion.ai/v1alpha1", "kind": "GpuShare", "isolation": "hard"}
    config = [
        {"opaque": {"driver": DRIVER, "parameters": good}},
        {"opaque": {"driver": "gpu.nvidia.com", "parameters": {"any": 1}}},
        {"opaque": {"driver": DRIVER, "parameters": {**good, "isolation": "hardest"}}},
    ]
    stored = class_with_selectors(f'device.driver == "{DRIVER}"', config=config)

    fine, wrong = objects.device_class(stored)

    assert (fine.level, wrong.level) == (Level.OK, Level.PROBLEM)
    assert "config[2]" in wrong.subject
    assert "hardest" in wrong.found


def template_for_class(namespace: str, class_name: str) -> dict[str, Any]:
    exactly = {"deviceClassName": class_name}
    devices = {"requests": [{"name": "gpu-request", "exactly": exactly}]}
    return {"metadata": {"namespace": namespace}, "spec": {"spec": {"devices": devices}}}


def test_templates_must_name_existing_classes() -> None:
    stored = [
        template_for_class("a", "tensor-fusion.ai"),
        template_for_class("b", "tensor-fusion-gpu"),
    ]

    fine, wrong = objects.templates(stored, classes=["tensor-fusion.ai"])

    assert (fine.level, wrong.level) == (Level.OK, Level.PROBLEM)
    assert "tensor-fusion-gpu" in wrong.found


def test_classes_of_subrequests_are_checked_too() -> None:
    stored = template_for_class("a", "tensor-fusion.ai")
    (request,) = stored["spec"]["spec"]["devices"]["requests"]
    request["firstAvailable"] = [{"name": "x", **request.pop("exactly")}]

    assert [f.level for f in objects.templates([stored], classes=[])] == [Level.PROBLEM]


def test_missing_template_is_only_a_note() -> None:
    (finding,) = objects.templates([], classes=[])

    assert finding.level is Level.NOTE


LABEL: Final = "nvidia.com/gpu.present"
LINUX: Final = {"kubernetes.io/os": "linux"}


def term(key: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": "In", "values": ["true"]}]}


def installed(wanted: int = 0, there: int = 0, env: dict[str, str] | None = None) -> dict[str, Any]:
    terms = [term(LABEL), term("feature.node.kubernetes.io/pci-10de.present")]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return {
        "metadata": {"namespace": "tensorfusion-dra", "name": "node-plugin"},
        "spec": {
            "template": {
                "spec": {
                    "runtimeClassName": "nvidia",
                    "nodeSelector": LINUX,
                    "affinity": {"nodeAffinity": required},
                    "containers": [
                        {
                            "env": [
                                {"name": name, "value": value}
                                for name, value in (env or {}).items()
                            ]
                        }
                    ],
                }
            }
        },
        "status": {"desiredNumberScheduled": wanted, "currentNumberScheduled": there},
    }


def node(**labels: str) -> dict[str, Any]:
    return {"metadata": {"name": "node-01", "labels": {**LINUX, **labels}}}


@pytest.mark.parametrize(
    ("wanted", "there", "labels", "has_class", "subjects"),
    [
        (1, 1, {LABEL: "true"}, True, ["DaemonSet tensorfusion-dra/node-plugin"]),
        (0, 0, {}, True, ["DaemonSet tensorfusion-dra/node-plugin"]),
        (0, 0, {}, False, ["RuntimeClass nvidia", "DaemonSet tensorfusion-dra/node-plugin"]),
        (1, 0, {LABEL: "true"}, False, ["RuntimeClass nvidia"]),
        (1, 0, {LABEL: "true"}, True, ["DaemonSet tensorfusion-dra/node-plugin"]),
    ],
)
def test_daemonset_without_pods_is_a_problem_with_what_it_lacks(
    wanted: int, there: int, labels: dict[str, str], has_class: bool, subjects: list[str]
) -> None:
    found = list(
        objects.pods(installed(wanted, there), [node(**labels)], has_runtime_class=has_class)
    )

    assert [each.subject for each in found] == subjects
    assert {each.level for each in found} == {Level.OK if there else Level.PROBLEM}


def test_missing_label_is_named_with_the_command_that_sets_it() -> None:
    (found,) = objects.pods(installed(), [node(), node()], has_runtime_class=True)

    assert found.found == (
        "no pods: none of 2 nodes has the labels kubernetes.io/os=linux and "
        "(nvidia.com/gpu.present=true or feature.node.kubernetes.io/pci-10de.present=true)"
    )
    assert found.cure.startswith("kubectl label node NODE nvidia.com/gpu.present=true, or set ")


def test_pool_source_is_read_from_the_environment_of_the_pods() -> None:
    prefix = "TENSORFUSION_DRA_"
    chosen = installed(env={f"{prefix}POOL_SOURCE": "object", f"{prefix}GPUPOOL": "prod"})

    assert objects.pool_source(chosen) == Source(kind="object", gpupool="prod")
    assert objects.pool_source(installed()) == Source(kind="settings", gpupool="default")


def stored(count: int = 1) -> list[Any]:
    wanted = slices.wanted(devices(*gpus(count)), NODE, node_uid="uid")
    return [copy.deepcopy(dict(item)) for item in slices.plan(wanted, ()).create]


def levels(found: list[Any], nodes: tuple[str, ...] = ("node-01",)) -> list[Level]:
    return [finding.level for finding in objects.slices_of_cluster(found, nodes=nodes)]


def test_slices_of_the_driver_are_fine() -> None:
    (finding,) = objects.slices_of_node(stored(2), node_name="node-01")

    assert (finding.level, finding.found) == (Level.OK, "1 on 1 nodes, with 2 devices")
    assert levels(stored(130)) == [Level.OK]


def test_missing_slices_are_a_problem_for_a_node_and_for_a_cluster() -> None:
    (of_node,) = objects.slices_of_node([], node_name="node-01")

    assert of_node.level is Level.PROBLEM
    assert "node-01" in of_node.subject
    assert levels([]) == [Level.PROBLEM]


def test_incomplete_pool_is_a_warning() -> None:
    assert levels(stored(130)[:1]) == [Level.WARNING]


def test_devices_without_allow_multiple_allocations_are_a_problem() -> None:
    (item,) = stored(2)
    for device in item["spec"]["devices"]:
        del device["allowMultipleAllocations"]

    (finding,) = objects.slices_of_cluster([item], nodes=["node-01"])

    assert finding.level is Level.PROBLEM
    assert finding.found.startswith("2 of 2 cannot be shared")


def test_slice_without_owner_or_of_a_missing_node_is_a_warning() -> None:
    (item,) = stored()
    item["metadata"]["ownerReferences"] = []

    assert levels([item]) == [Level.WARNING]
    assert levels(stored(), nodes=()) == [Level.WARNING]
