"""Pods, nodes and events, limited to what claims and drivers need."""

from typing import Final

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
    with_metadata,
)
from tests.support.builders.documents import event_document, pod_with_claim

POD: Final = f"{PODS}/pod-a"


def container(*claims: Json, name: str = "app") -> Json:
    return {"name": name, "image": "app", "resources": {"claims": list(claims)}}


def bind(api: Client, node: str = "node-a") -> int:
    body = {"metadata": {"name": "pod-a"}, "target": {"kind": "Node", "name": node}}
    return api.post(f"{POD}/binding", body).code


def test_a_new_pod_is_pending_with_defaults(api: Client) -> None:
    made = api.post(PODS, {**pod_with_claim(), "status": {"phase": "Running"}}).json

    assert (made["status"], made["metadata"]["generation"]) == ({"phase": "Pending"}, 1)
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
        *(
            (
                {"resources": {kind: {"cpu": "1", "hugepages-2Mi": "2Mi", "cpu.a/b": "1"}}},
                (f"spec.resources.{kind}[cpu.a/b]", "NotSupported"),
                'Unsupported value: "cpu.a/b": supported values: "cpu", "hugepages-", "memory"',
            )
            for kind in ("limits", "requests")
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

    assert [bind(api), bind(api, "node-b"), bind(api, "")] == [201, 409, 500]

    bound = api.get(POD).json
    (condition,) = bound["status"]["conditions"]
    assert (condition["type"], condition["status"]) == ("PodScheduled", "True")
    assert (bound["spec"]["nodeName"], bound["metadata"]["generation"]) == ("node-a", 1)


def test_a_pod_update_can_change_images_and_tolerations_but_not_claims(api: Client) -> None:
    api.post(PODS, pod_with_claim())
    images = {"spec": {"containers": [{"name": "app", "image": "other"}], "tolerations": [{}]}}
    claims = {"spec": {"resourceClaims": [{"name": "gpu", "resourceClaimName": "other"}]}}

    assert api.patch(POD, images, STRATEGIC).code == 200
    assert api.patch(POD, claims, STRATEGIC).causes == [("spec", "FieldValueForbidden")]


def test_a_pod_status_may_name_only_claims_of_the_pod(api: Client) -> None:
    api.post(PODS, pod_with_claim())

    fine, wrong = (
        api.patch(f"{POD}/status", {"status": {"resourceClaimStatuses": [{"name": name}]}})
        for name in ("gpu", "other")
    )

    expected = {"phase": "Pending", "resourceClaimStatuses": [{"name": "gpu"}]}
    assert fine.json["status"] == expected
    assert wrong.causes == [("status.resourceClaimStatuses[0].name", "FieldValueInvalid")]


def test_a_deleted_pod_on_a_node_stays_until_it_is_deleted_without_grace(api: Client) -> None:
    api.post(PODS, pod_with_claim())
    bind(api)

    marked, again, sooner, gone = (
        api.delete(POD, {"gracePeriodSeconds": seconds} if seconds is not None else None)
        for seconds in (None, None, 5, 0)
    )

    assert (marked.json["metadata"]["generation"], again.json) == (2, marked.json)
    assert [
        reply.json["metadata"]["deletionGracePeriodSeconds"] for reply in (marked, sooner, gone)
    ] == [30, 5, 0]
    assert api.get(POD).code == 404


def test_a_pod_in_deletion_cannot_be_bound(api: Client) -> None:
    api.post(PODS, with_metadata(pod_with_claim(), finalizers=["example.com/held"]))
    api.delete(f"{POD}?gracePeriodSeconds=5")

    assert bind(api) == 409


@pytest.mark.parametrize("phase", ["", "Succeeded", "Failed"])
def test_a_pod_that_is_unbound_or_finished_is_removed_at_once(api: Client, phase: str) -> None:
    api.post(PODS, pod_with_claim())
    if phase:
        bind(api)
        api.patch(f"{POD}/status", {"status": {"phase": phase}})

    api.delete(POD)

    assert api.get(POD).code == 404


def test_a_node_can_be_created_with_a_status_but_not_changed_with_one(api: Client) -> None:
    change = {"status": {"capacity": {"cpu": "2"}}}

    replies = [
        api.post(NODES, {"metadata": {"name": "n"}, "status": {"capacity": {"cpu": "1000m"}}}),
        api.patch(f"{NODES}/n", change, MERGE),
        api.patch(f"{NODES}/n/status", change, MERGE),
    ]

    assert [reply.json["status"]["capacity"]["cpu"] for reply in replies] == ["1", "1", "2"]


def test_an_event_must_be_in_the_namespace_of_its_object(api: Client) -> None:
    node = {"kind": "Node", "name": "node-a"}
    elsewhere = {"kind": "Pod", "name": "pod-a", "namespace": "other"}

    assert api.post(EVENTS, event_document()).code == 201
    assert api.post(EVENTS, event_document("b", involvedObject=node)).code == 201
    assert api.post(EVENTS, event_document("c", involvedObject=elsewhere)).causes == [
        ("involvedObject.namespace", "FieldValueInvalid")
    ]


def test_both_groups_of_events_serve_the_same_events(api: Client) -> None:
    api.post(EVENTS, event_document())

    shown = api.get(f"{EVENTS_V1}/event-a").json

    assert (shown["apiVersion"], shown["note"]) == ("events.k8s.io/v1", "ready")
    assert shown["regarding"] == event_document()["involvedObject"]
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

    for field, document in (("eventTime", old), ("action", {**new, "action": ""})):
        assert api.post(EVENTS_V1, document).causes == [(field, "FieldValueRequired")]
    assert api.post(EVENTS_V1, new).json["eventTime"] == new["eventTime"]
    assert api.get(f"{EVENTS}/e").json["reportingComponent"] == "tensor-fusion.ai/dra-driver"


def test_a_container_can_use_two_requests_of_one_claim(api: Client) -> None:
    uses = [{"name": "gpu", "request": "a"}, {"name": "gpu", "request": "b"}]

    assert api.post(PODS, pod_with_claim(containers=[container(*uses)])).code == 201
