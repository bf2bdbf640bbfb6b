"""What the verb `why` finds about a pod that waits, and about its cards."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tensorfusion_dra.app.why import diagnosis, observed
from tensorfusion_dra.cluster.api import Api
from tensorfusion_dra.cluster.cluster_lists import ClusterLists
from tensorfusion_dra.core import names
from tensorfusion_dra.core.finding import Level
from tests.support import canned_api
from tests.support.builders.pods import pod_annotations
from tests.support.objects import Json, claim, exactly, pod

OURS = exactly(deviceClassName=names.DEVICE_CLASS, count=2)
KEPT = exactly(deviceClassName=names.DEVICE_CLASS, capacity={"vram": "1Gi"})
NOTHING = observed.Observed(nodes=(), slices=(), classes=(), claims=())
NETWORK_CARD = exactly(deviceClassName="nic.example.com")


def test_claim_without_the_amounts_of_its_pod() -> None:
    annotated = pod()
    annotated["metadata"]["annotations"] = pod_annotations(vram_request="1Gi")

    asked = ((annotated, OURS), (annotated, KEPT), (pod(), OURS), (annotated, NETWORK_CARD))

    found = [[*diagnosis.dropped_amounts(each, claim(wanted))] for each, wanted in asked]

    assert "DRAConsumableCapacity" in found[0][0].expected
    assert list(map(len, found)) == [1, 0, 0, 0]


@pytest.mark.parametrize(
    ("limits", "class_spec", "allocatable", "expected"),
    [
        ({"example.com/gpu": "1"}, {}, {}, ["extended resource example.com/gpu"]),
        ({"example.com/gpu": "1"}, {"extendedResourceName": "example.com/gpu"}, {}, []),
        ({"example.com/gpu": "1"}, {}, {"example.com/gpu": "8"}, []),
        (
            {"example.com/gpu": "1"},
            {},
            {"example.com/gpu": "0"},
            ["extended resource example.com/gpu"],
        ),
        ({"deviceclass.resource.kubernetes.io/gpus": "1"}, {}, {}, []),
        (
            {"deviceclass.resource.kubernetes.io/none": "1"},
            {},
            {},
            ["extended resource deviceclass.resource.kubernetes.io/none"],
        ),
        ({"cpu": "1", "hugepages-2Mi": "2Mi", "example.com/gpu": "0"}, {}, {}, []),
    ],
)
def test_extended_resource_needs_a_class_or_a_device_plugin(
    limits: Json, class_spec: Json, allocatable: Json, expected: list[str]
) -> None:
    asking = pod()
    asking["spec"]["containers"][0]["resources"] = {"limits": limits}
    classes = [{"metadata": {"name": "gpus"}, "spec": class_spec}]
    nodes = [{"metadata": {"name": "n"}, "status": {"allocatable": allocatable}}]

    cluster = replace(NOTHING, classes=classes, nodes=nodes)
    found = diagnosis.unknown_resources(asking, cluster)

    assert [each.subject for each in found] == expected


@pytest.mark.parametrize(
    ("name", "levels"),
    [("", []), ("mine", [Level.NOTE]), ("tensor-fusion-scheduler", [Level.PROBLEM])],
)
def test_schedulers(name: str, levels: list[Level]) -> None:
    document = pod()
    document["spec"]["schedulerName"] = name

    assert [found.level for found in diagnosis.other_scheduler(document)] == levels


def test_pod_with_a_node_and_a_claim_that_no_scheduler_allocates() -> None:
    with_claim, without = pod(claim_name="a"), pod()
    with_claim["spec"]["nodeName"] = without["spec"]["nodeName"] = "node-01"

    (found,) = diagnosis.halted(with_claim, NOTHING)

    said = "node-01, so no scheduler allocates the pod's claims"
    assert (found.subject, found.found) == ("spec.nodeName", said)
    assert "kubernetes.io/hostname: node-01" in found.remedy
    assert [*diagnosis.halted(without, NOTHING), *diagnosis.halted(pod(), NOTHING)] == []


def test_the_newest_event_of_a_failure_is_quoted() -> None:
    combined = "(combined from similar events): exceeded quota"
    events = [
        {"reason": "Old", "message": "no", "lastTimestamp": "2026-01-01T00:00:01Z"},
        {"reason": "New", "message": combined, "lastTimestamp": "2026-01-01T00:00:02Z"},
        {"reason": "Undated", "message": "no"},
    ]

    assert observed.newest_failure(events) == "New: exceeded quota"
    assert observed.newest_failure([]) == ""


@pytest.mark.parametrize(
    ("name", "classes", "remedy"),
    [
        ("absent", ["b", "a"], "correct deviceClassName; the cluster has a, b"),
        (
            *("absent", [f"c{number}" for number in range(8)]),
            "correct deviceClassName; the cluster has c0, c1, c2, c3, c4 and 3 more",
        ),
        ("absent", [], "correct deviceClassName; the cluster has none"),
        (names.DEVICE_CLASS, [], "install the driver's DeviceClass"),
    ],
)
def test_a_missing_class_is_installed_or_one_that_exists_is_named(
    name: str, classes: list[str], remedy: str
) -> None:
    (found,) = diagnosis.missing_classes([claim(exactly(deviceClassName=name))], classes)

    assert (found.subject, found.found) == (f"DeviceClass {name}", "not found")
    assert found.remedy.startswith(remedy)


GROUP = "/apis/resource.k8s.io"
TAINT = {"key": "maintenance", "effect": "NoExecute"}
SLICE = {"spec": {"driver": "mine", "pool": {"name": "p"}, "devices": [{"name": "a"}]}}
RULES = {"items": [{"spec": {"deviceSelector": {"driver": "mine"}, "taint": TAINT}}]}


@pytest.mark.parametrize(
    ("version", "release", "rules", "found_taints"),
    [
        ({"gitVersion": "v1.36.2"}, 36, RULES, []),
        ({"gitVersion": "v1.37.2"}, 37, RULES, [TAINT]),
        ({"gitVersion": "v1.39.0"}, 38, RULES, [TAINT]),
        ({"gitVersion": "v1.38.0", "emulationMinor": "37"}, 37, RULES, [TAINT]),
        ({"gitVersion": "v1.37.2"}, 37, (403, "no"), []),
    ],
    ids=["1.36", "1.37", "newer", "emulated", "without the right"],
)
def test_release_of_the_allocation_and_taints_of_rules(
    tmp_path: Path, version: dict[str, str], release: int, rules: Any, found_taints: list[Any]
) -> None:
    answers = {
        "GET /version": version,
        f"GET {GROUP}/v1/resourceslices": {"items": [SLICE]},
        f"GET {GROUP}/v1/devicetaintrules": rules,
    }
    with canned_api.served(answers) as server:
        lists = ClusterLists(Api(server.kubeconfig(tmp_path / "kubeconfig")))

        found = observed.read(lists, "default")
        overridden = observed.read(ClusterLists(lists.api, release=36), "default")

    assert overridden.release == 36
    (device,) = found.slices[0]["spec"]["devices"]
    assert found.release == release
    assert device.get("taints", []) == found_taints
    unreadable = [] if rules == RULES else ["DeviceTaintRules (no right to list them)"]
    assert found.unreadable == unreadable
