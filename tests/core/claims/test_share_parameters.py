"""Parameters of a share, from GpuShare objects and from annotations: parsed strictly."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorfusion_dra.core.claims import share_policy
from tensorfusion_dra.core.claims.share_policy import ParameterError, ShareParameters
from tensorfusion_dra.core.devices.sharing import Isolation, Qos
from tensorfusion_dra.core.kubernetes import quantity


def gpu_share(**fields: Any) -> dict[str, Any]:
    return {"apiVersion": "tensor-fusion.ai/v1alpha1", "kind": "GpuShare", **fields}


def errors(found: object, *, trusted: bool = False) -> list[str]:
    with pytest.raises(ParameterError) as caught:
        share_policy.parse(found, trusted=trusted)
    return str(caught.value).split("; ")


def test_every_field_is_read() -> None:
    found = gpu_share(
        limits={"tflops": "71.2", "vram": "32Gi"},
        isolation="hard",
        qos="critical",
        limiter=False,
        overridable=False,
    )

    assert share_policy.parse(found, trusted=True) == ShareParameters(
        tflops_limit=quantity.parse("71200m"),
        vram_limit=quantity.parse("32Gi"),
        isolation=Isolation.HARD,
        qos=Qos.CRITICAL,
        limiter=False,
        overridable=False,
    )


@pytest.mark.parametrize("trusted", [True, False])
def test_parameters_without_values_are_accepted(trusted: bool) -> None:
    assert share_policy.parse(gpu_share(), trusted=trusted) == ShareParameters()
    assert share_policy.parse(gpu_share(limits={}), trusted=trusted) == ShareParameters()


@pytest.mark.parametrize("switch", ["limiter", "overridable"])
@pytest.mark.parametrize("value", [True, False, None])
def test_only_a_class_may_switch_the_limiter_or_forbid_overriding(
    switch: str, value: bool | None
) -> None:
    found = gpu_share(**{switch: value})

    assert getattr(share_policy.parse(found, trusted=True), switch) is value
    assert errors(found, trusted=False) == [
        f"{switch}: found this field, expected one of apiVersion, kind, limits, isolation, qos"
    ]


@pytest.mark.parametrize(
    "amount",
    [
        "",
        "1_000",
        "２００",  # noqa: RUF001 - full-width digits, which Python's int() would take
        "٢٠٠",
        "1e999999999",
        "1e-999999999",
        "9" * 65,
        10**70,
        "0x10",
        "NaN",
        "inf",
        "16 Gi",
        " 16Gi",
        "16Gi\n",
        "16GB",
        True,
        1.5,
        [],
        {"value": "1"},
    ],
)
@pytest.mark.parametrize("name", ["tflops", "vram"])
def test_amount_that_is_not_a_quantity_is_refused_with_its_path(name: str, amount: object) -> None:
    (error,) = errors(gpu_share(limits={name: amount}))

    assert error.startswith(f"limits.{name}: found ")
    assert ", expected " in error
    assert len(error) < 200


@pytest.mark.parametrize("amount", ["0", "0Gi", 0, "-0", "-1", "-1n", "-16Gi", -5])
def test_limit_of_0_or_less_is_refused(amount: object) -> None:
    (error,) = errors(gpu_share(limits={"vram": amount}))

    assert error == f"limits.vram: found '{quantity.parse(amount)}', expected more than 0"


def test_partitioned_is_refused_with_the_alternatives() -> None:
    (error,) = errors(gpu_share(isolation="partitioned"))

    assert error.startswith(
        "isolation: found 'partitioned', expected one of soft, hard, shared (cards are not "
        "partitioned by this driver: soft divides a card by limits, shared gives whole cards"
    )


@pytest.mark.parametrize("value", ["true", "false", 0, 1, "", []])
@pytest.mark.parametrize("switch", ["limiter", "overridable"])
def test_switch_accepts_only_true_and_false(switch: str, value: object) -> None:
    (error,) = errors(gpu_share(**{switch: value}), trusted=True)

    assert error == f"{switch}: found {value!r}, expected true or false"


@pytest.mark.parametrize("found", [None, "", "GpuShare", 7, True, [], [gpu_share()]])
def test_parameters_that_are_not_an_object_are_refused(found: object) -> None:
    assert errors(found)[0] == f"parameters: found {found!r}, expected an object"


@pytest.mark.parametrize("found", ["32Gi", 7, ["vram"], None])
def test_limits_that_are_not_an_object_are_refused(found: object) -> None:
    assert errors(gpu_share(limits=found)) == [f"limits: found {found!r}, expected an object"]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"apiVersion": "tensor-fusion.ai/v1"}, "apiVersion: found 'tensor-fusion.ai/v1'"),
        ({"apiVersion": None}, "apiVersion: found None"),
        ({"kind": "gpushare"}, "kind: found 'gpushare', expected GpuShare"),
        ({"kind": ["GpuShare"]}, "kind: found ['GpuShare'], expected GpuShare"),
    ],
)
def test_another_kind_or_version_is_refused(changes: dict[str, Any], text: str) -> None:
    (error,) = errors({**gpu_share(), **changes})

    assert error.startswith(text)


@pytest.mark.parametrize("field", ["Limits", "vram", "metadata", "spec", "isolation "])
def test_unknown_field_is_refused(field: str) -> None:
    (error,) = errors(gpu_share(**{field: {}}))

    assert error.startswith(f"{field}: found this field, expected one of apiVersion, kind, ")


def test_all_errors_are_reported_at_once_with_their_paths() -> None:
    found = {
        "apiVersion": "v1",
        "limits": {"tflops": "1_000", "vram": "-1Gi", "memory": "1Gi"},
        "isolation": "none",
        "qos": "urgent",
        "limiter": False,
    }

    assert [error.partition(":")[0] for error in errors(found)] == [
        "limiter",
        "apiVersion",
        "kind",
        "limits.memory",
        "limits.tflops",
        "limits.vram",
        "isolation",
        "qos",
    ]


def test_long_values_are_cut_in_errors() -> None:
    assert all(len(error) < 250 for error in errors({"kind": "x" * 9000, "apiVersion": "y" * 900}))


def test_upper_parameters_replace_lower_ones() -> None:
    lower = ShareParameters(vram_limit=quantity.parse("1Gi"), qos=Qos.LOW, limiter=False)
    upper = ShareParameters(qos=Qos.HIGH, isolation=Isolation.HARD, overridable=False)

    assert upper.over(lower) == ShareParameters(
        vram_limit=quantity.parse("1Gi"),
        qos=Qos.HIGH,
        isolation=Isolation.HARD,
        limiter=False,
        overridable=False,
    )
    assert upper.over(ShareParameters()) == upper
    assert ShareParameters().over(lower) == lower


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)
FIELDS = st.sampled_from(
    ["apiVersion", "kind", "limits", "isolation", "qos", "limiter", "overridable", "x"]
)


@given(JSON | st.dictionaries(FIELDS, JSON).map(lambda fields: gpu_share(**fields)), st.booleans())
def test_any_value_is_parsed_or_refused_and_never_changed(found: Any, trusted: bool) -> None:
    before = repr(found)
    try:
        parsed = share_policy.parse(found, trusted=trusted)
    except ParameterError:
        parsed = ShareParameters()

    limits = (parsed.tflops_limit, parsed.vram_limit)
    assert trusted or (parsed.limiter, parsed.overridable) == (None, None)
    assert all(limit is None or limit.nano > 0 for limit in limits)
    assert repr(found) == before


TFLOPS = "tensor-fusion.ai/tflops-limit"
VRAM = "tensor-fusion.ai/vram-limit"
QOS = "tensor-fusion.ai/qos"
ISOLATION = "tensor-fusion.ai/isolation"


def annotation_errors(found: dict[str, str]) -> list[str]:
    with pytest.raises(ParameterError) as caught:
        share_policy.of_annotations(found)
    return str(caught.value).split("; ")


def vram(text: str) -> ShareParameters:
    return ShareParameters(vram_limit=quantity.parse(text))


def test_only_share_annotations_are_parsed() -> None:
    parsed = share_policy.of_annotations(
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
    assert share_policy.of_annotations(found) == ShareParameters()


def test_all_errors_are_reported_at_once() -> None:
    found = annotation_errors({TFLOPS: "1_000", VRAM: "-1Gi", QOS: "x" * 1000, ISOLATION: "none"})

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

    assert share_policy.smallest(several) == ShareParameters(
        tflops_limit=quantity.parse("50"),
        vram_limit=quantity.parse("8Gi"),
        qos=Qos.HIGH,
        isolation=Isolation.HARD,
    )


@given(st.lists(st.integers(1, 100), max_size=5))
def test_no_pod_gets_more_than_its_own_limit(sizes: list[int]) -> None:
    smallest = share_policy.smallest(vram(f"{size}Gi") for size in sizes)

    assert smallest == (vram(f"{min(sizes)}Gi") if sizes else ShareParameters())


@given(st.dictionaries(st.sampled_from([TFLOPS, VRAM, QOS, ISOLATION]), st.text()))
def test_any_annotation_text_is_parsed_or_refused(found: dict[str, str]) -> None:
    try:
        parsed = share_policy.of_annotations(found)
    except ParameterError:
        parsed = ShareParameters()

    limits = (parsed.tflops_limit, parsed.vram_limit)
    assert parsed.limiter is parsed.overridable is None
    assert all(limit is None or limit.nano > 0 for limit in limits)
