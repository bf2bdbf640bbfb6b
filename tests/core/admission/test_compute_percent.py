"""Compute percentages become TFLOPS if all possible cards have the same TFLOPS."""

import pytest

from tensorfusion_dra.core.admission import pod_request
from tensorfusion_dra.core.admission.pod_request import PodRequest
from tensorfusion_dra.core.errors import InputError
from tests.support.admission import Json
from tests.support.builders.pods import pod_annotations
from tests.support.builders.slices import slice_of_models

A100, T4 = ("A100", "312"), ("T4", "65")


def resolved(*slices: Json, pool: str = "default", **annotations: str) -> PodRequest:
    return pod_request.in_tflops(
        pod_request.parse(pod_annotations(**annotations), []), slices, pool=pool
    )


@pytest.mark.parametrize(
    ("percent", "tflops"),
    [
        ("100", "312"),
        ("50", "156"),
        ("33", "102960m"),
        ("12.5", "39"),
        ("1n", "3n"),
        ("0.3n", "3n"),
    ],
)
def test_percentages_are_converted_exactly(percent: str, tflops: str) -> None:
    found = resolved(slice_of_models(A100), compute_percent_request=percent)

    assert str(found.tflops) == tflops
    assert not found.has_percentages


@pytest.mark.parametrize(
    ("slices", "annotations"),
    [
        ([slice_of_models(A100, A100)], {}),
        ([slice_of_models(A100), slice_of_models(T4, pool="other")], {}),
        ([slice_of_models(A100, T4)], {"gpu_model": "A100"}),
        ([slice_of_models(A100), slice_of_models(A100)], {"dra_cel_expression": "true"}),
        ([slice_of_models(A100), {"spec": {"devices": [{"capacity": {}}, 7]}}, {}], {}),
    ],
)
def test_only_cards_that_the_pod_can_get_are_considered(
    slices: list[Json], annotations: dict[str, str]
) -> None:
    found = resolved(*slices, compute_percent_request="50", **annotations)

    assert str(found.tflops) == "156"


@pytest.mark.parametrize(
    ("slices", "annotations", "expected"),
    [
        ([], {}, "found no published GPU of any model in pool default, expected one, or tensor"),
        (
            [slice_of_models(A100, pool="other")],
            {},
            "found no published GPU of any model in pool def",
        ),
        (
            [slice_of_models(A100)],
            {"gpu_model": "H100"},
            "found no published GPU H100 in pool default",
        ),
        (
            [slice_of_models(A100, T4)],
            {},
            "found T4 of 65 TFLOPS, A100 of 312 TFLOPS, expected one k",
        ),
        (
            [slice_of_models(A100), slice_of_models(T4, pool="other")],
            {"dra_cel_expression": "true"},
            "found T4 of 65 TFLOPS, A100 of 312",
        ),
    ],
)
def test_ambiguous_percentages_are_refused(
    slices: list[Json], annotations: dict[str, str], expected: str
) -> None:
    with pytest.raises(InputError) as caught:
        resolved(*slices, compute_percent_request="50", **annotations)

    assert str(caught.value).startswith(expected)


@pytest.mark.parametrize(
    ("annotations", "tflops", "limit"),
    [
        ({"compute_percent_limit": "50"}, "156", "156"),
        ({"compute_percent_request": "25", "compute_percent_limit": "50"}, "78", "156"),
        ({"tflops_request": "10", "compute_percent_limit": "50"}, "10", "156"),
        ({"compute_percent_request": "0", "compute_percent_limit": "50"}, "156", "156"),
    ],
)
def test_limit_without_a_request_is_the_request_as_well(
    annotations: dict[str, str], tflops: str, limit: str
) -> None:
    found = resolved(slice_of_models(A100), **annotations)

    assert (str(found.tflops), str(found.share.tflops_limit)) == (tflops, limit)


@pytest.mark.parametrize(
    "annotations",
    [
        {"tflops_request": "10", "compute_percent_request": "25"},
        {"tflops_limit": "10", "compute_percent_request": "25", "compute_percent_limit": "50"},
        {"isolation": "shared", "compute_percent_request": "25", "compute_percent_limit": "50"},
        {"dedicated_gpu": "true", "compute_percent_request": "25"},
        {"vram_request": "1Gi", "compute_percent_request": "0"},
    ],
)
def test_tflops_and_whole_gpus_take_precedence_over_percentages(
    annotations: dict[str, str],
) -> None:
    assert not pod_request.parse(pod_annotations(**annotations), []).has_percentages
