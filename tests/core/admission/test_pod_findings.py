"""What is wrong with a pod: its annotations, its workload's, and cards that nobody publishes."""

from typing import Any

import pytest

from tensorfusion_dra.core import names
from tensorfusion_dra.core.admission import at_present, cards, pod_findings, pod_request
from tensorfusion_dra.core.admission.dialects import Dialect
from tests.support.builders.pods import pod_annotations, pod_document
from tests.support.builders.slices import slice_of_models

Json = dict[str, Any]
ASKED = pod_annotations(vram_request="16Gi")
PLAIN: Json = {"metadata": {}}
ASKING: Json = {"metadata": {"annotations": pod_annotations(tflops_request="1")}}


@pytest.mark.parametrize("spec", [{}, {"schedulerName": names.TENSOR_FUSION_SCHEDULER}])
def test_pod_that_tensor_fusion_places_itself_has_its_gpu(spec: Json) -> None:
    found = [*pod_findings.without_effect(pod_document(ASKED, **spec))]

    assert len(found) == (not spec)


@pytest.mark.parametrize(
    ("kind", "spec", "where"),
    [
        ("Deployment", {"template": PLAIN}, "spec.template.metadata.annotations"),
        (
            "CronJob",
            {"jobTemplate": {"spec": {"template": PLAIN}}},
            "spec.jobTemplate.spec.template.metadata.annotations",
        ),
        ("Deployment", {"template": ASKING}, ""),
        ("CronJob", {"jobTemplate": {"spec": {"template": ASKING}}}, ""),
        ("Pod", {"containers": []}, ""),
    ],
)
def test_annotations_of_a_workload_that_its_pods_do_not_get(
    kind: str, spec: Json, where: str
) -> None:
    metadata = {"name": "w", "namespace": "team-a", "annotations": ASKED}

    found = [*pod_findings.misplaced({"kind": kind, "metadata": metadata, "spec": spec})]

    assert [each.expected for each in found] == ([where] if where else [])


@pytest.mark.parametrize(
    ("unknown", "dialect"),
    [
        (["nvidia.com/gpu", "nvidia.com/gpumem"], Dialect.HAMI),
        (["nvidia.com/vgpu-memory", "nvidia.com/vgpu-cores"], Dialect.VGPU_MANAGER),
        (["nvidia.com/gpu"], None),
        (["example.com/fpga"], None),
        ([], None),
    ],
)
def test_dialect_of_resources_that_nobody_offers(
    unknown: list[str], dialect: Dialect | None
) -> None:
    assert pod_findings.dialect_of(unknown) is dialect


A100, T4 = ("A100", "312", "80Gi"), ("T4", "65", "15Gi")
AMOUNTS: Any = {"tflops_request": "100", "vram_request": "10Gi"}


def said(*slices: Any, pool: str = "", **annotations: str) -> list[str]:
    wanted = pod_request.parse(pod_annotations(**annotations))
    every = cards.of_slices(slices)
    choices = pod_request.alternatives(wanted, every, pool=pool)
    return list(at_present.warnings(choices, every, pool=pool))


TWO = slice_of_models(A100, A100, T4)
OTHER = slice_of_models(T4, pool="edge")


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        (AMOUNTS, ""),
        ({**AMOUNTS, "gpu_count": "3"}, ""),
        ({**AMOUNTS, "gpu_model": "A100", "gpu_count": "2"}, ""),
        ({**AMOUNTS, "gpu_model": "NVIDIA A100"}, ""),
        ({"dedicated_gpu": "true"}, ""),
        (
            {**AMOUNTS, "gpu_model": "H100"},
            "tensor-fusion.ai/gpu-model: found H100, but the cards have A100 (2), T4 (1) at",
        ),
        (
            {**AMOUNTS, "gpu_model": "NVIDIA A100-SXM4-40GB"},
            "tensor-fusion.ai/gpu-model: found NVIDIA A100-SXM4-40GB, but the cards have NVIDIA "
            "A100 (2), T4 (1) at present",
        ),
        (
            {**AMOUNTS, "vram_request": "100Gi"},
            "tensor-fusion.ai/vram-request: found 100Gi, but the largest card has 80Gi",
        ),
        (
            {**AMOUNTS, "gpu_model": "T4", "tflops_request": "66"},
            "tensor-fusion.ai/tflops-request: found 66, but the largest card has 65",
        ),
        (
            {**AMOUNTS, "gpu_count": "4"},
            "tensor-fusion.ai/gpu-count: found 4, but no node has more than 3 such GPUs",
        ),
        (
            {**AMOUNTS, "gpu_model": "A100", "gpu_count": "3"},
            "tensor-fusion.ai/gpu-count: found 3, but no node has more than 2 such GPUs",
        ),
    ],
)
def test_what_no_node_has_is_said_once(annotations: dict[str, str], expected: str) -> None:
    found = said(TWO, **annotations)

    assert len(found) == bool(expected)
    assert "".join(found).startswith(expected)


VIRTUAL = slice_of_models(A100)
VIRTUAL["spec"]["devices"][0]["capacity"]["virtual_vram"] = {"value": "160Gi"}


@pytest.mark.parametrize(
    ("slices", "annotations", "expected"),
    [
        (
            [TWO, OTHER],
            {"pool": "edge", **AMOUNTS, "gpu_model": "T4"},
            ["tensor-fusion.ai/tflops-request: found 100, but the largest card has 65"],
        ),
        (
            [TWO, OTHER],
            {"pool": "new", **AMOUNTS},
            ["tensor-fusion.ai/gpupool: new has no GPU at present; pools with GPUs: default, edge"],
        ),
        ([], AMOUNTS, ["no node has a GPU of this driver at present, so the pod waits"]),
        # What a pool oversubscribes counts.
        ([VIRTUAL], {"tflops_request": "10", "vram_request": "160Gi"}, []),
        (
            [VIRTUAL],
            {"tflops_request": "10", "vram_request": "161Gi"},
            ["tensor-fusion.ai/vram-request: found 161Gi, but the largest card has 160Gi"],
        ),
    ],
)
def test_only_cards_of_the_pool_count_with_what_it_oversubscribes(
    slices: list[Json], annotations: dict[str, str], expected: list[str]
) -> None:
    assert said(*slices, **annotations) == expected


def test_every_line_is_shorter_than_the_api_server_cuts_it() -> None:
    models = [(f"A-GPU-with-a-name-of-its-own-{index}", "1", "1Gi") for index in range(40)]

    found = said(slice_of_models(*models), gpu_model="X" * 60, **AMOUNTS)

    assert max(map(len, found)) < 256
