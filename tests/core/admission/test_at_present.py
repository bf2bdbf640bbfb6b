"""Warnings about a request that nothing published at present fulfils."""

from collections import Counter
from typing import Any

import pytest

from tensorfusion_dra.core.admission import at_present, pod_request
from tests.support.builders.pods import pod_annotations
from tests.support.builders.slices import slice_of_models

A100, T4 = ("A100", "312", "80Gi"), ("T4", "65", "15Gi")
AMOUNTS: Any = {"tflops_request": "100", "vram_request": "10Gi"}


def said(*slices: Any, pool: str = "", **annotations: str) -> list[str]:
    wanted = pod_request.parse(pod_annotations(**annotations))
    choices = pod_request.alternatives(wanted, [*pod_request.cards(slices)], pool=pool)
    return list(at_present.warnings(choices, Counter(pod_request.cards(slices)), pool=pool))


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


def test_a_pool_without_cards_is_said_with_those_that_have_some() -> None:
    assert said(TWO, OTHER, pool="edge", **AMOUNTS, gpu_model="T4") == [
        "tensor-fusion.ai/tflops-request: found 100, but the largest card has 65"
    ]
    assert said(TWO, OTHER, pool="new", **AMOUNTS) == [
        "tensor-fusion.ai/gpupool: new has no GPU at present; pools with GPUs: default, edge"
    ]
    assert said(**AMOUNTS) == ["no node has a GPU of this driver at present, so the pod waits"]


def test_what_a_pool_oversubscribes_counts() -> None:
    virtual = slice_of_models(A100)
    virtual["spec"]["devices"][0]["capacity"]["virtual_vram"] = {"value": "160Gi"}

    assert said(virtual, tflops_request="10", vram_request="160Gi") == []
    assert said(virtual, tflops_request="10", vram_request="161Gi") == [
        "tensor-fusion.ai/vram-request: found 161Gi, but the largest card has 160Gi"
    ]


def test_every_line_is_shorter_than_the_api_server_cuts_it() -> None:
    models = [(f"A-GPU-with-a-name-of-its-own-{index}", "1", "1Gi") for index in range(40)]
    found = said(slice_of_models(*models), gpu_model="X" * 60, **AMOUNTS)

    assert [len(each) for each in found] == [len(each) for each in found if len(each) < 256]
