"""Pods, nodes and events, limited to what claims and drivers need."""

import pytest

from tests.dra_simulator.api.client import (
    EVENTS,
    EVENTS_V1,
    MERGE,
    NODES,
    PODS,
    STRATEGIC,
    Client,
    Json,
)
from tests.support.builders.documents import pod_with_claim


def container(*claims: Json, name: str = "app") -> Json:
    return {"name": name, "image": "app", "resources": {"claims": list(claims)}}


def bind(api: Client, node: str = "node-a") -> int:
    body = {"metadata": {"name": "pod-a"}, "target": {"kind": "Node", "name": node}}
    return api.post(f"{PODS}/pod-a/binding", body).code


def test_a_new_pod_is_pending_with_defaults(api: Client) -> None:
    wanted = pod_with_claim()
    wanted["status"] = {"phase": "Running"}

    made = api.post(PODS, wanted).json

    assert made["status"] == {"phase": "Pending"}
    assert made["metadata"]["generation"] == 1
    assert made["spec"]["terminationGracePeriodSeconds"] == 30
    assert made["spec"]["schedulerName"] == "default-scheduler"


@pytest.mark.parametrize(
    ("spec", "cause", "text"),
    [
        (
            {"resourceClaims": []},
            ("spec.containers[0].resources.claims[0]", "NotFound"),
            'Not found: "gpu": must be one of the names in pod.spec.resourceClaims which is empty',
        ),
        (
            {"resourceClaims": [{"name": "gpu"}]},
            ("spec.resourceClaims[0]", "Invalid"),
            "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`",
        ),
        (
            {
                "resourceClaims": [
                    {"name": "gpu", "resourceClaimName": "a", "resourceClaimTemplateName": "b"}
                ]
            },
            ("spec.resourceClaims[0]", "Invalid"),
            "at most one of",
        ),
        (
            {"resourceClaims": [{"name": "gpu", "resourceClaimName": "a"}] * 2},
            ("spec.resourceClaims[1].name", "Duplicate"),
            "gpu",
        ),
        (
            {"containers": [container({"name": "gpu"}, {"name": "gpu", "request": "a"})]},
            ("spec.containers[0].resources.claims[1]", "Duplicate"),
            "gpu",
        ),
        (
            {"containers": [container({"name": "gpu", "request": "a"}, {"name": "gpu"})]},
            ("spec.containers[0].resources.claims[1]", "Duplicate"),
            "gpu",
        ),
        (
            {"containers": [container({"name": "gpu"}), container()]},
            ("spec.containers[1].name", "Duplicate"),
            "app",
        ),
        ({"containers": []}, ("spec.containers", "Required"), ""),
        ({"initContainers": [{"name": "init"}]}, ("spec.initContainers[0].image", "Required"), ""),
    ],
)
def test_a_pod_with_invalid_claims_or_containers_is_refused(
    api: Client, spec: Json, cause: tuple[str, str], text: str
) -> None:
    reply = api.post(PODS, pod_with_claim(**spec))

    assert reply.causes == [(cause[0], f"FieldValue{cause[1]}")]
    assert text in reply.message


def test_a_binding_puts_a_pod_on_a_node_once(api: Client) -> None:
    api.post(PODS, pod_with_claim())

    codes = [bind(api), bind(api, "node-b"), bind(api, "")]
    bound = api.get(f"{PODS}/pod-a").json

    assert codes == [201, 409, 500]
    assert bound["spec"]["nodeName"] == "node-a"
    assert bound["metadata"]["generation"] == 1
    assert [(c["type"], c["status"]) for c in bound["status"]["conditions"]] == [
        ("PodScheduled", "True")
    ]


def test_a_pod_update_can_change_images_and_tolerations_but_not_claims(api: Client) -> None:
    api.post(PODS, pod_with_claim())
    images = {"spec": {"containers": [{"name": "app", "image": "other"}], "tolerations": [{}]}}
    claims = {"spec": {"resourceClaims": [{"name": "gpu", "resourceClaimName": "other"}]}}

    assert api.patch(f"{PODS}/pod-a", images, STRATEGIC).code == 200
    assert api.patch(f"{PODS}/pod-a", claims, STRATEGIC).causes == [("spec", "FieldValueForbidden")]


def test_a_pod_status_may_name_only_claims_of_the_pod(api: Client) -> None:
    api.post(PODS, pod_with_claim())
    status = f"{PODS}/pod-a/status"

    fine = {"status": {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "x"}]}}
    wrong = {"status": {"resourceClaimStatuses": [{"name": "other"}]}}

    assert api.patch(status, fine).json["status"] == {"phase": "Pending", **fine["status"]}
    assert api.patch(status, wrong).causes == [
        ("status.resourceClaimStatuses[0].name", "FieldValueInvalid")
    ]


def test_a_deleted_pod_on_a_node_stays_until_it_is_deleted_without_grace(api: Client) -> None:
    api.post(PODS, pod_with_claim())
    bind(api)

    marked = api.delete(f"{PODS}/pod-a").json["metadata"]
    again = api.delete(f"{PODS}/pod-a").json["metadata"]
    sooner = api.delete(f"{PODS}/pod-a?gracePeriodSeconds=5").json["metadata"]
    there = api.get(f"{PODS}/pod-a").code
    gone = api.delete(f"{PODS}/pod-a", {"gracePeriodSeconds": 0}).json["metadata"]

    assert (marked["deletionGracePeriodSeconds"], marked["generation"]) == (30, 2)
    assert again == marked
    assert sooner["deletionGracePeriodSeconds"] == 5
    assert there == 200
    assert gone["deletionGracePeriodSeconds"] == 0
    assert api.get(f"{PODS}/pod-a").code == 404


def test_a_pod_in_deletion_cannot_be_bound(api: Client) -> None:
    waiting = pod_with_claim()
    waiting["metadata"]["finalizers"] = ["example.com/held"]
    api.post(PODS, waiting)
    api.delete(f"{PODS}/pod-a")

    assert bind(api) == 409


@pytest.mark.parametrize("phase", ["", "Succeeded", "Failed"])
def test_a_pod_that_is_unbound_or_finished_is_removed_at_once(api: Client, phase: str) -> None:
    api.post(PODS, pod_with_claim())
    if phase:
        bind(api)
        api.patch(f"{PODS}/pod-a/status", {"status": {"phase": phase}})

    api.delete(f"{PODS}/pod-a")

    assert api.get(f"{PODS}/pod-a").code == 404


def test_a_node_can_be_created_with_a_status_but_not_changed_with_one(api: Client) -> None:
    made = api.post(NODES, {"metadata": {"name": "n"}, "status": {"capacity": {"cpu": "1000m"}}})
    changed = api.patch(f"{NODES}/n", {"status": {"capacity": {"cpu": "2"}}}, MERGE)
    status = api.patch(f"{NODES}/n/status", {"status": {"capacity": {"cpu": "2"}}}, MERGE)

    assert made.json["status"]["capacity"] == {"cpu": "1"}
    assert changed.json["status"]["capacity"] == {"cpu": "1"}
    assert status.json["status"]["capacity"] == {"cpu": "2"}


def event(name: str = "event-a", **fields: object) -> Json:
    about = {"kind": "Pod", "name": "pod-a", "namespace": "default"}
    return {
        "metadata": {"name": name},
        "involvedObject": about,
        "reason": "Prepared",
        "message": "ready",
        "type": "Normal",
        "source": {"component": "test"},
        **fields,
    }


def test_an_event_must_be_in_the_namespace_of_its_object(api: Client) -> None:
    elsewhere = {"kind": "Pod", "name": "pod-a", "namespace": "other"}
    node = {"kind": "Node", "name": "node-a"}

    assert api.post(EVENTS, event()).code == 201
    assert api.post(EVENTS, event("event-b", involvedObject=node)).code == 201
    assert api.post(EVENTS, event("event-c", involvedObject=elsewhere)).causes == [
        ("involvedObject.namespace", "FieldValueInvalid")
    ]


def test_both_groups_of_events_serve_the_same_events(api: Client) -> None:
    api.post(EVENTS, event())

    shown = api.get(f"{EVENTS_V1}/event-a").json

    assert shown["apiVersion"] == "events.k8s.io/v1"
    assert (shown["note"], shown["regarding"]["name"]) == ("ready", "pod-a")
    assert shown["deprecatedSource"] == {"component": "test"}
    assert not {"message", "involvedObject", "source"} & set(shown)


def test_a_new_event_needs_time_reporter_and_action(api: Client) -> None:
    about = {"kind": "Pod", "name": "pod-a", "namespace": "default"}
    old = {"metadata": {"name": "e"}, "regarding": about, "type": "Normal", "note": "n"}
    new = {
        **old,
        "reason": "R",
        "action": "Prepare",
        "eventTime": "2026-01-01T00:00:00.123456Z",
        "reportingController": "tensor-fusion.ai/dra-driver",
        "reportingInstance": "node-a",
    }

    assert api.post(EVENTS_V1, old).causes == [("eventTime", "FieldValueRequired")]
    made = api.post(EVENTS_V1, new)
    assert (made.code, made.json["eventTime"]) == (201, new["eventTime"])
    assert api.get(f"{EVENTS}/e").json["reportingComponent"] == "tensor-fusion.ai/dra-driver"
    lacking = api.post(EVENTS_V1, {**new, "action": "", "metadata": {"name": "f"}})
    assert lacking.causes == [("action", "FieldValueRequired")]


def test_a_container_can_use_two_requests_of_one_claim(api: Client) -> None:
    uses = [{"name": "gpu", "request": "a"}, {"name": "gpu", "request": "b"}]

    assert api.post(PODS, pod_with_claim(containers=[container(*uses)])).code == 201
