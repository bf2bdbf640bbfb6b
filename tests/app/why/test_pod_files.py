"""The verb `why` on pods that are not created yet."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from dra_simulator.rest import TEMPLATES
from tensorfusion_dra.core import names
from tensorfusion_dra.core.admission import pod_request
from tests.support import objects
from tests.support.builders.pods import pod_annotations
from tests.support.gpu_cluster import ANNOTATED, Cluster, request, template
from tests.support.objects import Json

Capture = pytest.CaptureFixture[str]
pytestmark = pytest.mark.usefixtures("cards")


def written(folder: Path, *documents: Json) -> str:
    """Write a file with these documents; return its path."""
    file = folder / "pod.yaml"
    file.write_text(yaml.safe_dump_all(documents))
    return str(file)


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

    found = answers["A10O"]
    assert "webhook: is not installed" in answers["A100"]["answer"]
    assert "default/w" in answers["A100"]["answer"]
    assert "Otherwise it fits now on node-01." in answers["A100"]["answer"]
    text = f"Correct {names.ANNOTATION_GPU_MODEL}: found A10O, but the cards have: A100 (2)."
    assert text in found["helps"]
    assert "Nor is there room: none of 2 cards fits: 2 do not match" in found["answer"]


@pytest.mark.parametrize(
    ("metadata", "name"), [({"name": "nightly"}, "nightly"), ({"generateName": "run-"}, "run-")]
)
def test_file_of_a_cron_job(
    cluster: Cluster, capsys: Capture, tmp_path: Path, metadata: Json, name: str
) -> None:
    job = {"template": {"spec": objects.pod()["spec"]}}
    spec = {"schedule": "@daily", "jobTemplate": {"spec": job}}
    file = written(tmp_path, {"kind": "CronJob", "metadata": metadata, "spec": spec})

    code, found = cluster.why(capsys, "-f", file)

    assert (code, found["pod"]) == (0, f"default/{name}")


def test_file_with_malformed_annotations(cluster: Cluster, capsys: Capture, tmp_path: Path) -> None:
    malformed = pod_annotations(dra_enabled="true", vram_request="16 Gi", tflops_request="many")
    file = written(tmp_path, pod_with(malformed))

    code, found = cluster.why(capsys, "-f", file)
    text = cluster.text(capsys, "why", "-f", file)

    first, second = (found["findings"][index]["lookedAt"] for index in (0, 1))
    assert (code, found["nodes"]) == (1, [])  # its claim is not known, so nothing can be tried
    assert found["answer"] == (
        f"default/pod cannot be scheduled: {first}: {found['findings'][0]['found']} (and 1 more)."
    )
    assert found["helps"] == [f"correct {first}", f"correct {second}"]
    assert f"problem: {second}: {found['findings'][1]['found']}" in text
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


def test_file_with_a_misspelled_annotation(
    cluster: Cluster, capsys: Capture, tmp_path: Path
) -> None:
    cluster.client.create(TEMPLATES, template())
    misspelled = names.ANNOTATION_VRAM_REQUEST.replace("request", "requst")
    unknown = f"{names.ANNOTATION_PREFIX}colour"
    annotations = pod_annotations(dra_enabled="true", tflops_request="100")

    file = written(tmp_path, pod_with({**annotations, misspelled: "1Gi"}))
    _, found = cluster.why(capsys, "-f", file)
    text = cluster.text(capsys, "why", "-f", file)
    file = written(tmp_path, pod_with({**annotations, unknown: "red"}))
    text += cluster.text(capsys, "why", "-f", file)

    assert f"correct metadata.annotations[{misspelled}]" in found["helps"]
    assert "found an unknown annotation; did you mean tensor-fusion.ai/vram-request?" in text
    assert f"note: {unknown}: unknown annotation\ncure: correct or remove {unknown}" in text


def test_file_with_its_claim(cluster: Cluster, capsys: Capture, tmp_path: Path) -> None:
    documents = (objects.pod("a", claim_name="a"), objects.claim(request(), name="a"))

    code, found = cluster.why(capsys, "-f", written(tmp_path, *documents))

    assert (code, found["state"]) == (0, "fits")
