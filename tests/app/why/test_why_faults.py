"""The verb `why` on pods that wait for something around their claims: classes, webhook, nodes."""

import pytest

from dra_simulator.api.faults import Refuse
from dra_simulator.rest import CLAIMS, CLASSES, MUTATING_WEBHOOKS, PODS, TEMPLATES
from tensorfusion_dra.core import names
from tests.support import objects
from tests.support.builders.pods import pod_annotations
from tests.support.gpu_cluster import ANNOTATED, Cluster, request, template
from tests.support.objects import Json

Capture = pytest.CaptureFixture[str]
pytestmark = pytest.mark.usefixtures("cards")


def test_missing_class(cluster: Cluster, capsys: Capture) -> None:
    cluster.client.delete(CLASSES, names.DEVICE_CLASS)
    cluster.add_pod("a", request())

    code, found = cluster.why(capsys, "a")

    assert code == 1
    assert found["answer"] == (
        f"default/a cannot be scheduled: DeviceClass {names.DEVICE_CLASS}: not found."
    )
    assert "install the driver's DeviceClass" in found["helps"][0]


SILENT = "the pod has annotations of this driver, but the webhook gave it no claim"


@pytest.mark.parametrize(
    ("webhook", "fault", "cure"),
    [
        ("pods.example.com", "is not installed", "install the webhook, then delete the pod"),
        ("pods.dra.tensor-fusion.ai", SILENT, "check that the webhook runs"),
        ("", SILENT, "check that the webhook runs"),
    ],
    ids=["another", "installed", "without the right"],
)
def test_silent_webhook(
    cluster: Cluster, capsys: Capture, webhook: str, fault: str, cure: str
) -> None:
    cluster.client.create(TEMPLATES, template())
    cluster.add_pod("a", metadata={"annotations": ANNOTATED})
    if webhook:
        webhooks = {"metadata": {"name": "w"}, "webhooks": [{"name": webhook}]}
        cluster.client.create(MUTATING_WEBHOOKS, webhooks)
    else:
        cluster.server.faults.add("list", MUTATING_WEBHOOKS.plural, Refuse(403))

    code, found = cluster.why(capsys, "a")

    assert code == 1
    assert found["answer"].startswith(f"default/a gets no GPU: webhook: {fault}")
    assert found["answer"].endswith("Otherwise it fits now on node-01.")
    assert found["helps"][0].startswith(cure)


@pytest.mark.parametrize("further", [{}, pod_annotations(gpu_count="two")])
def test_silent_webhook_of_a_pod_that_was_scheduled(
    cluster: Cluster, capsys: Capture, further: dict[str, str]
) -> None:
    cluster.add_pod("a", metadata={"annotations": {**ANNOTATED, **further}})
    cluster.schedule()

    code, found = cluster.why(capsys, "a")

    assert (code, found["state"]) == (1, "bound")
    assert found["answer"].endswith(
        "It got no GPU: webhook: is not installed, so the pod's annotations gave it no claim."
    )
    assert found["helps"][0].startswith("install the webhook")


def test_annotations_of_a_pod_that_does_not_use_dra(cluster: Cluster, capsys: Capture) -> None:
    cluster.add_pod("a", metadata={"annotations": pod_annotations(vram_request="16Gi")})

    code, found = cluster.why(capsys, "a")

    assert code == 0
    assert "requests no GPU by a claim" in found["answer"]
    assert found["helps"] == [f"set the annotation {names.ANNOTATION_DRA_ENABLED}: true"]
    assert "warning: pod: its annotations request a GPU, but" in cluster.text(capsys, "why", "a")


def test_missing_template_and_claim_that_is_not_created(cluster: Cluster, capsys: Capture) -> None:
    entries = [{"name": "gpu", "resourceClaimTemplateName": "mine"}]
    cluster.add_pod("a", resourceClaims=entries)

    code, found = cluster.why(capsys, "a")
    cluster.client.create(TEMPLATES, objects.template(request(), name="mine"))
    later_code, later = cluster.why(capsys, "a")

    assert (code, later_code) == (1, 1)
    assert "ResourceClaimTemplate mine: not found" in found["answer"]
    assert "claim from ResourceClaimTemplate mine: not created yet" in later["answer"]
    assert "Otherwise it fits now on node-01" in later["answer"]


@pytest.mark.parametrize(("isolation", "warned"), [("soft", True), ("shared", False)])
def test_claim_of_whole_cards_beside_annotations_with_amounts(
    cluster: Cluster, capsys: Capture, isolation: str, warned: bool
) -> None:
    annotations = {**ANNOTATED, names.ANNOTATION_ISOLATION: isolation}
    claims = [{"name": names.POD_CLAIM, "resourceClaimName": "a"}]
    cluster.client.create(CLAIMS, objects.claim(request(), name="a"))
    cluster.add_pod("a", metadata={"annotations": annotations}, resourceClaims=claims)

    code, found = cluster.why(capsys, "a")

    assert (code, found["state"]) == (0, "fits")
    texts = [finding["found"] for finding in found["findings"]]
    assert any("requests whole cards, although" in text for text in texts) == warned


def test_each_of_several_faults_is_shown(cluster: Cluster, capsys: Capture) -> None:
    entries = [{"name": name, "resourceClaimName": name} for name in ("first", "second")]
    cluster.add_pod("a", resourceClaims=entries, schedulingGates=[{"name": "example.com/queue"}])

    text = cluster.text(capsys, "why", "a")

    assert "ResourceClaim first: not found (and 2 more)." in text
    assert "problem: ResourceClaim second: not found" in text
    assert "problem: spec.schedulingGates: example.com/queue" in text
    assert "create the claim second" in text


def asking_for_cards(count: str) -> Json:
    """A pod's only container, which requests whole cards as an extended resource."""
    container = objects.pod()["spec"]["containers"][0]
    return {**container, "resources": {"limits": {"tensor-fusion.ai/gpu": count}}}


@pytest.mark.parametrize(
    ("count", "named", "expected"),
    [
        ("2", True, "default/a fits now on node-01 ("),
        (
            "3",
            True,
            "default/a waits: no node has its 3 cards at once: most are on node-01, where 2 of 2 "
            "fit alone.",
        ),
        (
            "1",
            False,
            "default/a cannot be scheduled: extended resource tensor-fusion.ai/gpu: no DeviceClass "
            "has it as extendedResourceName, and no node has it.",
        ),
    ],
)
def test_extended_resource_is_followed(
    cluster: Cluster, capsys: Capture, count: str, expected: str, *, named: bool
) -> None:
    if named:
        patch = {"spec": {"extendedResourceName": "tensor-fusion.ai/gpu"}}
        cluster.client.patch(CLASSES, cluster.client.get(CLASSES, names.DEVICE_CLASS), patch)
    cluster.add_pod("a", containers=[asking_for_cards(count)])

    _, found = cluster.why(capsys, "a")

    assert found["answer"].startswith(expected)


def test_claim_that_the_scheduler_made_for_an_extended_resource(
    cluster: Cluster, capsys: Capture
) -> None:
    cluster.client.create(CLAIMS, objects.claim(request(count=3), name="a-extended-resources-x"))
    pod = cluster.add_pod("a", containers=[asking_for_cards("3")])
    mapping = {
        "containerName": "main",
        "resourceName": "tensor-fusion.ai/gpu",
        "requestName": "gpu",
    }
    status = {"resourceClaimName": "a-extended-resources-x", "requestMappings": [mapping]}
    cluster.client.patch(
        PODS, pod, {"status": {"extendedResourceClaimStatus": status}}, subresource="status"
    )

    _, found = cluster.why(capsys, "a")

    assert "no node has its 3 cards at once" in found["answer"]
