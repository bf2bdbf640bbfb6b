"""Generation of claims from templates, their deletion with pods, and their release."""

from collections.abc import Iterator

import pytest

from dra_simulator.apiserver import ApiServer
from dra_simulator.claim_controller import ClaimController
from dra_simulator.podclaims import FINALIZER
from dra_simulator.rest import CLAIMS, EVENTS, NODES, PODS, TEMPLATES, Client
from tensorfusion_dra.core.kubernetes.resource_claims import POD_CLAIM_ANNOTATION
from tests.support import objects
from tests.support.objects import Json
from tests.support.waiting import PATIENCE_SECONDS, awaited


@pytest.fixture(autouse=True)
def controller(api: ApiServer) -> Iterator[ClaimController]:
    with ClaimController(api.url) as running:
        yield running


def claims(client: Client) -> list[Json]:
    """All claims."""
    return client.list(CLAIMS).items


def statuses(client: Client, pod: str) -> list[Json]:
    """The claim statuses of the pod."""
    return list(client.get(PODS, pod, "default")["status"].get("resourceClaimStatuses", ()))


@pytest.fixture
def generated(client: Client) -> Json:
    """A pod for which a claim was generated."""
    client.create(TEMPLATES, objects.template())
    pod = client.create(PODS, objects.pod(template_name="template"))
    awaited(lambda: statuses(client, "pod"))
    return pod


def consumers(client: Client, *names: str) -> list[Json]:
    """Create the claim "claim", allocated and reserved for pods of these names, and the pods."""
    claim = objects.claim()
    claim["metadata"]["finalizers"] = [FINALIZER]
    claim = client.create(CLAIMS, claim)
    pods = [client.create(PODS, objects.pod(name, claim_name="claim")) for name in names]
    client.replace_status(CLAIMS, {**claim, "status": objects.allocated(*pods)})
    return pods


def test_a_claim_is_generated_from_the_template_for_its_pod(client: Client) -> None:
    spec_metadata = {"labels": {"team": "a"}, "annotations": {"note": "b"}}
    client.create(TEMPLATES, objects.template(metadata=spec_metadata))
    pod = client.create(PODS, objects.pod(template_name="template"))

    (status,) = awaited(lambda: statuses(client, "pod"))

    (claim,) = claims(client)
    metadata = claim["metadata"]
    assert status == {"name": "gpu", "resourceClaimName": metadata["name"]}
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "pod", "uid": pod["metadata"]["uid"]}
    assert metadata == metadata | {
        "generateName": "pod-gpu-",
        "labels": {"team": "a"},
        "annotations": {"note": "b", POD_CLAIM_ANNOTATION: "gpu"},
        "ownerReferences": [{**owner, "controller": True}],
    }
    assert claim["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] == objects.CLASS


def test_a_pod_gets_one_claim_however_often_it_changes(
    client: Client, controller: ClaimController, generated: Json
) -> None:
    client.patch(PODS, generated, {"metadata": {"labels": {"a": "b"}}})

    assert controller.catch_up(seconds=PATIENCE_SECONDS)
    assert len(claims(client)) == 1


@pytest.mark.usefixtures("generated")
def test_a_deleted_claim_is_generated_again(client: Client) -> None:
    (status,) = statuses(client, "pod")

    client.delete(CLAIMS, status["resourceClaimName"], "default")

    awaited(lambda: statuses(client, "pod") != [status])
    (claim,) = claims(client)
    assert statuses(client, "pod")[0]["resourceClaimName"] == claim["metadata"]["name"]


def test_a_missing_template_is_reported_and_used_once_it_exists(client: Client) -> None:
    client.create(PODS, objects.pod(template_name="template"))
    (event,) = awaited(lambda: client.list(EVENTS).items)
    assert event["reason"] == "FailedResourceClaimCreation"
    assert 'template "template"' in event["message"]

    client.create(TEMPLATES, objects.template())

    awaited(lambda: statuses(client, "pod"))


@pytest.mark.parametrize("finishes", [False, True])
def test_a_generated_claim_is_deleted_when_its_pod_is_deleted_or_has_finished(
    client: Client, generated: Json, *, finishes: bool
) -> None:
    if finishes:
        client.patch(PODS, generated, {"status": {"phase": "Succeeded"}}, subresource="status")
    else:
        client.delete(PODS, "pod", "default")

    awaited(lambda: not claims(client))


def test_a_standalone_claim_is_released_but_kept_when_its_last_pod_is_gone(client: Client) -> None:
    _, last = consumers(client, "a", "b")

    client.delete(PODS, "a", "default")

    awaited(lambda: claims(client)[0]["status"] == objects.allocated(last))
    client.delete(PODS, "b", "default")
    awaited(lambda: claims(client)[0]["status"] == {})
    awaited(lambda: not claims(client)[0]["metadata"].get("finalizers"))


def test_a_terminating_pod_on_a_node_keeps_its_claim_until_its_kubelet_releases_it(
    client: Client, controller: ClaimController
) -> None:
    client.create(NODES, objects.node())
    (pod,) = consumers(client, "pod")
    client.bind(pod, objects.NODE)

    client.delete(PODS, "pod", "default")

    assert controller.catch_up(seconds=PATIENCE_SECONDS)
    assert claims(client)[0]["status"] == objects.allocated(pod)


def test_an_allocated_claim_in_deletion_is_removed_once_it_is_released(client: Client) -> None:
    consumers(client, "pod")
    client.delete(CLAIMS, "claim", "default")
    assert len(claims(client)) == 1

    client.delete(PODS, "pod", "default")

    awaited(lambda: not claims(client))
