"""What a pod requests by annotations: amounts, percent of compute, and its pool."""

import pytest

from tensorfusion_dra.core.admission import cards, pod_request
from tensorfusion_dra.core.admission.pod_request import AnnotationError, PodRequest
from tensorfusion_dra.core.claims.share_policy import ShareParameters
from tensorfusion_dra.core.devices.gpu import Isolation, Qos
from tensorfusion_dra.core.kubernetes import quantity
from tests.support.admission import Json
from tests.support.builders.pods import pod_annotations
from tests.support.builders.slices import slice_of_models

AMOUNTS = {"tflops_request": "100", "vram_request": "16Gi"}


def parsed_request(**annotations: str) -> PodRequest:
    found = pod_request.parse(pod_annotations(**annotations))
    assert not found.errors
    return found


def test_blank_expression_is_unset() -> None:
    assert parsed_request(**AMOUNTS, dra_cel_expression=" \n").expression == ""


def test_every_annotation_is_read() -> None:
    found = parsed_request(
        dra_enabled="true",
        tflops_request="71200m",
        vram_request="16Gi",
        gpu_count="4",
        gpu_model="A100",
        gpupool="prod-pool",
        qos="high",
        isolation="hard",
        tflops_limit="200",
        vram_limit="32Gi",
        inject_container="main, side",
        dra_cel_expression='device.attributes["model"] == "H100"\n',
    )

    assert found == PodRequest(
        enabled=True,
        tflops=quantity.parse("71.2"),
        vram=quantity.parse("16Gi"),
        count=4,
        models=("A100",),
        pool="prod-pool",
        expression='device.attributes["model"] == "H100"\n',
        containers=("main", "side"),
        share=ShareParameters(
            tflops_limit=quantity.parse("200"),
            vram_limit=quantity.parse("32Gi"),
            isolation=Isolation.HARD,
            qos=Qos.HIGH,
        ),
    )


LIMITS = {"tflops_limit": "100", "vram_limit": "8Gi"}


@pytest.mark.parametrize(
    ("annotations", "amounts"),
    [
        (AMOUNTS, {"tflops": "100", "vram": "16Gi"}),
        ({"tflops_request": "100"}, {"tflops": "100"}),
        ({"vram_request": "16Gi"}, {"vram": "16Gi"}),
        ({"tflops_request": "100", "vram_request": "0"}, {"tflops": "100"}),
        # A limit without a request is the request as well.
        ({**LIMITS, "vram_request": "4Gi"}, {"tflops": "100", "vram": "4Gi"}),
        ({**AMOUNTS, "dedicated_gpu": "true"}, {}),
        ({"dedicated_gpu": "true"}, {}),
    ],
)
def test_amounts_of_a_request(annotations: dict[str, str], amounts: dict[str, str]) -> None:
    found = parsed_request(**annotations).amounts()

    assert {name: str(amount) for name, amount in found.items()} == amounts


@pytest.mark.parametrize("more", [{}, AMOUNTS, LIMITS])
def test_shared_isolation_has_neither_amounts_nor_limits(more: dict[str, str]) -> None:
    found = parsed_request(**more, isolation="shared", gpu_count="2")

    assert (found.whole, found.amounts(), found.count) == (True, {}, 2)
    assert (found.share.tflops_limit, found.share.vram_limit) == (None, None)


@pytest.mark.parametrize(
    ("annotation", "text", "error"),
    [
        ("dra_enabled", "yes", "found 'yes', expected true or false"),
        ("dra_enabled", "True", "found 'True', expected true or false"),
        ("tflops_request", "100 TF", "found '100 TF', expected a quantity such as 100, 71200m"),
        ("tflops_request", "-1", "found -1, expected 0 or more"),
        ("vram_request", "16GiB", "found '16GiB', expected a quantity"),
        *(
            (
                of,
                "25%",
                "found '25%', expected a quantity such as 100, 71200m or 16Gi (did you mean "
                f"tensor-fusion.ai/{instead}: 25?)",
            )
            for of, instead in {
                "tflops_request": "compute-percent-request",
                "tflops_limit": "compute-percent-limit",
                "vram_request": "vram-percent-request",
                "vram_percent_request": "vram-percent-request",
            }.items()
        ),
        ("gpu_count", "0", "found '0', expected 1 to 32"),
        ("gpu_count", "33", "found '33', expected 1 to 32"),
        ("gpu_count", "1.5", "found '1.5', expected 1 to 32"),
        ("gpu_count", "٤", "found '٤', expected 1 to 32"),
        ("gpu_model", " ", "found ' ', expected a model such as A100"),
        ("gpu_model", "\ud800", "found '\\ud800', expected text that UTF-8 can encode"),
        ("gpupool", "Prod_Pool", "found 'Prod_Pool', expected the name of a GPUPool"),
        ("qos", "best", "found 'best', expected one of low, medium, high, critical"),
        ("isolation", "none", "found 'none', expected one of soft, hard, shared"),
        ("tflops_limit", "x", "found 'x', expected a quantity"),
        ("compute_percent_request", "101", "found 101, expected more than 0 and at most 100"),
        ("compute_percent_request", "-1", "found -1, expected more than 0 and at most 100"),
        ("compute_percent_limit", "50%", "found '50%', expected a quantity"),
        ("vram_limit", "-1Gi", "found -1Gi, expected 0 or more"),
        ("inject_container", "main,,side", "found 'main,,side', expected names of containers"),
        ("dedicated_gpu", "1", "found '1', expected true or false"),
        ("require_enforcement", "yes", "found 'yes', expected true or false"),
        ("dra_cel_expression", "device.attributes[", "1:"),
        ("dra_cel_expression", 'device.capacity["vram"] > 5', "1:"),
    ],
)
def test_malformed_annotation_is_reported_with_the_expected_value(
    annotation: str, text: str, error: str
) -> None:
    found = pod_request.parse(pod_annotations(**{**AMOUNTS, annotation: text}))

    (shown,) = map(str, found.errors)
    name = annotation.replace("_", "-")
    assert shown.startswith(f"metadata.annotations[tensor-fusion.ai/{name}]: {error}")
    # A malformed dra-enabled counts as true, so that its error is reported.
    assert annotation != "dra_enabled" or found.enabled


def test_pod_without_an_amount_is_refused() -> None:
    found = pod_request.parse(pod_annotations(dra_enabled="true", gpu_model="A100"))

    assert [str(error) for error in found.errors] == [
        "metadata.annotations[tensor-fusion.ai/tflops-request]: "
        "found no amount, expected tensor-fusion.ai/tflops-request, "
        "tensor-fusion.ai/vram-request or both"
    ]


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        ({}, False),
        ({"gpupool": "default"}, False),
        ({"qos": "high", "tflops_limit": "1"}, False),
        ({"tflops_request": "100"}, True),
        ({"dra_enabled": "true"}, True),
        ({"dra_enabled": "false", "tflops_request": "100"}, False),
    ],
)
def test_only_some_annotations_request_a_gpu(
    annotations: dict[str, str], *, expected: bool
) -> None:
    assert pod_request.requests_gpu(pod_annotations(**annotations)) is expected


A100, T4 = ("A100", "312"), ("T4", "65")


def chosen(*slices: Json, pool: str = "default", **annotations: str) -> tuple[PodRequest, ...]:
    wanted = pod_request.parse(pod_annotations(**annotations))
    return pod_request.alternatives(wanted, cards.of_slices(slices), pool=pool)


SMALL = ("A100", "312", "40Gi")
LIKE = {"compute_percent_request": "memory"}
HALF = {"compute_percent_request": "50"}


@pytest.mark.parametrize(
    ("slices", "annotations", "expected"),
    [
        # Percentages of a card's compute are rounded down, so that equal parts of it fit.
        *(
            ([slice_of_models(A100)], {"compute_percent_request": percent}, [("", tflops, None)])
            for percent, tflops in {
                "100": "312",
                "50": "156",
                "33": "102960m",
                "12.5": "39",
                "0.3n": "1m",
                "33.3333": "103999m",
            }.items()
        ),
        # Only cards that the pod can get are considered.
        ([slice_of_models(A100, A100)], HALF, [("", "156", None)]),
        ([slice_of_models(A100), slice_of_models(T4, pool="other")], HALF, [("", "156", None)]),
        ([slice_of_models(A100, T4)], {**HALF, "gpu_model": "A100"}, [("A100", "156", None)]),
        (
            [slice_of_models(A100), slice_of_models(A100)],
            {**HALF, "dra_cel_expression": "true"},
            [("", "156", None)],
        ),
        (
            [slice_of_models(A100), {"spec": {"devices": [{"capacity": {}}, 7]}}, {}],
            HALF,
            [("", "156", None)],
        ),
        # A percentage of each card's memory, in whole MiB, and of its compute.
        ([slice_of_models(A100)], {"vram_percent_request": "50"}, [("", None, "40Gi")]),
        ([slice_of_models(A100)], {"vram_percent_request": "33.3"}, [("", None, "27279Mi")]),
        ([slice_of_models(A100)], {"vram_percent_request": "1n"}, [("", None, "1Mi")]),
        (
            [slice_of_models(A100)],
            {"vram_percent_request": "50", "vram_request": "1Gi"},
            [("", None, "1Gi")],
        ),
        (
            [slice_of_models(A100)],
            {"vram_percent_request": "25", "compute_percent_request": "50"},
            [("", "156", "20Gi")],
        ),
        # Compute like memory: 10 GiB of 80 are 12.5 %, rounded up to 13.
        ([slice_of_models(A100)], {"vram_request": "8Gi", **LIKE}, [("A100", "31200m", "8Gi")]),
        ([slice_of_models(A100)], {"vram_request": "10Gi", **LIKE}, [("A100", "40560m", "10Gi")]),
        ([slice_of_models(A100)], {"vram_limit": "10Gi", **LIKE}, [("A100", "40560m", "10Gi")]),
        ([slice_of_models(A100)], {"vram_percent_request": "25", **LIKE}, [("", "78", "20Gi")]),
        (
            [slice_of_models(A100, SMALL)],
            {"vram_request": "10Gi", **LIKE},
            [("A100", "78", "10Gi")],
        ),
        ([slice_of_models(A100)], {"vram_request": "900Gi", **LIKE}, [("A100", "312", "900Gi")]),
        (
            [slice_of_models(A100, ("T4", "65", "16Gi"))],
            {"vram_request": "8Gi", **LIKE},
            [("T4", "32500m", "8Gi"), ("A100", "31200m", "8Gi")],
        ),
        # Several models: each has its own amounts, and one that nobody has is left out.
        (
            [slice_of_models(A100, T4)],
            {"gpu_model": "T4, A100", "compute_percent_request": "20"},
            [("T4", "13", None), ("A100", "62400m", None)],
        ),
        (
            [slice_of_models(A100, T4)],
            {"gpu_model": "NVIDIA T4", "compute_percent_request": "20"},
            [("NVIDIA T4", "13", None)],
        ),
        (
            [slice_of_models(A100)],
            {"gpu_model": "H100,A100", "compute_percent_request": "50"},
            [("A100", "156", None)],
        ),
        (
            [],
            {"gpu_model": "H100,A100", "tflops_request": "5"},
            [("H100", "5", None), ("A100", "5", None)],
        ),
    ],
)
def test_each_model_has_the_amounts_that_percentages_are_of_it(
    slices: list[Json], annotations: dict[str, str], expected: list[tuple[str, str, str]]
) -> None:
    found = chosen(*slices, **annotations)

    assert [
        (
            ",".join(each.models),
            each.tflops and str(each.tflops),
            each.vram and str(each.vram),
        )
        for each in found
    ] == expected
    assert not any(each.percentages for each in found)


@pytest.mark.parametrize(
    ("slices", "annotations", "expected"),
    [
        ([], HALF, "found no published GPU of any model in pool default, expected one, or an a"),
        (
            [slice_of_models(A100, pool="other")],
            HALF,
            "found no published GPU of any model in pool def",
        ),
        (
            [slice_of_models(A100)],
            {**HALF, "gpu_model": "H100"},
            "found no published GPU H100 in pool default",
        ),
        (
            [slice_of_models(A100, T4)],
            HALF,
            "found T4 of 65 TFLOPS, A100 of 312 TFLOPS, expected one k",
        ),
        (
            [slice_of_models(A100), slice_of_models(T4, pool="other")],
            {**HALF, "dra_cel_expression": "true"},
            "found T4 of 65 TFLOPS, A100 of 312",
        ),
        (
            [slice_of_models(A100, SMALL)],
            {"vram_percent_request": "50"},
            "found A100 of 40Gi, A100 of 80Gi, expected one kind",
        ),
        (
            [slice_of_models(A100, SMALL)],
            {"gpu_model": "A100,T4", "compute_percent_limit": "50"},
            "found a limit in percent and A100, T4, expected one model",
        ),
    ],
)
def test_amounts_that_no_claim_can_have_are_refused(
    slices: list[Json], annotations: dict[str, str], expected: str
) -> None:
    with pytest.raises(AnnotationError) as refused:
        chosen(*slices, **annotations)

    assert refused.value.text.startswith(expected)


@pytest.mark.parametrize(
    ("annotations", "tflops", "limit"),
    [
        ({"compute_percent_limit": "50"}, "156", "156"),
        ({"compute_percent_request": "25", "compute_percent_limit": "50"}, "78", "156"),
        ({"tflops_request": "10", "compute_percent_limit": "50"}, "10", "156"),
        ({"compute_percent_request": "0", "compute_percent_limit": "50"}, "156", "156"),
    ],
)
def test_limit_in_percent_without_a_request_is_the_request_as_well(
    annotations: dict[str, str], tflops: str, limit: str
) -> None:
    (found,) = chosen(slice_of_models(A100), **annotations)

    assert (str(found.tflops), str(found.share.tflops_limit)) == (tflops, limit)


@pytest.mark.parametrize(
    "annotations",
    [
        {"tflops_request": "10", "compute_percent_request": "25"},
        {"tflops_limit": "10", "compute_percent_request": "25", "compute_percent_limit": "50"},
        {"isolation": "shared", "compute_percent_request": "25", "compute_percent_limit": "50"},
        {"dedicated_gpu": "true", "vram_percent_request": "5", "compute_percent_request": "memory"},
        {"dedicated_gpu": "true", "compute_percent_request": "25"},
        {"vram_request": "1Gi", "compute_percent_request": "0"},
    ],
)
def test_tflops_and_whole_gpus_take_precedence_over_percentages(
    annotations: dict[str, str],
) -> None:
    assert not pod_request.parse(pod_annotations(**annotations)).percentages
