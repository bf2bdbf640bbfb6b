"""Parameters and annotations of a share, and the policy that is merged from all sources."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorfusion_dra.core.claims import share_policy
from tensorfusion_dra.core.claims.claim import AllocatedClaim, OpaqueConfig
from tensorfusion_dra.core.claims.share_policy import ParameterError, ShareParameters, SharePolicy
from tensorfusion_dra.core.devices.gpu import Isolation, Qos
from tensorfusion_dra.core.errors import ClaimError
from tensorfusion_dra.core.kubernetes import quantity
from tests.faults.mutations import ANYTHING
from tests.support.builders.allocations import allocation
from tests.support.builders.claims import allocated_claim
from tests.support.builders.policies import DEFAULTS

SHARE = allocation("gpu-0", 1, request="main")
NOTHING = ShareParameters()
Fields = dict[str, Any]


def config(source: str, *requests: str, **fields: Any) -> OpaqueConfig:
    parameters = {"apiVersion": "tensor-fusion.ai/v1alpha1", "kind": "GpuShare", **fields}
    return OpaqueConfig(trusted=source == "class", requests=requests, parameters=parameters)


def vram(text: str) -> Fields:
    return {"limits": {"vram": text}}


def merged(*configs: OpaqueConfig, annotated: ShareParameters = NOTHING) -> SharePolicy:
    claim = allocated_claim("a", SHARE, configs=configs)
    return share_policy.of_share(claim, SHARE, annotated, DEFAULTS)


def annotation(key: str, value: str) -> dict[str, str]:
    return {f"tensor-fusion.ai/{key}": value}


def merged_by_node(
    of_class: Fields | None, of_claim: Fields | None, on_claim: str | None, on_pods: list[str]
) -> SharePolicy:
    """Merge the policy as the node does: with the claim's annotations, else those of its pods."""
    configs = [config("class", **of_class)] if of_class is not None else []
    configs += [config("claim", **of_claim)] if of_claim is not None else []
    claim = allocated_claim(
        "a",
        SHARE,
        configs=tuple(configs),
        annotations={} if on_claim is None else annotation("vram-limit", on_claim),
    )
    of_pods = {f"default/{i}": annotation("vram-limit", v) for i, v in enumerate(on_pods)}
    annotated = share_policy.annotated(claim, lambda: of_pods)
    return share_policy.of_share(claim, SHARE, annotated, DEFAULTS)


FORBIDDEN = {"overridable": False}


@pytest.mark.parametrize(
    ("of_class", "of_claim", "on_claim", "on_pods", "vram_limit"),
    [
        (None, None, None, [], None),
        (None, None, None, ["5Gi"], "5Gi"),
        (None, None, None, ["5Gi", "4Gi", "6Gi"], "4Gi"),
        (None, None, None, ["0", "4Gi"], "4Gi"),
        (None, None, None, ["0"], None),
        (None, None, "3Gi", ["5Gi"], "3Gi"),
        (None, None, "0", ["5Gi"], None),
        (None, vram("2Gi"), "3Gi", ["5Gi"], "2Gi"),
        (vram("1Gi"), None, "3Gi", ["5Gi"], "1Gi"),
        (vram("1Gi"), vram("2Gi"), "3Gi", ["5Gi"], "2Gi"),
        ({}, {"limits": {}}, "3Gi", [], "3Gi"),
        (vram("1Gi"), {}, None, [], "1Gi"),
        ({**vram("1Gi"), "overridable": True}, vram("2Gi"), None, [], "2Gi"),
        ({**vram("1Gi"), **FORBIDDEN}, vram("2Gi"), "3Gi", ["5Gi"], "1Gi"),
        # What such a class does not set, the other sources may set.
        (FORBIDDEN, vram("2Gi"), "3Gi", ["5Gi"], "2Gi"),
        (FORBIDDEN, None, None, ["5Gi"], "5Gi"),
    ],
)
def test_first_source_that_sets_a_limit_wins(
    of_class: Fields | None,
    of_claim: Fields | None,
    on_claim: str | None,
    on_pods: list[str],
    vram_limit: str | None,
) -> None:
    found = merged_by_node(of_class, of_claim, on_claim, on_pods)

    assert found.vram_limit == (None if vram_limit is None else quantity.parse(vram_limit))


def test_node_defaults_apply_if_nothing_is_set() -> None:
    assert merged() == DEFAULTS


def test_each_value_comes_from_the_first_source_that_sets_it() -> None:
    found = merged(
        config("class", limits={"tflops": "100"}, qos="low"),
        config("claim", qos="high"),
        annotated=ShareParameters(isolation=Isolation.HARD, vram_limit=quantity.parse("9Gi")),
    )

    assert found == SharePolicy(
        isolation=Isolation.HARD,
        qos=Qos.HIGH,
        tflops_limit=quantity.parse("100"),
        vram_limit=quantity.parse("9Gi"),
        limiter=True,
        isolation_by_tenant=True,
    )


SOFT, HARD, SHARED = ({"isolation": mode.value} for mode in Isolation)


@pytest.mark.parametrize(
    ("of_class", "of_claim", "annotated", "isolation", "by_tenant"),
    [
        (None, None, None, Isolation.SOFT, False),
        (None, None, Isolation.SOFT, Isolation.SOFT, False),
        (None, SOFT, None, Isolation.SOFT, False),
        (None, None, Isolation.SHARED, Isolation.SHARED, True),
        (None, HARD, Isolation.SHARED, Isolation.HARD, True),
        (HARD, None, None, Isolation.HARD, False),
        (HARD, HARD, None, Isolation.HARD, False),
        (HARD, None, Isolation.SHARED, Isolation.HARD, False),
        (HARD, SHARED, None, Isolation.SHARED, True),
        (HARD, SOFT, None, Isolation.SOFT, True),
        (SHARED | FORBIDDEN, HARD, Isolation.HARD, Isolation.SHARED, False),
        (FORBIDDEN, HARD, None, Isolation.HARD, True),
        (FORBIDDEN, None, Isolation.SHARED, Isolation.SHARED, True),
    ],
)
def test_isolation_is_by_tenant_if_it_differs_from_the_administrators(
    of_class: Fields | None,
    of_claim: Fields | None,
    annotated: Isolation | None,
    isolation: Isolation,
    by_tenant: bool,
) -> None:
    configs = [config("class", **of_class)] if of_class is not None else []
    configs += [config("claim", **of_claim)] if of_claim is not None else []

    found = merged(*configs, annotated=ShareParameters(isolation=annotated))

    assert (found.isolation, found.isolation_by_tenant) == (isolation, by_tenant)


def test_last_config_of_a_source_wins() -> None:
    assert merged(config("claim", qos="low"), config("claim", qos="high")).qos is Qos.HIGH
    assert merged(config("class", **FORBIDDEN), config("class", overridable=True, qos="low"),
                  config("claim", qos="high")).qos is Qos.HIGH  # fmt: skip


@pytest.mark.parametrize(
    ("requests", "request_name", "subrequest", "is_for_it"),
    [
        ((), "main", None, True),
        (("main",), "main", None, True),
        (("other", "main"), "main", None, True),
        (("other",), "main", None, False),
        (("main",), "main", "small", True),
        (("main/small",), "main", "small", True),
        (("main/large",), "main", "small", False),
        (("other/small",), "main", "small", False),
        (("main/small",), "main", None, False),
        (("small",), "main", "small", False),
    ],
)
def test_config_applies_to_its_requests_and_subrequests(
    requests: tuple[str, ...], request_name: str, subrequest: str | None, is_for_it: bool
) -> None:
    share = allocation("gpu-0", 1, request=request_name, subrequest=subrequest)
    claim = allocated_claim("a", share, configs=(config("claim", *requests, qos="critical"),))

    found = share_policy.of_share(claim, share, NOTHING, DEFAULTS)

    assert (found.qos is Qos.CRITICAL) is is_for_it


def test_class_that_forbids_overriding_does_so_for_its_own_request_only() -> None:
    other = allocation("gpu-0", 2, request="other")
    configs = (config("class", "main", qos="low", **FORBIDDEN), config("claim", qos="high"))
    claim = allocated_claim("a", SHARE, other, configs=configs)

    found = [share_policy.of_share(claim, share, NOTHING, DEFAULTS).qos for share in (SHARE, other)]

    assert found == [Qos.LOW, Qos.HIGH]


def test_malformed_parameters_are_refused_with_their_source_and_every_path() -> None:
    with pytest.raises(ClaimError) as caught:
        merged(config("claim", limits={"vram": "1_000"}, qos="best"))

    assert str(caught.value) == (
        "claim default/a: parameters of the claim: "
        "limits.vram: found '1_000', expected a quantity such as 100, 71200m or 16Gi; "
        "qos: found 'best', expected one of low, medium, high, critical"
    )
    with pytest.raises(ClaimError, match="parameters of the class: isolation: found 'none'"):
        merged(config("class", isolation="none"))


def test_malformed_parameters_are_refused_even_if_a_class_replaces_them() -> None:
    with pytest.raises(ClaimError, match=r"limits\.vram"):
        merged(config("class", **vram("1Gi"), **FORBIDDEN), config("claim", **vram("-2Gi")))


def of_pods(pods: dict[str, dict[str, str]]) -> ShareParameters:
    return share_policy.annotated(allocated_claim("a", SHARE), lambda: pods)


def test_malformed_annotations_are_refused_with_their_owner() -> None:
    claim: AllocatedClaim = allocated_claim("a", SHARE, annotations=annotation("qos", "best"))
    with pytest.raises(ClaimError, match=r"claim default/a: annotation tensor-fusion\.ai/qos: f"):
        share_policy.annotated(claim, dict)

    text = r"claim default/a: pod default/p: annotation tensor-fusion\.ai/vram-limit: found '1_0'"
    with pytest.raises(ClaimError, match=text):
        of_pods({"default/o": {}, "default/p": annotation("vram-limit", "1_0")})


def test_annotations_that_do_not_concern_shares_are_ignored() -> None:
    claim = allocated_claim("a", SHARE, annotations={"tensor-fusion.ai/gpu-count": "2", "a": "b"})

    assert share_policy.annotated(claim, lambda: {"default/p": annotation("qos", "low")}).qos
    assert of_pods({"default/p": {"a": "b"}}) == NOTHING


@pytest.mark.parametrize("key", ["tflops-limit", "vram-limit", "qos", "isolation"])
def test_any_share_annotation_of_a_claim_replaces_those_of_its_pods(key: str) -> None:
    value = {"qos": "low", "isolation": "hard"}.get(key, "1Gi")

    claim = allocated_claim("a", SHARE, annotations=annotation(key, value))
    pods = {"default/p": annotation("qos", "high") | annotation("vram-limit", "7Gi")}

    assert share_policy.annotated(claim, lambda: pods) == share_policy.annotated(claim, dict)
    assert share_policy.annotated(claim, dict) != NOTHING


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


NO_QUANTITIES: tuple[object, ...] = (
    *("", "1_000", "0x10", "NaN", "inf", "16 Gi", " 16Gi", "16Gi\n", "16GB"),
    "２００",  # noqa: RUF001 - full-width digits, which Python's int() would take
    "٢٠٠",
    *("1e999999999", "1e-999999999", "9" * 65, 10**70, True, 1.5, [], {"value": "1"}),
)
OTHERS = "expected one of apiVersion, kind, limits, isolation, qos"


@pytest.mark.parametrize(
    ("found", "error"),
    [
        *(
            (gpu_share(limits={name: amount}), f"limits.{name}: found ")
            for name in ("tflops", "vram")
            for amount in NO_QUANTITIES
        ),
        *(
            (
                gpu_share(limits={"vram": amount}),
                f"limits.vram: found '{quantity.parse(amount)}', expected more than 0",
            )
            for amount in ("0", "0Gi", 0, "-0", "-1", "-1n", "-16Gi", -5)
        ),
        *(
            (gpu_share(limits=limits), f"limits: found {limits!r}, expected an object")
            for limits in ("32Gi", 7, ["vram"], None)
        ),
        (
            gpu_share(isolation="partitioned"),
            "isolation: found 'partitioned', expected one of soft, hard, shared (cards are not "
            "partitioned by this driver: soft divides a card by limits, shared gives whole cards",
        ),
        *(
            (found, f"parameters: found {found!r}, expected an object")
            for found in (None, "", "GpuShare", 7, True, [], [gpu_share()])
        ),
        (gpu_share(apiVersion="tensor-fusion.ai/v1"), "apiVersion: found 'tensor-fusion.ai/v1'"),
        (gpu_share(apiVersion=None), "apiVersion: found None"),
        (gpu_share(apiVersion="y" * 9000), "apiVersion: found 'yyy"),
        (gpu_share(kind="gpushare"), "kind: found 'gpushare', expected GpuShare"),
        (gpu_share(kind=["GpuShare"]), "kind: found ['GpuShare'], expected GpuShare"),
        (gpu_share(kind="x" * 9000), "kind: found 'xxx"),
        *(
            (gpu_share(**{field: {}}), f"{field}: found this field, {OTHERS}")
            for field in ("Limits", "vram", "metadata", "spec", "isolation ")
        ),
        # Only a class may switch the limiter, or forbid overriding.
        *(
            (gpu_share(**{switch: value}), f"{switch}: found this field, {OTHERS}")
            for switch in ("limiter", "overridable")
            for value in (True, False, None)
        ),
    ],
)
def test_value_that_is_not_allowed_is_refused_with_its_path(found: object, error: str) -> None:
    (text,) = errors(found)

    assert text.startswith(error)
    assert ", expected " in text
    assert len(text) < 250


@pytest.mark.parametrize("switch", ["limiter", "overridable"])
def test_switches_of_a_class_are_true_or_false(switch: str) -> None:
    for value in (True, False, None):
        assert (
            getattr(share_policy.parse(gpu_share(**{switch: value}), trusted=True), switch) is value
        )
    others: tuple[object, ...] = ("true", "false", 0, 1, "", [])
    for other in others:
        assert errors(gpu_share(**{switch: other}), trusted=True) == [
            f"{switch}: found {other!r}, expected true or false"
        ]


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


FIELDS = st.sampled_from(
    ["apiVersion", "kind", "limits", "isolation", "qos", "limiter", "overridable", "x"]
)


@given(
    ANYTHING | st.dictionaries(FIELDS, ANYTHING).map(lambda fields: gpu_share(**fields)),
    st.booleans(),
)
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
