"""The verb `why` on pods that are not created yet, and on workloads, whose pods it follows."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import yaml

from dra_simulator.rest import MUTATING_WEBHOOKS, PODS, TEMPLATES
from tensorfusion_dra.core import names
from tensorfusion_dra.core.admission import pod_request
from tests.support import canned_api, objects
from tests.support.builders.pods import pod_annotations
from tests.support.canned_api import CannedApi
from tests.support.gpu_cluster import ANNOTATED, Cluster, request, template
from tests.support.objects import Json

Capture = pytest.CaptureFixture[str]
pytestmark = pytest.mark.usefixtures("cards")
PATHS = {
    "Deployment": "/apis/apps/v1/namespaces/default/deployments/w",
    "ReplicaSet": "/apis/apps/v1/namespaces/default/replicasets/w",
    "StatefulSet": "/apis/apps/v1/namespaces/default/statefulsets/w",
    "DaemonSet": "/apis/apps/v1/namespaces/default/daemonsets/w",
    "Job": "/apis/batch/v1/namespaces/default/jobs/w",
}
LABELS = {"labels": {"app": "w"}}
DENIED = (
    'admission webhook "pods.dra.tensor-fusion.ai" denied the request: '
    "metadata.annotations[tensor-fusion.ai/gpu-count]: found 'two', expected 1 to 32"
)
FAILURE = {
    "type": "ReplicaFailure",
    "status": "True",
    "reason": "FailedCreate",
    "message": DENIED,
}


@pytest.fixture
def workloads(cluster: Cluster, tmp_path: Path) -> Iterator[CannedApi]:
    """The cluster's API server with workloads, which the simulated one does not have."""
    with canned_api.served({}) as api:
        api.other_url = cluster.server.url
        cluster.kubeconfig = api.kubeconfig(tmp_path / "with-workloads")
        yield api


def workload(kind: str, annotations: Json | None = None, **parts: Json) -> Json:
    """A workload w with a template and a selector of both forms."""
    expressions = [{"key": "app", "operator": "In", "values": ["w", "v"]}]
    pod = {"metadata": {"annotations": annotations or {}}, "spec": objects.pod()["spec"]}
    spec: Json = {
        "selector": {"matchLabels": {"app": "w"}, "matchExpressions": expressions},
        "template": pod,
    }
    spec.update(parts.get("spec", {}))
    metadata = {"name": "w", "namespace": "default", "uid": "uid-of-w"}
    return {"kind": kind, "metadata": metadata, "spec": spec, "status": parts.get("status", {})}


def run_pods(cluster: Cluster) -> None:
    """Schedule the pods, and report them as running, as a kubelet does."""
    cluster.schedule()
    for pod in cluster.client.list(PODS).items:
        patch = {"status": {"phase": "Running"}}
        cluster.client.patch(PODS, pod, patch, subresource="status")


def failed_create(uid: str) -> Json:
    return {
        "involvedObject": {"name": "w", "uid": uid},
        "reason": "FailedCreate",
        "message": DENIED,
    }


@pytest.mark.parametrize(
    ("target", "kind"),
    [
        ("deployments.apps/w", "Deployment"),
        ("rs/w", "ReplicaSet"),
        ("statefulset/w", "StatefulSet"),
        ("ds/w", "DaemonSet"),
        ("job/w", "Job"),
    ],
)
def test_answer_is_that_of_the_pod_that_waits(
    cluster: Cluster, workloads: CannedApi, capsys: Capture, target: str, kind: str
) -> None:
    workloads.answers[f"GET {PATHS[kind]}"] = workload(kind)
    cluster.add_pod("w-1", request({"vram": "1Gi"}), metadata=LABELS)
    run_pods(cluster)
    cluster.add_pod("w-2", request({"vram": "100Gi"}), metadata=LABELS)
    cluster.add_pod("other", request({"vram": "90Gi"}), metadata={"labels": {"app": "v"}})

    code, found = cluster.why(capsys, target)

    assert (code, found["pod"]) == (1, "default/w-2")
    assert found["answer"].startswith(
        f"1 of 2 pods of {kind} default/w wait. default/w-2 waits: none of 2 cards fits"
    )


def test_workload_without_a_waiting_pod(
    cluster: Cluster, workloads: CannedApi, capsys: Capture
) -> None:
    workloads.answers[f"GET {PATHS['Job']}"] = workload("Job")
    cluster.add_pod("w-1", request({"vram": "1Gi"}), metadata=LABELS)
    cluster.add_pod("w-2", metadata={**LABELS, "annotations": ANNOTATED})
    run_pods(cluster)

    code, found = cluster.why(capsys, "job/w")

    assert (code, found["pod"]) == (1, "default/w-2")
    said = "No pod of Job default/w waits. default/w-2 runs on node-01. .*It got no GPU"
    assert re.match(said, found["answer"])


@pytest.mark.parametrize(
    "case",
    [
        ("Deployment", {"status": {"conditions": [FAILURE]}}, "", f"FailedCreate: {DENIED}."),
        ("Job", {}, "uid-of-w", f"FailedCreate: {DENIED}."),
        ("Job", {}, "uid-of-an-earlier-w", "no condition and no Event says why. One of its"),
        ("Job", {"spec": {"suspend": True}}, "", "spec.suspend is true. One of its pods: "),
        ("Deployment", {"spec": {"replicas": 0}}, "", "spec.replicas is 0. One of its pods: "),
        (
            "Job",
            {"status": {"conditions": [{"type": "Complete", "status": "True"}]}},
            "",
            "it is done: Complete. One of its pods: ",
        ),
    ],
)
def test_workload_without_pods(
    cluster: Cluster,
    workloads: CannedApi,
    capsys: Capture,
    case: tuple[str, dict[str, Json], str, str],
) -> None:
    kind, parts, uid, expected = case
    cluster.client.create(TEMPLATES, template())
    annotations = {**ANNOTATED, names.ANNOTATION_GPU_COUNT: "two"}
    workloads.answers[f"GET {PATHS[kind]}"] = workload(kind, annotations, **parts)
    workloads.answers["GET /api/v1/namespaces/default/events"] = {
        "items": [failed_create(uid)] * bool(uid)
    }

    code, found = cluster.why(capsys, f"{kind}/w")

    assert (code, found["state"]) == (1, "waits")
    assert found["answer"].startswith(f"{kind} default/w has no pods: {expected}")
    assert found["helps"][0] == f"correct metadata.annotations[{names.ANNOTATION_GPU_COUNT}]"


def test_rollout_whose_new_pods_are_refused(
    cluster: Cluster, workloads: CannedApi, capsys: Capture
) -> None:
    cluster.client.create(TEMPLATES, template())
    status = {"conditions": [FAILURE]}
    workloads.answers[f"GET {PATHS['Deployment']}"] = workload("Deployment", status=status)
    cluster.add_pod("w-1", request({"vram": "1Gi"}), metadata=LABELS)
    run_pods(cluster)

    code, found = cluster.why(capsys, "deploy/w")

    assert code == 1
    assert found["answer"] == f"Deployment default/w creates no more pods: FailedCreate: {DENIED}."
    assert found["helps"] == ["correct what the message names; the controller tries again"]


@pytest.mark.parametrize(
    ("webhook", "how"),
    [
        ("pods.dra.tensor-fusion.ai", " (tensorfusion-dra doctor says what is wrong)"),
        ("pods.example.com", ""),
    ],
)
def test_pods_and_claims_that_are_not_created_because_a_webhook_is_down(
    cluster: Cluster, workloads: CannedApi, capsys: Capture, webhook: str, how: str
) -> None:
    message = (
        f'Internal error occurred: failed calling webhook "{webhook}": failed to call webhook: '
        'Post "https://w.w.svc:443/mutate-pods?timeout=5s": dial tcp: connection refused'
    )
    status = {"conditions": [{**FAILURE, "message": message}]}
    workloads.answers[f"GET {PATHS['Deployment']}"] = workload("Deployment", status=status)
    cluster.client.create(TEMPLATES, objects.template(request(), name="mine"))
    entries = [{"name": "gpu", "resourceClaimTemplateName": "mine"}]
    pod = cluster.add_pod("a", resourceClaims=entries)
    about = {key: pod["metadata"][key] for key in ("name", "uid")}
    of_claim = {"involvedObject": about, "reason": "FailedResourceClaimCreation"}
    failed = {**of_claim, "message": f"failed to create ResourceClaim: {message}"}
    workloads.answers["GET /api/v1/namespaces/default/events"] = {"items": [failed]}

    for target in ("deploy/w", "a"):
        _, found = cluster.why(capsys, target)

        assert "connection refused" in found["answer"]
        assert found["helps"] == [
            f"start webhook {webhook} again, which does not answer{how}; the controller tries again"
        ]


def written(folder: Path, *documents: Json) -> str:
    """Write a file with these documents; return its path."""
    file = folder / "pod.yaml"
    file.write_text(yaml.safe_dump_all(documents))
    return str(file)


def test_file_of_a_pod_with_resources_needs_the_webhook(
    cluster: Cluster, capsys: Capture, tmp_path: Path
) -> None:
    cluster.client.create(TEMPLATES, template())
    pod = objects.pod()
    (container,) = pod["spec"]["containers"]
    container["resources"] = {"limits": {"tensor-fusion.ai/vram": "16Gi"}}
    file = written(tmp_path, pod)

    code, without = cluster.why(capsys, "-f", file)
    webhooks = {"metadata": {"name": "w"}, "webhooks": [{"name": "pods.dra.tensor-fusion.ai"}]}
    cluster.client.create(MUTATING_WEBHOOKS, webhooks)
    _, installed = cluster.why(capsys, "-f", file)

    assert code == 1
    assert "no node has it, and the webhook is not installed" in without["answer"]
    assert installed["answer"].startswith("default/pod fits now")


def pod_with(annotations: Mapping[str, object]) -> Json:
    pod = objects.pod()
    pod["metadata"]["annotations"] = annotations
    return pod


def test_file_of_a_workload_with_annotations(
    cluster: Cluster, capsys: Capture, tmp_path: Path
) -> None:
    cluster.client.create(TEMPLATES, template())

    answers = {}
    for model in ("A100", "A10O"):
        pod = pod_with({**ANNOTATED, names.ANNOTATION_GPU_MODEL: model})
        del pod["metadata"]["name"]
        document = {"kind": "Deployment", "metadata": {"name": "w"}, "spec": {"template": pod}}
        _, answers[model] = cluster.why(capsys, "-f", written(tmp_path, document))

    for part in ("default/w", "webhook: is not installed", "Otherwise it fits now on node-01."):
        assert part in answers["A100"]["answer"]
    found = answers["A10O"]
    text = f"Correct {names.ANNOTATION_GPU_MODEL}: found A10O, but the cards have: A100 (2)."
    assert text in found["helps"]
    assert "Nor is there room: none of 2 cards fits: 2 do not match" in found["answer"]


@pytest.mark.parametrize(
    ("of_pods", "is_misplaced"),
    [({}, True), (pod_annotations(qos="high"), True), (ANNOTATED, False)],
)
def test_annotations_of_a_workload_itself(
    cluster: Cluster,
    workloads: CannedApi,
    capsys: Capture,
    tmp_path: Path,
    of_pods: Json,
    *,
    is_misplaced: bool,
) -> None:
    cluster.client.create(TEMPLATES, template())
    document = workload("Deployment", of_pods)
    document["metadata"]["annotations"] = pod_annotations(vram_request="1Gi", qos="high")
    workloads.answers[f"GET {PATHS['Deployment']}"] = document
    cluster.add_pod("w-1", metadata=LABELS)
    run_pods(cluster)

    for arguments in (("deploy/w",), ("-f", written(tmp_path, document))):
        code, found = cluster.why(capsys, *arguments)

        said = (
            f"Its pods get no GPU: Deployment default/w has {names.ANNOTATION_VRAM_REQUEST} among "
            "its own annotations, which its pods do not get."
        )
        cure = f"move {names.ANNOTATION_VRAM_REQUEST} to spec.template.metadata.annotations"
        shown = (found["answer"].startswith(said), cure in found["helps"])
        assert shown == (is_misplaced, is_misplaced)
        assert code == 1 or not is_misplaced


def cron_job(**metadata: str) -> Json:
    job = {"template": {"spec": objects.pod()["spec"]}}
    spec = {"schedule": "@daily", "jobTemplate": {"spec": job}}
    return {"kind": "CronJob", "metadata": metadata, "spec": spec}


@pytest.mark.parametrize(
    ("documents", "name"),
    [
        ([cron_job(name="nightly")], "nightly"),
        ([cron_job(generateName="run-")], "run-"),
        ([objects.pod("a", claim_name="a"), objects.claim(request(), name="a")], "a"),
    ],
)
def test_file_of_a_cron_job_and_of_a_pod_with_its_claim(
    cluster: Cluster, capsys: Capture, tmp_path: Path, documents: list[Json], name: str
) -> None:
    code, found = cluster.why(capsys, "-f", written(tmp_path, *documents))

    assert (code, found["pod"], found["state"]) == (0, f"default/{name}", "fits")


def test_file_with_malformed_annotations(cluster: Cluster, capsys: Capture, tmp_path: Path) -> None:
    malformed = pod_annotations(dra_enabled="true", vram_request="16 Gi", tflops_request="many")
    file = written(tmp_path, pod_with(malformed))

    code, found = cluster.why(capsys, "-f", file)

    (first, text), (second, _) = ((each["lookedAt"], each["found"]) for each in found["findings"])
    assert (code, found["nodes"]) == (1, [])  # its claim is not known, so nothing can be tried
    assert (
        found["answer"] == f"default/pod cannot be scheduled: {first}: {text} (2 findings in all)."
    )
    assert found["helps"] == [f"correct {first}", f"correct {second}"]
    assert {first, second} == {
        pod_request.path_of(names.ANNOTATION_VRAM_REQUEST),
        pod_request.path_of(names.ANNOTATION_TFLOPS_REQUEST),
    }


@pytest.mark.parametrize("value", [True, 16])
def test_file_with_an_annotation_that_is_not_text(
    cluster: Cluster, capsys: Capture, tmp_path: Path, value: object
) -> None:
    file = written(tmp_path, pod_with({names.ANNOTATION_VRAM_REQUEST: value}))

    ended = cluster.run(capsys, "why", "-f", file)

    assert (ended.code, ended.out) == (2, "")
    assert f"annotation {names.ANNOTATION_VRAM_REQUEST}: found {json.dumps(value)}" in ended.err


@pytest.mark.parametrize(
    ("annotation", "lines"),
    [
        (
            "vram-requst",
            [
                "found an unknown annotation; did you mean tensor-fusion.ai/vram-request?",
                "correct metadata.annotations[tensor-fusion.ai/vram-requst]",
            ],
        ),
        (
            "colour",
            [
                "note: tensor-fusion.ai/colour: unknown annotation",
                "cure: correct or remove tensor-fusion.ai/colour",
            ],
        ),
    ],
)
def test_file_with_an_unknown_annotation(
    cluster: Cluster, capsys: Capture, tmp_path: Path, annotation: str, lines: list[str]
) -> None:
    cluster.client.create(TEMPLATES, template())
    annotations = pod_annotations(dra_enabled="true", tflops_request="100")
    pod = pod_with({**annotations, f"{names.ANNOTATION_PREFIX}{annotation}": "1Gi"})

    text = cluster.text(capsys, "why", "-f", written(tmp_path, pod))

    assert [line for line in lines if line not in text] == []
