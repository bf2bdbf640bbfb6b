"""Share annotations: parsed strictly, with all errors at once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorfusion_dra.core.claims import share_parameters
from tensorfusion_dra.core.claims.share_parameters import ParameterError, ShareParameters
from tensorfusion_dra.core.devices.sharing import Isolation, Qos
from tensorfusion_dra.core.kubernetes import quantity

TFLOPS = "tensor-fusion.ai/tflops-limit"
VRAM = "tensor-fusion.ai/vram-limit"
QOS = "tensor-fusion.ai/qos"
ISOLATION = "tensor-fusion.ai/isolation"


def errors(found: dict[str, str]) -> list[str]:
    with pytest.raises(ParameterError) as caught:
        share_parameters.of_annotations(found)
    return str(caught.value).split("; ")


def vram(text: str) -> ShareParameters:
    return ShareParameters(vram_limit=quantity.parse(text))


def test_only_share_annotations_are_parsed() -> None:
    parsed = share_parameters.of_annotations(
        {
            TFLOPS: "71.2",
            VRAM: "32Gi",
            QOS: "high",
            ISOLATION: "hard",
            "tensor-fusion.ai/tflops-request": "nonsense",
            "tensor-fusion.ai/limiter": "false",
            "tensor-fusion.ai/overridable": "false",
            "example.com/qos": "urgent",
        }
    )

    assert parsed == ShareParameters(
        tflops_limit=quantity.parse("71.2"),
        vram_limit=quantity.parse("32Gi"),
        qos=Qos.HIGH,
        isolation=Isolation.HARD,
    )


@pytest.mark.parametrize("found", [{}, {"example.com/a": "b"}, {TFLOPS: "0", VRAM: "0"}])
def test_absent_annotations_and_limits_of_0_set_nothing(found: dict[str, str]) -> None:
    assert share_parameters.of_annotations(found) == ShareParameters()


def test_all_errors_are_reported_at_once() -> None:
    found = errors({TFLOPS: "1_000", VRAM: "-1Gi", QOS: "x" * 1000, ISOLATION: "none"})

    assert [error.partition(": found ")[0] for error in found] == [TFLOPS, VRAM, ISOLATION, QOS]
    assert all(len(error) < 250 for error in found)


def test_smallest_limits_of_several_pods_apply() -> None:
    several = [
        ShareParameters(tflops_limit=quantity.parse("100"), vram_limit=quantity.parse("8Gi")),
        ShareParameters(qos=Qos.HIGH, isolation=Isolation.HARD),
        ShareParameters(
            tflops_limit=quantity.parse("50"),
            vram_limit=quantity.parse("16Gi"),
            qos=Qos.LOW,
            isolation=Isolation.SOFT,
        ),
    ]

    assert share_parameters.smallest(several) == ShareParameters(
        tflops_limit=quantity.parse("50"),
        vram_limit=quantity.parse("8Gi"),
        qos=Qos.HIGH,
        isolation=Isolation.HARD,
    )


@given(st.lists(st.integers(1, 100), max_size=5))
def test_no_pod_gets_more_than_its_own_limit(sizes: list[int]) -> None:
    smallest = share_parameters.smallest(vram(f"{size}Gi") for size in sizes)

    assert smallest == (vram(f"{min(sizes)}Gi") if sizes else ShareParameters())


@given(st.dictionaries(st.sampled_from([TFLOPS, VRAM, QOS, ISOLATION]), st.text()))
def test_any_annotation_text_is_parsed_or_refused(found: dict[str, str]) -> None:
    try:
        parsed = share_parameters.of_annotations(found)
    except ParameterError:
        parsed = ShareParameters()

    limits = (parsed.tflops_limit, parsed.vram_limit)
    assert parsed.limiter is parsed.overridable is None
    assert all(limit is None or limit.nano > 0 for limit in limits)
