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
from tests.support.gpu_cluster import ANNOTATED, Cluster, request, template, two_cards
from tests.support.objects import Json

Capture = pytest.CaptureFixture[str]


def test_file_of_a_workload_with_annotations(
    cluster: Cluster, capsys: Capture, tmp_path: Path
) -> None:
    cluster.add_node("node-01", *two_cards())
    cluster.client.create(TEMPLATES, template())
    file = tmp_path / "deployment.yaml"

    answers = {}
    for model in ("A100", "A10O"):
        annotations = {**ANNOTATED, names.ANNOTATION_GPU_MODEL: model}
        pod = {"metadata": {"annotations": annotations}, "spec": objects.pod()["spec"]}
        document = {"kind": "Deployment", "metadata": {"name": "w"}, "spec": {"template": pod}}
        file.write_text(yaml.safe_dump(document))
        _, answers[model] = cluster.why(capsys, "-f", str(file))

    found = answers["A10O"]
    assert "webhook: is not installed" in answers["A100"]["answer"]
    assert "default/w" in answers["A100"]["answer"]
    assert "Otherwise it fits now on node-01." in answers["A100"]["answer"]
    text = f"Correct {names.ANNOTATION_GPU_MODEL}: found A10O, but the cards have: A100 (2)."
    assert text in found["helps"]
    assert "Nor is there room: none of 2 cards fits: 2 do not match" in found["answer"]


def _file(folder: Path, annotations: Mapping[str, object]) -> str:
    """Write a pod with these annotations; return the path of its file."""
    pod = objects.pod()
    pod["metadata"]["annotations"] = annotations
    file = folder / "pod.yaml"
    file.write_text(yaml.safe_dump(pod))
    return str(file)


@pytest.mark.parametrize(
    ("metadata", "name"), [({"name": "nightly"}, "nightly"), ({"generateName": "run-"}, "run-")]
)
def test_file_of_a_cron_job(
    cluster: Cluster, capsys: Capture, tmp_path: Path, metadata: Json, name: str
) -> None:
    cluster.add_node("node-01", *two_cards())
    job = {"template": {"spec": objects.pod()["spec"]}}
    spec = {"schedule": "@daily", "jobTemplate": {"spec": job}}
    file = tmp_path / "cronjob.yaml"
    file.write_text(yaml.safe_dump({"kind": "CronJob", "metadata": metadata, "spec": spec}))

    code, found = cluster.why(capsys, "-f", str(file))

    assert (code, found["pod"]) == (0, f"default/{name}")


def test_file_with_malformed_annotations(cluster: Cluster, capsys: Capture, tmp_path: Path) -> None:
    cluster.add_node("node-01", *two_cards())
    malformed = pod_annotations(dra_enabled="true", vram_request="16 Gi", tflops_request="many")
    file = _file(tmp_path, malformed)

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
    file = _file(tmp_path, {names.ANNOTATION_VRAM_REQUEST: value})

    ended = cluster.run(capsys, "why", "-f", file)

    assert (ended.code, ended.out) == (2, "")
    assert f"annotation {names.ANNOTATION_VRAM_REQUEST}: found {json.dumps(value)}" in ended.err


def test_file_with_a_misspelled_annotation(
    cluster: Cluster, capsys: Capture, tmp_path: Path
) -> None:
    cluster.add_node("node-01", *two_cards())
    cluster.client.create(TEMPLATES, template())
    misspelled = names.ANNOTATION_VRAM_REQUEST.replace("request", "requst")
    unknown = f"{names.ANNOTATION_PREFIX}colour"
    annotations = pod_annotations(dra_enabled="true", tflops_request="100")

    file = _file(tmp_path, {**annotations, misspelled: "1Gi"})
    _, found = cluster.why(capsys, "-f", file)
    text = cluster.text(capsys, "why", "-f", file)
    file = _file(tmp_path, {**annotations, unknown: "red"})
    text += cluster.text(capsys, "why", "-f", file)

    assert f"correct metadata.annotations[{misspelled}]" in found["helps"]
    assert "found an unknown annotation; did you mean tensor-fusion.ai/vram-request?" in text
    assert f"note: {unknown}: unknown annotation\ncure: correct or remove {unknown}" in text


def test_file_with_its_claim(cluster: Cluster, capsys: Capture, tmp_path: Path) -> None:
    cluster.add_node("node-01", *two_cards())
    file = tmp_path / "pod.yaml"
    documents = [objects.pod("a", claim_name="a"), objects.claim(request(), name="a")]
    file.write_text(yaml.safe_dump_all(documents))

    code, found = cluster.why(capsys, "-f", str(file))

    assert (code, found["state"]) == (0, "fits")
