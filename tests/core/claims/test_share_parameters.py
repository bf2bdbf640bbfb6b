"""GpuShare: read strictly, with every error at once."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorfusion_dra.core.claims import share_parameters
from tensorfusion_dra.core.claims.share_parameters import ParameterError, ShareParameters
from tensorfusion_dra.core.devices.sharing import Isolation, Qos
from tensorfusion_dra.core.kubernetes import quantity


def share(**fields: Any) -> dict[str, Any]:
    return {"apiVersion": "tensor-fusion.ai/v1alpha1", "kind": "GpuShare", **fields}


def errors(found: object, *, trusted: bool = False) -> list[str]:
    with pytest.raises(ParameterError) as caught:
        share_parameters.parse(found, trusted=trusted)
    return str(caught.value).split("; ")


def test_every_field_is_read() -> None:
    found = share(
        limits={"tflops": "71.2", "vram": "32Gi"},
        isolation="hard",
        qos="critical",
        limiter=False,
        overridable=False,
    )

    assert share_parameters.parse(found, trusted=True) == ShareParameters(
        tflops_limit=quantity.parse("71200m"),
        vram_limit=quantity.parse("32Gi"),
        isolation=Isolation.HARD,
        qos=Qos.CRITICAL,
        limiter=False,
        overridable=False,
    )


@pytest.mark.parametrize("trusted", [True, False])
def test_a_share_that_says_nothing_is_taken(trusted: bool) -> None:
    assert share_parameters.parse(share(), trusted=trusted) == ShareParameters()
    assert share_parameters.parse(share(limits={}), trusted=trusted) == ShareParameters()


@pytest.mark.parametrize("mode", ["soft", "hard", "shared"])
def test_isolation_modes(mode: str) -> None:
    said = share_parameters.parse(share(isolation=mode), trusted=False)

    assert said.isolation is not None
    assert said.isolation.value == mode


@pytest.mark.parametrize("level", ["low", "medium", "high", "critical"])
def test_levels_of_service(level: str) -> None:
    said = share_parameters.parse(share(qos=level), trusted=False)

    assert said.qos is not None
    assert said.qos.value == level


def test_a_number_may_stand_for_a_quantity() -> None:
    said = share_parameters.parse(share(limits={"tflops": 200}), trusted=False)

    assert said.tflops_limit == quantity.parse("200")


@pytest.mark.parametrize("switch", ["limiter", "overridable"])
@pytest.mark.parametrize("value", [True, False, None])
def test_only_a_class_may_switch_the_limiter_or_forbid_overriding(
    switch: str, value: bool | None
) -> None:
    found = share(**{switch: value})

    assert getattr(share_parameters.parse(found, trusted=True), switch) is value
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
def test_an_amount_that_is_no_quantity_is_refused_with_its_path(name: str, amount: object) -> None:
    (error,) = errors(share(limits={name: amount}))

    assert error.startswith(f"limits.{name}: found ")
    assert ", expected " in error
    assert len(error) < 200


@pytest.mark.parametrize("amount", ["0", "0Gi", 0, "-0", "-1", "-1n", "-16Gi", -5])
def test_a_limit_of_nothing_or_less_is_refused(amount: object) -> None:
    (error,) = errors(share(limits={"vram": amount}))

    assert error == f"limits.vram: found '{quantity.parse(amount)}', expected more than 0"


@pytest.mark.parametrize("value", ["Soft", "", " soft", "soft\n", 1, True, ["soft"]])
def test_an_isolation_of_another_name_is_refused_with_those_there_are(value: object) -> None:
    (error,) = errors(share(isolation=value))

    assert error == f"isolation: found {value!r}, expected one of soft, hard, shared"


def test_partitioned_is_refused_with_the_ways_to_go() -> None:
    (error,) = errors(share(isolation="partitioned"))

    assert error.startswith(
        "isolation: found 'partitioned', expected one of soft, hard, shared (cards are not "
        "partitioned by this driver: soft divides a card by limits, shared gives whole cards"
    )


@pytest.mark.parametrize("value", ["urgent", "High", "", 3, {"qos": "high"}])
def test_a_qos_of_another_name_is_refused_with_those_there_are(value: object) -> None:
    (error,) = errors(share(qos=value))

    assert error == f"qos: found {value!r}, expected one of low, medium, high, critical"


@pytest.mark.parametrize("value", ["true", "false", 0, 1, "", []])
@pytest.mark.parametrize("switch", ["limiter", "overridable"])
def test_a_switch_is_true_or_false_and_nothing_that_looks_like_it(
    switch: str, value: object
) -> None:
    (error,) = errors(share(**{switch: value}), trusted=True)

    assert error == f"{switch}: found {value!r}, expected true or false"


@pytest.mark.parametrize("found", [None, "", "GpuShare", 7, True, [], [share()]])
def test_parameters_that_are_no_object_are_refused(found: object) -> None:
    assert errors(found)[0] == f"parameters: found {found!r}, expected an object"


@pytest.mark.parametrize("found", ["32Gi", 7, ["vram"], None])
def test_limits_that_are_no_object_are_refused(found: object) -> None:
    assert errors(share(limits=found)) == [f"limits: found {found!r}, expected an object"]


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
    (error,) = errors({**share(), **changes})

    assert error.startswith(text)


@pytest.mark.parametrize("field", ["Limits", "vram", "metadata", "spec", "isolation "])
def test_an_unknown_field_is_refused(field: str) -> None:
    (error,) = errors(share(**{field: {}}))

    assert error.startswith(f"{field}: found this field, expected one of apiVersion, kind, ")


def test_every_error_is_named_at_once_with_its_path() -> None:
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


def test_a_long_value_is_cut_in_the_text() -> None:
    assert all(len(error) < 250 for error in errors({"kind": "x" * 9000, "apiVersion": "y" * 900}))


def test_what_is_said_above_goes_over_what_is_said_below() -> None:
    below = ShareParameters(vram_limit=quantity.parse("1Gi"), qos=Qos.LOW, limiter=False)
    above = ShareParameters(qos=Qos.HIGH, isolation=Isolation.HARD, overridable=False)

    assert above.over(below) == ShareParameters(
        vram_limit=quantity.parse("1Gi"),
        qos=Qos.HIGH,
        isolation=Isolation.HARD,
        limiter=False,
        overridable=False,
    )
    assert above.over(ShareParameters()) == above
    assert ShareParameters().over(below) == below


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


@given(JSON | st.dictionaries(FIELDS, JSON).map(lambda fields: share(**fields)), st.booleans())
def test_whatever_is_found_is_read_or_refused_and_never_changed(found: Any, trusted: bool) -> None:
    before = repr(found)
    try:
        said = share_parameters.parse(found, trusted=trusted)
    except ParameterError:
        said = ShareParameters()

    assert trusted or (said.limiter, said.overridable) == (None, None)
    assert all(limit is None or limit.nano > 0 for limit in (said.tflops_limit, said.vram_limit))
    assert repr(found) == before
