"""Findings about this driver's objects in the cluster."""

import copy
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tensorfusion_dra.core.devices import slices
from tensorfusion_dra.core.doctor import objects
from tensorfusion_dra.core.doctor.finding import Finding, Level
from tensorfusion_dra.core.doctor.objects import Source
from tests.support import findings
from tests.support.builders.devices import NODE
from tests.support.builders.devices import published_devices as devices
from tests.support.builders.gpupools import gpupool_document
from tests.support.builders.gpus import gpus
from tests.support.findings import Expected

OK = (Level.OK, "")
CRDS = Path(__file__).parents[3] / "daemonset" / "chart" / "tensor-fusion-crds"


def definition(**spec: Any) -> dict[str, Any]:
    schema = {"openAPIV3Schema": {"properties": {"spec": spec}}}
    return {"spec": {"versions": [{"name": "v1", "schema": schema}]}}


@pytest.mark.parametrize("name", objects.DEFINITIONS)
def test_definition_keeps_the_field_that_turns_dra_on(name: str) -> None:
    ours = yaml.safe_load((CRDS / f"{name.partition('.')[0]}.yaml").read_text())
    lenient = definition(**{"x-kubernetes-preserve-unknown-fields": True})
    others = definition(properties={"qosConfig": {}})

    assert ours["metadata"]["name"] == name
    findings.check(objects.definition(name, ours), [OK])
    findings.check(objects.definition(name, lenient), [OK])
    dropped = f"has no spec.{objects.DEFINITIONS[name]}, so the API server drops it"
    findings.check(objects.definition(name, others), [(Level.NOTE, dropped)])
    findings.check(objects.definition(name, None), [])


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


def template_for_class(namespace: str, class_name: str) -> dict[str, Any]:
    exactly = {"deviceClassName": class_name}
    devices = {"requests": [{"name": "gpu-request", "exactly": exactly}]}
    return {"metadata": {"namespace": namespace}, "spec": {"spec": {"devices": devices}}}


SELECTS = f'device.driver == "{DRIVER}"'
GOOD = {"apiVersion": "tensor-fusion.ai/v1alpha1", "kind": "GpuShare", "isolation": "hard"}
CONFIG = [
    {"opaque": {"driver": DRIVER, "parameters": GOOD}},
    {"opaque": {"driver": "gpu.nvidia.com", "parameters": {"any": 1}}},
    {"opaque": {"driver": DRIVER, "parameters": {**GOOD, "isolation": "hardest"}}},
]
SUBREQUEST = {"firstAvailable": [{"name": "x", "deviceClassName": "tensor-fusion.ai"}]}
OF_SUBREQUEST = {
    "metadata": {"namespace": "a"},
    "spec": {"spec": {"devices": {"requests": [SUBREQUEST]}}},
}


def stored(count: int = 1) -> list[Any]:
    wanted = slices.wanted(devices(*gpus(count)), NODE, node_uid="uid")
    return [copy.deepcopy(dict(item)) for item in slices.plan(wanted, ()).create]


def exclusive() -> list[Any]:
    """A slice of two devices that cannot be shared."""
    (item,) = stored(2)
    for device in item["spec"]["devices"]:
        del device["allowMultipleAllocations"]
    return [item]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (objects.device_class(class_with_selectors(SELECTS)), [OK]),
        (objects.device_class(class_with_selectors("true", f"device.driver=='{DRIVER}'")), [OK]),
        (
            objects.device_class(class_with_selectors('device.driver == "gpu.nvidia.com"')),
            [(Level.WARNING, "do not name this driver")],
        ),
        (objects.device_class(class_with_selectors()), [(Level.WARNING, "selectors none")]),
        (objects.device_class(None), [(Level.PROBLEM, "not found")]),
        (
            objects.device_class(class_with_selectors(SELECTS, config=CONFIG)),
            [OK, (Level.PROBLEM, "config[2]: isolation: found 'hardest'")],
        ),
        (
            objects.templates(
                [template_for_class("a", "tensor-fusion.ai"), template_for_class("b", "other")],
                classes=["tensor-fusion.ai"],
            ),
            [OK, (Level.PROBLEM, "names DeviceClass other, which does not exist")],
        ),
        (objects.templates([OF_SUBREQUEST], classes=[]), [(Level.PROBLEM, "tensor-fusion.ai")]),
        (objects.templates([], classes=[]), [(Level.NOTE, "in no namespace")]),
        (objects.published(stored(2)), [(Level.OK, "1 on 1 nodes, with 2 dev")]),
        (objects.published([], node_name="a"), [(Level.PROBLEM, "of node a: none")]),
        (objects.published(stored(130)), [OK]),
        (objects.published([]), [(Level.PROBLEM, "none on any node")]),
        (
            objects.published(stored(130)[:1]),
            [(Level.WARNING, "the scheduler ignores an incomplete pool")],
        ),
        (objects.published(exclusive()), [(Level.PROBLEM, "2 of 2 cannot be shared")]),
    ],
)
def test_class_templates_and_slices(found: Iterable[Finding], expected: list[Expected]) -> None:
    findings.check(found, expected)


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


def test_missing_labels_are_named() -> None:
    (found,) = objects.pods(installed(), [node(), node()], has_runtime_class=True)

    assert found.found == (
        "no pods: none of 2 nodes has the labels kubernetes.io/os=linux and "
        "(nvidia.com/gpu.present=true or feature.node.kubernetes.io/pci-10de.present=true)"
    )


def test_pool_source_is_read_from_the_environment_of_the_pods() -> None:
    prefix = "TENSORFUSION_DRA_"
    chosen = installed(env={f"{prefix}POOL_SOURCE": "object", f"{prefix}GPUPOOL": "prod"})

    assert objects.pool_source(chosen) == Source(kind="object", gpupool="prod")
    assert objects.pool_source(installed()) == Source(kind="settings", gpupool="default")


def test_this_drivers_webhooks_are_recognized_by_their_domain() -> None:
    names = ("vpod.kb.io", "pods.dra.tensor-fusion.ai", "mpod-v1.kb.io.tensor-fusion.ai")
    others = {"webhooks": [{"name": name} for name in names]}
    ours = {"webhooks": [{"name": "claims.dra.tensor-fusion.ai"}]}

    assert objects.webhooks([others, {"webhooks": None}, ours]) == [
        names[1],
        ours["webhooks"][0]["name"],
    ]
