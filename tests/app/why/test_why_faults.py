"""The verb `why` on pods with a fault around their claims or on their node, and with few rights."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from dra_simulator.api.faults import Refuse
from dra_simulator.rest import (
    CLAIMS,
    CLASSES,
    EVENTS,
    MUTATING_WEBHOOKS,
    NAMESPACES,
    PODS,
    SLICES,
    TEMPLATES,
)
from tensorfusion_dra.cluster.api import USER_AGENT
from tensorfusion_dra.core import names
from tensorfusion_dra.core.admission import claim_admission, pod_request
from tensorfusion_dra.core.admission.cards import Cards
from tensorfusion_dra.core.devices.capacity import Oversubscription
from tensorfusion_dra.core.kubernetes import resource_claims
from tests.support import helm, image_packages, installation, markdown, objects, pod_login, rbac
from tests.support.builders.devices import NODE, published_devices
from tests.support.builders.pods import pod_annotations
from tests.support.gpu_cluster import (
    ANNOTATED,
    Cluster,
    device_class,
    request,
    template,
    two_cards,
)
from tests.support.objects import Json
from tests.support.waiting import PATIENCE_SECONDS

Capture = pytest.CaptureFixture[str]
pytestmark = pytest.mark.usefixtures("cards")

AGAIN = ", then delete the pod and create it again"
ENABLE = f'set the annotation {names.ANNOTATION_DRA_ENABLED}: "true"{AGAIN}'


@pytest.mark.parametrize(
    ("annotations", "labels", "found", "cure"),
    [
        (pod_annotations(vram_limit="1Gi"), {}, "vram-limit requests a GPU, but nothing", ENABLE),
        (
            pod_annotations(vram="16Gi"),
            {},
            "tensor-fusion.ai/vram: unknown annotation; did you mean tensor-fusion.ai/vram-request",
            f"correct tensor-fusion.ai/vram{AGAIN}",
        ),
        (
            {"tensorfusion.ai/gpu-model": "A100"},
            {},
            "unknown annotation; did you mean tensor-fusion.ai/gpu-model?",
            f"correct tensorfusion.ai/gpu-model{AGAIN}",
        ),
        (pod_annotations(vram_request="1Gi", dra_enabled="false"), {}, "", ""),
        (pod_annotations(vram_request="1Gi"), {"tensor-fusion.ai/enabled": "true"}, "", ""),
        (pod_annotations(workload="w"), {}, "", ""),
        ({"example.com/vram": "1Gi"}, {}, "", ""),
    ],
)
def test_pod_whose_annotations_have_no_effect(
    cluster: Cluster,
    capsys: Capture,
    annotations: dict[str, str],
    labels: dict[str, str],
    *,
    found: str,
    cure: str,
) -> None:
    cluster.add_pod("a", metadata={"annotations": annotations, "labels": labels})

    waiting = cluster.why(capsys, "a")
    cluster.schedule()
    running = cluster.why(capsys, "a")

    for no_gpu, (code, answer) in (("gets no GPU: ", waiting), ("It got no GPU: ", running)):
        assert (code, answer["helps"]) == (bool(found), [cure] * bool(cure))
        assert (f"{no_gpu}annotations: " in answer["answer"]) == bool(found)
        assert found in answer["answer"]
    assert ("Otherwise it fits now on node-01." in waiting[1]["answer"]) == bool(found)


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

    code, waiting = cluster.why(capsys, "a")
    cluster.schedule()
    bound_code, bound = cluster.why(capsys, "a")

    assert waiting["answer"].startswith(f"default/a gets no GPU: webhook: {fault}")
    assert waiting["answer"].endswith("Otherwise it fits now on node-01.")
    assert f"It got no GPU: webhook: {fault}" in bound["answer"]
    assert (code, bound_code, bound["state"]) == (1, 1, "bound")
    for found in (waiting, bound):
        assert found["helps"][0].startswith(cure)


@pytest.mark.parametrize(
    ("webhook", "fault"),
    [
        ("pods.example.com", "the webhook is not installed"),
        ("pods.dra.tensor-fusion.ai", "the webhook did not replace it by a claim"),
    ],
)
def test_resources_that_the_webhook_did_not_replace(
    cluster: Cluster, capsys: Capture, webhook: str, fault: str
) -> None:
    cluster.client.create(TEMPLATES, template())
    webhooks = {"metadata": {"name": "w"}, "webhooks": [{"name": webhook}]}
    cluster.client.create(MUTATING_WEBHOOKS, webhooks)
    limits = {"tensor-fusion.ai/vram": "16Gi"}
    main = {"name": "main", "image": "busybox", "resources": {"limits": limits}}
    cluster.add_pod("a", containers=[main])

    code, found = cluster.why(capsys, "a")

    resource, claim = found["findings"]
    assert (code, resource["lookedAt"]) == (1, "extended resource tensor-fusion.ai/vram")
    assert claim["found"] == "not created yet"
    assert found["answer"] == (
        "default/a cannot be scheduled: extended resource tensor-fusion.ai/vram: no node has it, "
        f"and {fault}. These pods wait with Insufficient tensor-fusion.ai/vram: default/a (2 "
        "findings in all). Otherwise it fits now on node-01."
    )
    assert found["helps"][0].startswith("install the webhook")


def test_missing_template_and_claim_that_is_not_created(cluster: Cluster, capsys: Capture) -> None:
    entries = [{"name": "gpu", "resourceClaimTemplateName": "mine"}]
    cluster.add_pod("a", resourceClaims=entries)

    code, found = cluster.why(capsys, "a")
    cluster.client.create(TEMPLATES, objects.template(request(), name="mine"))
    _, later = cluster.why(capsys, "a")
    failed = event("a", of=cluster.client.get(PODS, "a", "default"), message="exceeded quota: team")
    cluster.client.create(EVENTS, {**failed, "reason": "FailedResourceClaimCreation"})
    _, refused = cluster.why(capsys, "a")

    of_template, fits = "ResourceClaimTemplate mine: not", "Otherwise it fits now on node-01"
    assert code == 1
    assert f"{of_template} found" in found["answer"]
    assert f"claim from {of_template} created yet. {fits}" in later["answer"]
    assert f"{of_template} created: exceeded quota: team. {fits}" in refused["answer"]


@pytest.mark.parametrize("labels", [{}, {"tensor-fusion.ai/claim-template": "true"}])
def test_missing_claim_template_of_a_namespace_that_waits_for_an_upgrade(
    cluster: Cluster, capsys: Capture, labels: dict[str, str]
) -> None:
    namespace = cluster.client.get(NAMESPACES, "default")
    cluster.client.patch(NAMESPACES, namespace, {"metadata": {"labels": labels}})
    entry = {"name": names.POD_CLAIM, "resourceClaimTemplateName": names.CLAIM_TEMPLATE}
    cluster.add_pod("a", metadata={"annotations": ANNOTATED}, resourceClaims=[entry])

    _, found = cluster.why(capsys, "a")

    label = "the namespace's label tensor-fusion.ai/claim-template"
    waits = f"{label} takes effect at the next `helm upgrade`"
    assert (waits in found["answer"]) == bool(labels)
    assert found["helps"][0] == "kubectl apply -n default -f daemonset/claim-template.yaml"


def event(name: str, *, of: Json, **fields: object) -> Json:
    """An Event about a pod."""
    metadata = {key: of["metadata"][key] for key in ("name", "namespace", "uid")}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": "default"},
        "involvedObject": {"kind": "Pod", **metadata},
        "type": "Warning",
        **fields,
    }


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
    assert ("requests whole cards, although" in str(found["findings"])) == warned


@pytest.mark.parametrize("is_scheduled", [False, True])
@pytest.mark.parametrize(
    ("edited", "earlier"),
    [
        ({}, ""),
        ({"gpu_model": "H100"}, "selector"),
        ({"vram_request": "20Gi"}, "amounts"),
        ({"vram_limit": "40Gi"}, "limits"),
        ({"gpu_count": "2"}, "number of GPUs"),
    ],
)
def test_claim_that_is_older_than_the_annotations_of_its_pod(
    cluster: Cluster, capsys: Capture, edited: dict[str, str], earlier: str, *, is_scheduled: bool
) -> None:
    cluster.client.create(TEMPLATES, template())
    entry = {"name": names.POD_CLAIM, "resourceClaimTemplateName": names.CLAIM_TEMPLATE}
    model = "A100" if is_scheduled else "V100"  # which no card is
    asked = {**ANNOTATED, names.ANNOTATION_GPU_MODEL: model}
    pod = cluster.add_pod("a", metadata={"annotations": asked}, resourceClaims=[entry])
    made = resource_claims.created(pod, names.POD_CLAIM, template())
    wanted = pod_request.alternatives(pod_request.parse(asked), Cards(), pool="")
    cluster.client.create(CLAIMS, claim_admission.filled(made, wanted, pool=""))
    status = [{"name": names.POD_CLAIM, "resourceClaimName": f"a-{names.POD_CLAIM}"}]
    pod = cluster.client.patch(
        PODS, pod, {"status": {"resourceClaimStatuses": status}}, subresource="status"
    )
    if is_scheduled:
        cluster.schedule()
    annotations = {"metadata": {"annotations": pod_annotations(**edited)}}
    cluster.client.patch(PODS, cluster.client.get(PODS, "a", "default"), annotations)

    code, found = cluster.why(capsys, "a")

    said = f"before the pod's annotations were edited, and has the earlier {earlier}"
    delete = "delete the pod and create it again: its claim does not change"
    assert code == (not is_scheduled)
    assert [said in each["found"] for each in found["findings"]] == ([True] if earlier else [])
    correct = f"Correct {names.ANNOTATION_GPU_MODEL}: found V100, but the cards have: A100 (2)."
    unchanged = [] if is_scheduled else [correct]
    assert found["helps"][:1] == ([delete] if earlier else unchanged)
    assert "gpu_model" not in edited or "Correct" not in str(found["helps"])


NAME_IT = "name it in resources.claims of a container"
LOST = "containers: none of them names claim gpu, so they get no GPU of it, and its share is lost"


def test_claim_that_no_container_names(cluster: Cluster, capsys: Capture, tmp_path: Path) -> None:
    file = tmp_path / "pod.yaml"
    made = objects.template(request({"vram": "1Gi"}), name="a")
    file.write_text(yaml.safe_dump_all([made, objects.pod("b", template_name="a", uses=False)]))
    cluster.client.create(CLAIMS, objects.claim(request({"vram": "1Gi"}), name="a"))
    cluster.client.create(PODS, objects.pod("a", claim_name="a", uses=False))

    planned = cluster.why(capsys, "-f", str(file))
    waiting = cluster.why(capsys, "a")
    cluster.schedule()
    code, bound = cluster.why(capsys, "a")

    for pod, cure, (waiting_code, found) in (
        ("b", NAME_IT, planned),
        ("a", NAME_IT + AGAIN, waiting),
    ):
        assert (waiting_code, found["helps"]) == (1, [cure])
        fits = "Otherwise it fits now on node-01."
        assert found["answer"] == f"default/{pod} gets no GPU: {LOST}. {fits}"
    assert bound["answer"].endswith(f" It got no GPU: {LOST}.")
    assert (code, bound["state"], bound["helps"]) == (1, "bound", [NAME_IT + AGAIN])


def test_second_claim_that_no_container_names_and_claim_of_another_driver(
    cluster: Cluster, capsys: Capture
) -> None:
    cluster.client.create(CLASSES, objects.device_class("nic"))
    for name in ("used", "lost"):
        cluster.client.create(CLAIMS, objects.claim(request({"vram": "1Gi"}), name=name))
    nic = objects.claim(objects.exactly("nic", deviceClassName="nic"), name="network")
    cluster.client.create(CLAIMS, nic)
    entries = [{"name": name, "resourceClaimName": name} for name in ("used", "lost", "network")]
    container = objects.pod()["spec"]["containers"][0]
    container["resources"] = {"claims": [{"name": "used"}]}
    cluster.add_pod("a", resourceClaims=entries, containers=[container])

    _, found = cluster.why(capsys, "a")

    assert [each["level"] for each in found["findings"]] == ["warning"]
    assert found["findings"][0]["found"].startswith("none of them names claim lost")


def test_claim_of_a_class_of_this_driver_that_no_container_names(
    cluster: Cluster, capsys: Capture
) -> None:
    cluster.client.create(CLASSES, {**device_class(), "metadata": {"name": "a100"}})
    wanted = objects.exactly(deviceClassName="a100")
    cluster.client.create(CLAIMS, objects.claim(wanted, name="a"))
    cluster.client.create(PODS, objects.pod("a", claim_name="a", uses=False))

    _, found = cluster.why(capsys, "a")

    assert LOST in found["answer"]


@pytest.mark.parametrize("is_scheduled", [False, True])
@pytest.mark.parametrize("kinds", [{False}, {True}, {True, False}])
def test_claim_that_names_other_amounts_than_its_cards_are_shared_by(
    cluster: Cluster, capsys: Capture, kinds: set[bool], *, is_scheduled: bool
) -> None:
    (item,) = cluster.client.list(SLICES).items
    more = Oversubscription(tflops_percent=150, host_memory_percent=0, host_disk_percent=0)
    now = [
        device.as_api()
        for device in published_devices(*two_cards(), node=replace(NODE, oversubscription=more))
    ]
    cluster.client.replace(SLICES, {**item, "spec": {**item["spec"], "devices": now}})
    cluster.client.create(TEMPLATES, template())
    entry = {"name": names.POD_CLAIM, "resourceClaimTemplateName": names.CLAIM_TEMPLATE}
    pod = cluster.add_pod("a", metadata={"annotations": ANNOTATED}, resourceClaims=[entry])
    made = resource_claims.created(pod, names.POD_CLAIM, template())
    (wanted,) = pod_request.alternatives(pod_request.parse(ANNOTATED), Cards(), pool="")
    several = [replace(wanted, is_virtual=kind) for kind in sorted(kinds, reverse=True)]
    cluster.client.create(CLAIMS, claim_admission.filled(made, several, pool=""))
    status = [{"name": names.POD_CLAIM, "resourceClaimName": f"a-{names.POD_CLAIM}"}]
    cluster.client.patch(
        PODS, pod, {"status": {"resourceClaimStatuses": status}}, subresource="status"
    )
    if is_scheduled:
        cluster.schedule()

    _, found = cluster.why(capsys, "a")

    assert [each["found"] for each in found["findings"]] == (
        [
            "requests tflops, vram, and the cards that it can get are shared by virtual_tflops, "
            "virtual_vram: it takes the whole of what it does not name, or gets no card"
        ]
        if True not in kinds
        else []
    )
    assert found["helps"][:1] == (
        ["delete the pod and create it again: its claim does not change"]
        if True not in kinds
        else []
    )


def test_each_of_several_faults_is_shown(cluster: Cluster, capsys: Capture) -> None:
    entries = [{"name": name, "resourceClaimName": name} for name in ("first", "second")]
    cluster.add_pod("a", resourceClaims=entries, schedulingGates=[{"name": "example.com/queue"}])

    text = cluster.text(capsys, "why", "a")

    for shown in (
        "ResourceClaim first: not found (3 findings in all).",
        "problem: ResourceClaim second: not found",
        "problem: spec.schedulingGates: example.com/queue",
        "create the claim second",
    ):
        assert shown in text


def asking_for_cards(count: str) -> Json:
    """A pod's only container, which requests whole cards as an extended resource."""
    container = objects.pod()["spec"]["containers"][0]
    return {**container, "resources": {"limits": {"tensor-fusion.ai/gpu": count}}}


HAMI_LABEL = "tensor-fusion.ai/dialect-hami"


def in_words_of_hami(cores: int = 1) -> Json:
    """A pod's only container."""
    limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1000, "nvidia.com/gpucores": cores}
    return {**objects.pod()["spec"]["containers"][0], "resources": {"limits": limits}}


def speak(cluster: Cluster, *dialects: str, label: str = "") -> None:
    """Configure a webhook of these dialects, and label the pods' namespace."""
    named = [f"{each}.dialects.dra.tensor-fusion.ai" for each in dialects]
    webhooks = [{"name": name} for name in (*named, "pods.dra.tensor-fusion.ai")]
    cluster.client.create(MUTATING_WEBHOOKS, {"metadata": {"name": "w"}, "webhooks": webhooks})
    namespace = cluster.client.get(NAMESPACES, "default")
    cluster.client.patch(NAMESPACES, namespace, {"metadata": {"labels": {HAMI_LABEL: label}}})


@pytest.mark.parametrize(
    ("dialects", "label", "found", "cure"),
    [
        (
            ["hami"],
            "",
            f": the namespace has no label {HAMI_LABEL}=true",
            f"kubectl label namespace default {HAMI_LABEL}=true",
        ),
        (["kai"], "true", "", "add hami to webhook.dialects of the chart"),
        (["hami"], "true", "", "check that the webhook runs (tensorfusion-dra doctor)"),
    ],
)
def test_pod_in_the_words_of_another_system(
    cluster: Cluster,
    capsys: Capture,
    dialects: list[str],
    label: str,
    *,
    found: str,
    cure: str,
) -> None:
    speak(cluster, *dialects, label=label)
    cluster.add_pod("a", containers=[in_words_of_hami()])

    code, answer = cluster.why(capsys, "a")

    assert (code, answer["helps"]) == (1, [f"{cure}{AGAIN}"])
    assert answer["answer"].startswith(
        "default/a cannot be scheduled: namespace default: the webhook did not translate the pod's "
        f"words of hami{found}."
    )


def test_file_of_a_pod_in_the_words_of_another_system(
    cluster: Cluster, capsys: Capture, tmp_path: Path
) -> None:
    cluster.client.create(TEMPLATES, template())
    speak(cluster, "hami", label="true")
    pod, file = objects.pod("a"), tmp_path / "pod.json"

    for cores, code, answer in (
        (1, 0, "default/a fits now on node-01"),
        (101, 1, "found '101', expected a whole number of at most 100"),
    ):
        pod["spec"]["containers"] = [in_words_of_hami(cores)]
        file.write_text(json.dumps(pod))
        ended, found = cluster.why(capsys, "-f", str(file))
        assert ended == code
        assert answer in found["answer"]


@pytest.mark.parametrize(
    ("count", "named", "expected"),
    [
        ("2", True, "default/a fits now on node-01 ("),
        (
            "3",
            True,
            "default/a waits: no node has 3 cards: node-01 has most, 2.",
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

    assert "no node has 3 cards: node-01 has most, 2" in found["answer"]


def test_pod_in_terminating_and_then_without_the_node_plugin(
    cluster: Cluster, capsys: Capture
) -> None:
    cluster.schedule_pod("a", request({"vram": "20Gi"}), metadata={"finalizers": ["a.com/job"]})
    cluster.client.delete(PODS, "a", "default")

    code, found = cluster.why(capsys, "a")
    cluster.client.delete(SLICES, "slice-node-01")
    _, gone = cluster.why(capsys, "a")

    assert (code, found["state"]) == (1, "bound")
    assert "scheduled on node-01 already" in found["answer"]
    assert "But pod: is being deleted, with the deadline 20" in found["answer"]
    waits_for = "it waits for its finalizers a.com/job and the kubelet of node-01"
    assert found["helps"][0].endswith(waits_for)
    assert gone["helps"][0].startswith("install the node plugin on node-01 again:")


@pytest.mark.parametrize(
    ("condition", "status", "expected"),
    [
        ("LimitsEnforced", "True", ""),
        ("LimitsEnforced", "Unknown", ""),
        ("LimitsEnforced", "False", "its limits are not enforced on {card}: NoSign: no limiter"),
        ("Ready", "False", "it is not ready on {card}: NoSign: no limiter"),
        ("LimitChanged", "False", "limits were changed while it runs: NoSign: no limiter"),
        ("LimitChanged", "True", "limits were changed while it runs: NoSign: no limiter"),
    ],
)
def test_pod_whose_limits_are_not_enforced_or_were_changed(
    cluster: Cluster, capsys: Capture, condition: str, status: str, expected: str
) -> None:
    claim = cluster.schedule_pod("a", request({"vram": "20Gi"}))
    (result,) = claim["status"]["allocation"]["devices"]["results"]
    entry = {key: result[key] for key in ("driver", "pool", "device", "shareID")}
    entry["conditions"] = [
        {
            "type": condition,
            "status": status,
            "reason": "NoSign",
            "message": "no limiter",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
    ]
    cluster.client.patch(CLAIMS, claim, {"status": {"devices": [entry]}}, subresource="status")

    code, found = cluster.why(capsys, "a")

    text = expected.format(card=result["device"])
    said = f" But ResourceClaim a: {text}." if text else ""
    level = "note" if condition == "LimitChanged" else "warning"
    assert code == 0
    assert found["answer"].endswith(f"checks the node.{said}")
    findings = [(finding["level"], finding["found"]) for finding in found["findings"]]
    assert findings == ([(level, text)] if text else [])


def test_pod_that_the_scheduler_binds_once_an_enforcer_is_there(
    cluster: Cluster, capsys: Capture, cards: list[str]
) -> None:
    cluster.add_pod("a", request({"vram": "20Gi"}))
    claim = cluster.client.get(CLAIMS, "a", "default")
    result = {
        "request": "gpu",
        "driver": names.DRIVER,
        "pool": "p/node-01",
        "device": cards[0],
        "bindingConditions": [names.BINDING_READY],
        "bindingFailureConditions": [names.BINDING_FAILED],
    }
    allocation = {"devices": {"results": [result]}}
    cluster.client.patch(
        CLAIMS, claim, {"status": {"allocation": allocation}}, subresource="status"
    )

    code, found = cluster.why(capsys, "a")

    assert (code, found["state"]) == (1, "waits")
    assert "ResourceClaim a: waits at the scheduler for the enforcer of node-01" in found["answer"]


def test_pod_that_does_not_start_on_its_node(cluster: Cluster, capsys: Capture) -> None:
    cluster.schedule_pod("a", request({"vram": "20Gi"}))
    pod = cluster.client.get(PODS, "a", "default")
    earlier = {"metadata": {**pod["metadata"], "uid": "earlier-pod"}}
    events = [
        (pod, "no network", "Warning", "kubelet"),
        (pod, "no driver", "Warning", "kubelet"),
        (earlier, "no volume", "Warning", "kubelet"),
        (pod, "pulled", "Normal", "kubelet"),
        (pod, "no node", "Warning", "default-scheduler"),
    ]
    for number, (about, text, kind, component) in enumerate(events):
        fields = {
            "reason": "FailedPrepareDynamicResources",
            "type": kind,
            "source": {"component": component},
            "lastTimestamp": f"2026-01-01T00:00:0{number}Z",
        }
        made = event(f"a.{number}", of=about, message=text, **fields)
        cluster.client.create(EVENTS, made)

    code, found = cluster.why(capsys, "a")

    assert (code, found["state"]) == (1, "stuck")
    assert found["answer"] == (
        "default/a is scheduled on node-01 already; it waits there: FailedPrepareDynamicResources: "
        "no driver"
    )


FORBIDDEN = 403
BIND = (
    "An administrator can bind the ClusterRole tensorfusion-dra-why to this account with a "
    "ClusterRoleBinding; for the webhook's pods the chart's value webhook.why does."
)


def test_missing_rights_are_named_and_the_rest_is_answered(
    cluster: Cluster, capsys: Capture
) -> None:
    cluster.add_pod("a", request())
    cluster.client.create(PODS, objects.pod("b", template_name="mine"))
    cluster.server.faults.add("list", "resourceclaimtemplates", Refuse(FORBIDDEN))

    code, found = cluster.why(capsys, "a")
    other_code, other = cluster.why(capsys, "b")

    assert (code, other_code, found["state"]) == (0, 1, "fits")
    assert found["unchecked"] == ["ResourceClaimTemplates (no right to list them)"]
    assert "the template could not be read" in other["answer"]
    assert other["helps"] == [BIND]


VITAL = {
    "nodes": "Nodes",
    "resourceslices": "ResourceSlices",
    "deviceclasses": "DeviceClasses",
    "resourceclaims": "ResourceClaims",
}


@pytest.mark.parametrize("refused", [["nodes"], ["deviceclasses", "resourceclaims"], [*VITAL]])
def test_without_the_rights_for_a_trial_the_faults_of_the_pod_are_found(
    cluster: Cluster, capsys: Capture, refused: list[str]
) -> None:
    cluster.add_pod("a", request())
    cluster.add_pod("b", request(), schedulingGates=[{"name": "example.com/queue"}])
    for plural in refused:
        cluster.server.faults.add("list", plural, Refuse(FORBIDDEN))

    code, free = cluster.why(capsys, "a")
    _, gated = cluster.why(capsys, "b")

    kinds = [VITAL[plural] for plural in refused]
    assert (code, free["state"]) == (1, "waits")
    assert free["answer"] == (
        "default/a waits; whether a card is free for it was not tried: no right to list "
        f"{' and '.join(kinds)}. {BIND}"
    )
    assert free["findings"] == []
    assert free["unchecked"] == [f"{kind} (no right to list them)" for kind in kinds]
    assert gated["answer"] == (
        "default/b cannot be scheduled: spec.schedulingGates: example.com/queue."
    )


def test_a_claim_that_may_not_be_read_is_not_called_missing(
    cluster: Cluster, capsys: Capture
) -> None:
    cluster.add_pod("a", request())
    for verb in ("list", "get"):
        cluster.server.faults.add(verb, "resourceclaims", Refuse(FORBIDDEN))

    _, found = cluster.why(capsys, "a")

    assert found["answer"].endswith(f"was not tried: no right to list ResourceClaims. {BIND}")
    assert found["findings"] == []


def test_pod_that_may_not_be_read(cluster: Cluster, capsys: Capture) -> None:
    cluster.add_pod("a")
    cluster.server.faults.add("get", "pods", Refuse(FORBIDDEN))

    ended = cluster.run(capsys, "why", "a")

    assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1)
    assert "GET /api/v1/namespaces/default/pods/a: 403" in ended.err
    assert ended.err.endswith(f". {BIND}\n")


def test_role_that_is_named_is_installed_with_the_webhook() -> None:
    assert helm.one(installation.documents("webhook"), "ClusterRole", "tensorfusion-dra-why")


@pytest.fixture
def _packages_of_the_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder := tmp_path / "absent").mkdir()
    image_packages.require(folder, monkeypatch)
    monkeypatch.setenv("HOME", str(tmp_path))  # without a kubeconfig


def ended(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=markdown.ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


def typed_in_pods(page: str) -> list[str]:
    """Return the verbs `why` and `top`, with arguments, that a page has kubectl run in a pod."""
    lines = (each.line for each in markdown.commands(markdown.text(markdown.ROOT / "docs" / page)))
    ran = (line.partition(" -- ")[2].removeprefix("tensorfusion-dra ") for line in lines)
    return [verb.replace("TEAM", "team-a") for verb in ran if verb.startswith(("why ", "top"))]


SHOWN = {"why": "team-a/train fits now on node-01 (gpu-", "top": "node-01"}


def test_pages_run_both_verbs_with_the_webhooks_account_and_with_that_of_a_team() -> None:
    assert [typed_in_pods(page) for page in ("troubleshoot.md", "use.md")] == [
        ["why train -n team-a", "top"],
        ["why train --namespace team-a", "top"],
    ]


@pytest.mark.process
@pytest.mark.usefixtures("_packages_of_the_image")
@pytest.mark.parametrize(
    "verb", [*typed_in_pods("troubleshoot.md"), *typed_in_pods("use.md"), "teardown-check"]
)
def test_verbs_run_in_a_pod_with_the_packages_of_the_image(
    cluster: Cluster, tmp_path: Path, verb: str
) -> None:
    team = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team-a"}}
    cluster.client.create(NAMESPACES, team)
    for kind, made in ((CLAIMS, objects.claim(request())), (PODS, objects.pod("train"))):
        made["metadata"]["namespace"] = "team-a"
        if kind is PODS:
            made["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": "claim"}]
            made["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
        cluster.client.create(kind, made)

    done = ended(
        *(pod_login.__file__, str(tmp_path), *verb.split()),
        *("--kubeconfig", str(cluster.kubeconfig)),
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert SHOWN.get(verb.split(maxsplit=1)[0], "Nothing would hang") in done.stdout


@pytest.mark.parametrize("verb", ["why", "top"])
def test_the_role_of_the_pages_allows_all_that_a_verb_reads(
    cluster: Cluster, capsys: Capture, verb: str
) -> None:
    cluster.add_pod("a", request())

    cluster.run(capsys, verb, *(["a"] if verb == "why" else []))

    asked = {each for each in cluster.server.requests.asked(USER_AGENT) if each.resource}
    role = helm.one(installation.documents("webhook"), "ClusterRole", "tensorfusion-dra-why")
    subject = {"kind": "ServiceAccount", "name": "gpu-questions", "namespace": "team-a"}
    reference = {"kind": "ClusterRole", "name": "tensorfusion-dra-why"}
    metadata = {"name": "gpu-questions-team-a"}
    binding = {"kind": "ClusterRoleBinding", "metadata": metadata, "roleRef": reference}
    granted = rbac.rights([role, {**binding, "subjects": [subject]}], "gpu-questions")
    assert {"resourceslices", "resourceclaims"} <= {each.resource for each in asked}
    assert [each for each in asked if not any(right.allows(each) for right in granted)] == []


@pytest.mark.process
@pytest.mark.usefixtures("_packages_of_the_image")
def test_kubeconfig_in_the_image_is_refused_with_what_to_do(cluster: Cluster) -> None:
    done = ended("-m", "tensorfusion_dra", "top", "--kubeconfig", str(cluster.kubeconfig))

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"tensorfusion-dra: kubeconfig {cluster.kubeconfig}: found no Python package kubernetes, "
        "expected it for a kubeconfig (pip install tensorfusion-dra); the image has none: leave "
        "--kubeconfig out there, and the pod's service account is used\n"
    )


@pytest.mark.parametrize("verb", ["why", "top", "teardown-check"])
def test_verbs_only_read(cluster: Cluster, capsys: Capture, verb: str) -> None:
    cluster.schedule_pod("a", request())
    cluster.server.requests.reset()

    cluster.run(capsys, verb, *(["a"] if verb == "why" else []))

    assert {verb for verb, _ in cluster.server.requests.all()} <= {"get", "list", "watch"}
