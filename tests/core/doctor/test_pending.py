"""Findings about a pod that waits."""

import pytest

from tensorfusion_dra.core import names
from tensorfusion_dra.core.doctor import pending
from tensorfusion_dra.core.doctor.finding import Level
from tests.support.builders.pods import pod_annotations
from tests.support.objects import Json, claim, exactly, pod

OURS = exactly(deviceClassName=names.DEVICE_CLASS, count=2)


def quota(resource: str, *, hard: str, used: str) -> Json:
    status = {"hard": {resource: hard}, "used": {resource: used}}
    return {"metadata": {"name": "team"}, "status": status}


def test_quota_of_a_device_class_without_room_for_a_claim() -> None:
    devices = f"{names.DEVICE_CLASS}.deviceclass.resource.k8s.io/devices"
    full = quota(devices, hard="4", used="3")

    (found,) = pending.full_quotas([full], [claim(OURS)], created=True)

    assert found.found == f"{devices}: 3 of 4 used, 2 more needed"


def test_quota_with_room_is_no_finding() -> None:
    roomy = [
        quota("count/resourceclaims.resource.k8s.io", hard="4", used="3"),
        quota("requests.cpu", hard="1", used="1"),
    ]

    assert list(pending.full_quotas(roomy, [claim(OURS)], created=True)) == []


def test_quota_of_pods_counts_for_a_pod_that_is_not_created() -> None:
    full = quota("pods", hard="4", used="4")

    assert list(pending.full_quotas([full], [], created=True)) == []
    assert len(list(pending.full_quotas([full], [], created=False))) == 1


def test_quota_with_scopes_may_not_count_this_pod() -> None:
    full = quota("pods", hard="0", used="0")
    of_class = {"operator": "In", "scopeName": "PriorityClass", "values": ["critical"]}
    full["spec"] = {"scopeSelector": {"matchExpressions": [of_class]}}

    assert list(pending.full_quotas([full], [], created=False)) == []


def test_claim_without_the_amounts_of_its_pod() -> None:
    annotated = pod()
    annotated["metadata"]["annotations"] = pod_annotations(vram_request="1Gi")
    kept = claim(exactly(deviceClassName=names.DEVICE_CLASS, capacity={"vram": "1Gi"}))
    network_card = claim(exactly(deviceClassName="nic.example.com"))

    (found,) = pending.dropped_amounts(annotated, claim(OURS))

    assert "DRAConsumableCapacity" in found.expected
    assert list(pending.dropped_amounts(annotated, kept)) == []
    assert list(pending.dropped_amounts(pod(), claim(OURS))) == []
    assert list(pending.dropped_amounts(annotated, network_card)) == []


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

    found = pending.unknown_resources(asking, classes, nodes)

    assert [each.subject for each in found] == expected


def test_schedulers() -> None:
    levels = {}
    for name in ("", "mine", names.TENSOR_FUSION_SCHEDULER):
        document = pod()
        document["spec"]["schedulerName"] = name
        levels[name] = [found.level for found in pending.other_scheduler(document)]

    assert levels == {"": [], "mine": [Level.NOTE], "tensor-fusion-scheduler": [Level.PROBLEM]}


def test_failed_creation_of_a_claim_shows_the_newest_events_text() -> None:
    events: list[Json] = [
        {"reason": "Scheduled", "message": "no"},
        {
            "reason": "FailedResourceClaimCreation",
            "message": "exceeded quota: team",
            "lastTimestamp": "2026-01-01T00:00:02Z",
        },
        {
            "reason": "FailedResourceClaimCreation",
            "message": "template not found",
            "lastTimestamp": "2026-01-01T00:00:01Z",
        },
    ]

    assert pending.claim_not_created("t", events=events).found == (
        "not created: exceeded quota: team"
    )
    assert pending.claim_not_created("t", events=None).found == "not created yet"


def test_pod_that_is_being_deleted() -> None:
    document = pod()
    document["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"

    document["metadata"]["finalizers"] = ["example.com/job"]

    (found,) = pending.halted(document)

    assert found.found == "is being deleted, with the deadline 2026-01-01T00:00:00Z"
    assert found.cure.endswith("it waits for its finalizers: example.com/job")
    assert list(pending.halted(pod())) == []


def test_pod_with_a_node_and_a_claim_that_no_scheduler_allocates() -> None:
    with_claim, without = pod(claim_name="a"), pod()
    with_claim["spec"]["nodeName"] = without["spec"]["nodeName"] = "node-01"

    (found,) = pending.halted(with_claim)

    assert found.subject == "spec.nodeName"
    assert found.found == "node-01, so no scheduler allocates the pod's claims"
    assert "kubernetes.io/hostname: node-01" in found.cure
    assert list(pending.halted(without)) == []


def test_silent_webhook_that_is_installed() -> None:
    ours = {"webhooks": [{"name": "pods.dra.tensor-fusion.ai"}]}
    other = {"webhooks": [{"name": "pods.example.com"}]}

    assert "gave it no claim" in pending.no_claim([ours]).found
    assert "is not installed" in pending.no_claim([other]).found
    assert "is not installed" not in pending.no_claim(None).found


def node_event(
    reason: str, time: str, *, kind: str = "Warning", component: str = "kubelet"
) -> Json:
    return {
        "type": kind,
        "reason": reason,
        "message": f"(combined from similar events): {reason} happened",
        "source": {"component": component},
        "lastTimestamp": time,
    }


def test_the_newest_failure_on_the_node_is_why_a_pod_does_not_start() -> None:
    events = [
        node_event("FailedMount", "2026-01-01T00:00:01Z"),
        node_event("FailedPrepareDynamicResources", "2026-01-01T00:00:03Z"),
        node_event("Pulled", "2026-01-01T00:00:04Z", kind="Normal"),
        node_event("FailedScheduling", "2026-01-01T00:00:05Z", component="default-scheduler"),
    ]

    assert pending.start_trouble(events) == (
        "FailedPrepareDynamicResources: FailedPrepareDynamicResources happened"
    )
    assert pending.start_trouble(events[2:]) == ""
    assert pending.start_trouble(None) == ""


def test_an_event_that_stands_for_several_is_quoted_without_saying_so() -> None:
    events = [node_event("FailedResourceClaimCreation", "", component="resource_claim")]

    found = pending.claim_not_created("t", events=events).found

    assert found == "not created: FailedResourceClaimCreation happened"


def test_a_missing_class_is_listed_with_those_that_exist() -> None:
    (few,) = pending.missing_classes([claim(exactly(deviceClassName="absent"))], ["b", "a"])
    (many,) = pending.missing_classes(
        [claim(exactly(deviceClassName="absent"))], [f"c{n}" for n in range(8)]
    )
    (none,) = pending.missing_classes([claim(exactly(deviceClassName="absent"))], [])

    assert few.cure == "correct deviceClassName; the cluster has a, b"
    assert many.cure == "correct deviceClassName; the cluster has c0, c1, c2, c3, c4 and 3 more"
    assert none.cure == "correct deviceClassName; the cluster has none"
