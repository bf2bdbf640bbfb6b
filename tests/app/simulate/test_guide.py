"""The user guide's examples on a simulated cluster, from admission to the container."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import forks, kubernetes_schemas, markdown

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "hack" / "examples"
EIGHT = ("--gpus", "8xA100-SXM4-80GB")


def simulated(file: Path, *flags: str) -> dict[str, Any]:
    """Return the report of `simulate --from`."""
    ended = forks.run("simulate", "-o", "json", "--from", str(file), *flags)
    assert ended.returncode == 0, ended.stderr
    report: dict[str, Any] = json.loads(ended.stdout)
    return report


def written(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "objects.yaml"
    file.write_text(text)
    return file


@pytest.mark.parametrize(
    ("name", "flags", "gpus", "percent"),
    [
        ("guide-quick-start", (), 1, 33),
        ("guide-configuration", (), 2, 33),
        ("guide-appendix-1", (), 1, 33),
        ("guide-appendix-2", EIGHT, 4, 65),
    ],
)
def test_the_guides_pod_runs_with_its_devices_and_limits(
    name: str, flags: tuple[str, ...], gpus: int, percent: int
) -> None:
    report = simulated(EXAMPLES / f"{name}.yaml", *flags)

    (pod,) = report["pods"]
    assert (pod["phase"], report["left_behind"]) == ("Running", [])
    assert len({share["device"] for share in pod["shares"]}) == gpus
    assert len(pod["cdi_ids"]) == 2 * gpus, "a card and its limits for each"
    limits = json.loads(pod["env"]["TENSOR_FUSION_CUDA_UP_LIMIT"])
    assert list(limits.values()) == [percent] * gpus


def test_pods_in_the_words_of_other_systems_get_the_amounts_that_they_ask_for() -> None:
    file = Path(__file__).with_name("dialects.yaml")
    report = simulated(file, "--gpus", "3xA100-SXM4-40GB")

    found = {
        each["pod"]: (
            len(each["requests"]),
            each["requests"][0].get("capacity", {}).get("requests"),
        )
        for each in report["admissions"]
    }
    # HAMi's is a quarter of two cards' memory, KAI's of one; the compute of the last three but the
    # whole card's follows memory.
    assert found == {
        "hami": (2, {"tflops": "93600m", "vram": "10Gi"}),
        "vgpu-manager": (1, {"tflops": "31200m", "vram": "4Gi"}),
        "kai": (1, {"tflops": "78", "vram": "10Gi"}),
        "gpu-fractioning": (1, {"tflops": "62400m", "vram": "8Gi"}),
        "kserve": (1, None),
        "fallback": (1, {"tflops": "10", "vram": "4Gi"}),
    }
    assert {pod["phase"] for pod in report["pods"]} == {"Running"}
    assert report["left_behind"] == []


def test_parameters_in_annotations_reach_the_container() -> None:
    report = simulated(EXAMPLES / "guide-annotations.yaml", *EIGHT, "--qos", "high")

    pod, other = report["pods"]
    assert (pod["phase"], other["phase"]) == ("Running", "Pending")
    limits = {"TF_GPU_MEMORY_LIMIT": str(36 * 1024), "TF_CUDA_SM_PERCENT_LIMIT": "81"}
    assert pod["env"].items() >= limits.items()
    (admitted, _) = report["admissions"]
    assert admitted["annotations"]["tensor-fusion.ai/inject-container"] == "main"
    assert [each["count"] for each in admitted["requests"]] == [1] * 4


def test_a_pod_of_an_oversubscribed_pool_gets_virtual_capacity(
    tmp_path: Path,
) -> None:
    file = written(
        tmp_path,
        """
apiVersion: tensor-fusion.ai/v1
kind: GPUPool
metadata: {name: big}
spec:
  draConfig: {enable: true}
  capacityConfig: {oversubscription: {tflopsOversellRatio: 200}}
---
apiVersion: v1
kind: Pod
metadata:
  name: train
  annotations:
    tensor-fusion.ai/gpupool: big
    tensor-fusion.ai/tflops-request: "400"
    tensor-fusion.ai/vram-request: 16Gi
spec:
  containers: [{name: main, image: train}]
""",
    )

    report = simulated(file, "--gpus", "1xA100-SXM4-80GB")

    assert report["pods"][0]["shares"][0]["consumed"]["virtual_tflops"] == "400"


def test_pod_whose_claim_names_a_class_gets_the_amounts_of_the_class(tmp_path: Path) -> None:
    text = (EXAMPLES / "share-class.yaml").read_text()
    own = text.replace("name: quarter", "name: own").replace(
        "TemplateName: quarter", "TemplateName: own"
    )
    several = own.split("---", 1)[1].replace("gpu-quarter", "gpu-quarter\n            count: 2")
    file = written(tmp_path, f"{text}---{several}")

    report = simulated(file)

    found = {pod["name"]: pod for pod in report["pods"]}
    assert {pod["phase"] for pod in found.values()} == {"Running"}
    consumed = {"tflops": "78", "vram": "20Gi"}
    for name, cards in (("quarter", 1), ("own", 2)):
        assert [share["consumed"] for share in found[name]["shares"]] == [consumed] * cards
        assert found[name]["asks"] == [consumed] * cards
        assert len({share["device"] for share in found[name]["shares"]}) == cards
    assert found["quarter"]["env"]["TF_GPU_MEMORY_LIMIT"] == str(30 * 1024)
    assert report["left_behind"] == []


CONTAINERS = """
apiVersion: v1
kind: Pod
metadata:
  name: two
  annotations:
    tensor-fusion.ai/dra-enabled: "true"
    tensor-fusion.ai/container-shares: |
      {"app": {"tflops-request": "100", "vram-request": "16Gi"},
       "log": {"tflops-request": "20", "vram-request": "4Gi"}}
spec:
  containers: [{name: app, image: train}, {name: log, image: log}]
---
apiVersion: v1
kind: Pod
metadata:
  name: forgotten
  annotations: {tensor-fusion.ai/vram-request: 16Gi}
spec:
  containers: [{name: app, image: train}]
"""


def test_shares_of_containers_and_a_pod_without_a_gpu_are_shown_as_they_are(tmp_path: Path) -> None:
    ended = forks.run("simulate", "--from", str(written(tmp_path, CONTAINERS)))

    lines = [" ".join(line.split()) for line in ended.stdout.splitlines()]
    two = "two 100 TFLOPS, 16Gi + 20 TFLOPS, 4Gi Running gpu-363a 33 %, 16Gi, soft"
    place = lines.index(two)
    assert lines[place + 1] == "7 %, 4Gi, soft"
    assert "forgotten no GPU Running - -" in lines


TEMPLATE = """{metadata: {annotations: {tensor-fusion.ai/dra-enabled: "true",
  tensor-fusion.ai/tflops-request: "10", tensor-fusion.ai/vram-request: 1Gi}},
  spec: {containers: [{name: main, image: train}]}}"""
WORKLOADS = f"""
apiVersion: apps/v1
kind: Deployment
metadata: {{name: serve}}
spec:
  replicas: 2
  template: {TEMPLATE}
---
apiVersion: batch/v1
kind: Job
metadata: {{generateName: train-}}
spec: {{template: {TEMPLATE}}}
---
apiVersion: batch/v1
kind: CronJob
metadata: {{name: nightly}}
spec:
  schedule: "@daily"
  jobTemplate: {{spec: {{parallelism: 2, template: {TEMPLATE}}}}}
"""


def test_pods_of_workloads_run(tmp_path: Path) -> None:
    report = simulated(written(tmp_path, WORKLOADS))

    pods = ["serve-1", "serve-2", "train-1", "nightly-1", "nightly-2"]
    found = {pod["name"]: pod["phase"] for pod in report["pods"]}
    assert found == dict.fromkeys(pods, "Running")
    assert [each["claim"] != "" for each in report["admissions"]] == [True] * 5


def test_the_job_and_the_deployment_of_the_page_are_valid_and_their_pods_run(
    tmp_path: Path,
) -> None:
    blocks = markdown.blocks(markdown.text(ROOT / "docs" / "use.md"), "yaml")
    (text,) = [each for each in blocks if {"kind: Job", "kind: Deployment"} <= {*each.splitlines()}]
    for document in yaml.safe_load_all(text):
        kubernetes_schemas.check(document)

    report = simulated(written(tmp_path, text), "--gpus", "1xA100-SXM4-80GB")

    found = {pod["name"]: (pod["phase"], len(pod["shares"])) for pod in report["pods"]}
    assert found == dict.fromkeys(("train-1", "serve-1", "serve-2"), ("Running", 1))


def test_a_pod_on_a_node_whose_settings_oversubscribe_gets_virtual_capacity() -> None:
    report = simulated(EXAMPLES / "annotated.yaml", "--tflops-oversell-ratio", "150")

    (share,) = report["pods"][0]["shares"]
    assert share["consumed"].items() >= {"virtual_tflops": "100", "virtual_vram": "16Gi"}.items()
    assert {each["capacity"] for each in report["left"]} == {"virtual_tflops", "virtual_vram"}


def test_a_refused_pod_is_reported_with_every_reason(tmp_path: Path) -> None:
    text = (EXAMPLES / "guide-quick-start.yaml").read_text()
    wrong = text.replace('"100"', "many").replace("16Gi", "lots")
    expression = "    tensor-fusion.ai/dra-cel-expression: device.nosuch == 'x'\n"
    file = written(tmp_path, wrong.replace("  annotations:\n", "  annotations:\n" + expression))

    report = simulated(file)

    (admission,) = report["admissions"]
    assert report["pods"] == []
    for said in (
        'admission webhook "pods.dra.tensor-fusion.ai" denied the request: ',
        "tflops-request]: found 'many'",
        "vram-request]: found 'lots'",
        "dra-cel-expression]: 1:7: undefined field 'nosuch' not found",
    ):
        assert said in admission["refused"]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("kind: [", "line 1: expected the node content"),
        ("7", "found '7', expected an object"),
        (
            "{apiVersion: apps/v1, kind: Deployment, metadata: {name: a}}",
            "found Deployment of apps",
        ),
        (
            "{apiVersion: v1, kind: Service, metadata: {name: a}}",
            "found Service of v1, expected one",
        ),
        (
            "{apiVersion: batch/v1, kind: Job, metadata: {name: a}, spec: {parallelism: 201, "
            "template: {spec: {containers: []}}}}",
            "Job a: found 201 pods, expected at most 200",
        ),
        (
            "{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: b}}",
            "namespace: found b, expected default",
        ),
        (
            (EXAMPLES / "share-class.yaml").read_text().replace("30Gi", "many"),
            "DeviceClass gpu-quarter: limits.vram: found 'many', expected a quantity",
        ),
    ],
)
def test_an_unusable_file_is_a_one_line_error(tmp_path: Path, text: str, error: str) -> None:
    ended = forks.run("simulate", "--from", str(written(tmp_path, text)))

    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert error in ended.stderr


def test_partitions_go_to_pods_that_ask_for_them_and_to_no_others() -> None:
    file = Path(__file__).with_name("partitions.yaml")
    report = simulated(file, "--gpus", "1xA100-SXM4-80GB,1xA100-SXM4-80GB@mig=2g.20gb:1g.10gb*5")

    got = {
        pod["name"]: (pod["shares"][0]["device"][:3] if pod["shares"] else "", pod["phase"])
        for pod in report["pods"]
    }
    asking = [got.pop(f"partitioned-{number}") for number in range(1, 6)]
    asking += [got.pop("by-class"), got.pop("one-more")]
    assert sorted(asking) == [("", "Pending"), *[("mig", "Running")] * 6]
    assert got == dict.fromkeys(("share", "own", "by-model", "kai"), ("gpu", "Running"))
    assert report["left_behind"] == []
