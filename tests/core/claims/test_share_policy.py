"""Parameters and annotations of a share, and the policy that is merged from all sources."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorfusion_dra.core.claims import share_policy
from tensorfusion_dra.core.claims.claim import OpaqueConfig
from tensorfusion_dra.core.claims.share_policy import ParameterError, ShareParameters, SharePolicy
from tensorfusion_dra.core.devices.gpu import Isolation, Qos
from tensorfusion_dra.core.errors import ClaimError
from tensorfusion_dra.core.kubernetes import quantity
from tests.faults.mutations import ANYTHING
from tests.support.builders.allocations import allocation
from tests.support.builders.claims import allocated_claim
from tests.support.builders.pods import pod_annotations
from tests.support.builders.policies import DEFAULTS, policies_of

SHARE = allocation("gpu-0", 1, request="main")
NOTHING = ShareParameters()
Fields = dict[str, Any]
Annotations = Mapping[str, str]


def gpu_share(**fields: Any) -> dict[str, Any]:
    return {"apiVersion": "tensor-fusion.ai/v1alpha1", "kind": "GpuShare", **fields}


def config(source: str, *requests: str, **fields: Any) -> OpaqueConfig:
    return OpaqueConfig(
        trusted=source == "class", requests=requests, parameters=gpu_share(**fields)
    )


def vram(text: str) -> Fields:
    return {"limits": {"vram": text}}


def merged(
    of_class: Fields | None = None,
    of_claim: Fields | None = None,
    *more: OpaqueConfig,
    on_claim: Annotations | None = None,
    on_pods: Sequence[Annotations] = (),
) -> SharePolicy:
    """Return the policy of a share by parameters of class and claim, and by annotations."""
    given = (("class", of_class), ("claim", of_claim))
    configs = [config(source, **fields) for source, fields in given if fields is not None]
    claim = allocated_claim(
        "a", SHARE, configs=(*configs, *more), annotations=pod_annotations(**on_claim or {})
    )
    pods = {f"default/{n}": pod_annotations(**found) for n, found in enumerate(on_pods)}
    (policy,) = policies_of(claim, lambda: pods)
    return policy


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
        (None, vram("2Gi"), "3Gi", ["5Gi"], "3Gi"),
        (vram("1Gi"), None, "3Gi", ["5Gi"], "3Gi"),
        (vram("1Gi"), vram("2Gi"), "3Gi", ["5Gi"], "3Gi"),
        ({}, {"limits": {}}, "3Gi", [], "3Gi"),
        (vram("1Gi"), {}, None, [], "1Gi"),
        ({**vram("1Gi"), "overridable": True}, vram("2Gi"), None, [], "2Gi"),
        ({**vram("1Gi"), **FORBIDDEN}, vram("2Gi"), "3Gi", ["5Gi"], "1Gi"),
        # What such a class does not set, the other sources may set.
        (FORBIDDEN, vram("2Gi"), "3Gi", ["5Gi"], "3Gi"),
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
    found = merged(
        of_class,
        of_claim,
        on_claim=None if on_claim is None else {"vram_limit": on_claim},
        on_pods=[{"vram_limit": limit} for limit in on_pods],
    )

    assert found.vram_limit == (None if vram_limit is None else quantity.parse(vram_limit))


def test_each_value_comes_from_the_first_source_that_sets_it() -> None:
    pods = [{"isolation": "hard", "vram_limit": "9Gi"}]

    of_class = {"limits": {"tflops": "100"}, "qos": "low"}
    assert merged(of_class, {"qos": "high"}, on_pods=pods) == SharePolicy(
        isolation=Isolation.HARD,
        qos=Qos.HIGH,
        tflops_limit=quantity.parse("100"),
        vram_limit=quantity.parse("9Gi"),
        limiter=True,
        isolation_by_tenant=True,
    )
    assert merged() == DEFAULTS


SOFT, HARD, SHARED = ({"isolation": mode.value} for mode in share_policy.OF_CARDS)


@pytest.mark.parametrize(
    ("of_class", "of_claim", "annotated", "isolation", "by_tenant"),
    [
        (None, None, None, Isolation.SOFT, False),
        (None, None, "soft", Isolation.SOFT, False),
        (None, SOFT, None, Isolation.SOFT, False),
        (None, None, "shared", Isolation.SHARED, True),
        (None, HARD, "shared", Isolation.HARD, True),
        (HARD, None, None, Isolation.HARD, False),
        (HARD, HARD, None, Isolation.HARD, False),
        (HARD, None, "shared", Isolation.HARD, False),
        (HARD, SHARED, None, Isolation.SHARED, True),
        (HARD, SOFT, None, Isolation.SOFT, True),
        (SHARED | FORBIDDEN, HARD, "hard", Isolation.SHARED, False),
        (FORBIDDEN, HARD, None, Isolation.HARD, True),
        (FORBIDDEN, None, "shared", Isolation.SHARED, True),
    ],
)
def test_isolation_is_by_tenant_if_it_differs_from_the_administrators(
    of_class: Fields | None,
    of_claim: Fields | None,
    annotated: str | None,
    isolation: Isolation,
    by_tenant: bool,
) -> None:
    found = merged(of_class, of_claim, on_pods=[{"isolation": annotated}] if annotated else ())

    assert (found.isolation, found.isolation_by_tenant) == (isolation, by_tenant)


def test_last_config_of_a_source_wins() -> None:
    overridable = config("class", overridable=True, qos="low")

    assert merged(None, {"qos": "low"}, config("claim", qos="high")).qos is Qos.HIGH
    assert merged(FORBIDDEN, {"qos": "high"}, overridable).qos is Qos.HIGH


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

    (policy,) = policies_of(claim)
    assert (policy.qos is Qos.CRITICAL) is is_for_it


def test_class_that_forbids_overriding_does_so_for_its_own_request_only() -> None:
    other = allocation("gpu-0", 2, request="other")
    configs = (config("class", "main", qos="low", **FORBIDDEN), config("claim", qos="high"))
    claim = allocated_claim("a", SHARE, other, configs=configs)

    assert [policy.qos for policy in policies_of(claim)] == [Qos.LOW, Qos.HIGH]


@pytest.mark.parametrize(
    ("of_class", "of_claim", "error"),
    [
        (
            None,
            {"limits": {"vram": "1_000"}, "qos": "best"},
            "parameters of the claim: "
            "limits.vram: found '1_000', expected a quantity such as 100, 71200m or 16Gi; "
            "qos: found 'best', expected one of low, medium, high, critical",
        ),
        ({"isolation": "none"}, None, "parameters of the class: isolation: found 'none'"),
        # Also if the class replaces them.
        ({**vram("1Gi"), **FORBIDDEN}, vram("-2Gi"), "parameters of the claim: limits.vram: "),
    ],
)
def test_malformed_parameters_are_refused_with_their_source_and_every_path(
    of_class: Fields | None, of_claim: Fields | None, error: str
) -> None:
    with pytest.raises(ClaimError) as caught:
        merged(of_class, of_claim)

    assert str(caught.value).startswith(f"claim default/a: {error}")


@pytest.mark.parametrize(
    ("on_claim", "on_pod", "error"),
    [
        ({"qos": "best"}, {}, r"annotation tensor-fusion\.ai/qos: f"),
        (
            {},
            {"vram_limit": "1_0"},
            r"pod default/1: annotation tensor-fusion\.ai/vram-limit: found '1_0'",
        ),
    ],
)
def test_malformed_annotations_are_refused_with_their_owner(
    on_claim: dict[str, str], on_pod: dict[str, str], error: str
) -> None:
    with pytest.raises(ClaimError, match=f"claim default/a: {error}"):
        merged(on_claim=on_claim, on_pods=[{}, on_pod])


def test_annotations_that_do_not_concern_shares_are_ignored() -> None:
    assert merged(on_claim={"gpu_count": "2"}, on_pods=[{"qos": "low"}]).qos is Qos.LOW
    assert merged(on_pods=[{"gpu_count": "2"}]) == DEFAULTS


@pytest.mark.parametrize(
    ("name", "text"),
    [("tflops_limit", "1Gi"), ("vram_limit", "1Gi"), ("qos", "low"), ("isolation", "hard")],
)
def test_any_share_annotation_of_a_claim_replaces_those_of_its_pods(name: str, text: str) -> None:
    found = merged(on_claim={name: text}, on_pods=[{"qos": "high", "vram_limit": "7Gi"}])

    assert found == merged(on_claim={name: text}) != DEFAULTS


def errors(parse: Callable[..., object], found: object, **trust: bool) -> list[str]:
    with pytest.raises(ParameterError) as caught:
        parse(found, **trust)
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
            "isolation: found 'partitioned', expected one of soft, hard, shared (partitions of "
            "GPUs in MIG mode have their own class, partition.tensor-fusion.ai",
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
    (text,) = errors(share_policy.parse, found, trusted=False)

    assert text.startswith(error)
    assert ", expected " in text
    assert len(text) < 250


@pytest.mark.parametrize("switch", ["limiter", "overridable"])
@pytest.mark.parametrize("value", [True, False, None, "true", "false", 0, 1, "", []])
def test_switches_of_a_class_are_true_or_false(switch: str, value: object) -> None:
    found = gpu_share(**{switch: value})

    if value is None or isinstance(value, bool):
        assert getattr(share_policy.parse(found, trusted=True), switch) is value
    else:
        assert errors(share_policy.parse, found, trusted=True) == [
            f"{switch}: found {value!r}, expected true or false"
        ]


def test_all_errors_are_reported_at_once_with_their_paths() -> None:
    found = {
        "apiVersion": "v1",
        "limits": {"tflops": "1_000", "vram": "-1Gi", "memory": "1Gi"},
        "isolation": "none",
        "qos": "urgent",
        "limiter": False,
    }

    paths = [error.partition(":")[0] for error in errors(share_policy.parse, found, trusted=False)]
    assert paths == [
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
    before, parsed = repr(found), NOTHING
    with suppress(ParameterError):
        parsed = share_policy.parse(found, trusted=trusted)

    limits = (parsed.tflops_limit, parsed.vram_limit)
    assert trusted or (parsed.limiter, parsed.overridable) == (None, None)
    assert all(limit is None or limit.nano > 0 for limit in limits)
    assert repr(found) == before


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (
            pod_annotations(tflops_limit="71.2", vram_limit="32Gi", qos="high", isolation="hard"),
            ShareParameters(
                tflops_limit=quantity.parse("71.2"),
                vram_limit=quantity.parse("32Gi"),
                qos=Qos.HIGH,
                isolation=Isolation.HARD,
            ),
        ),
        # Others are not read.
        (pod_annotations(tflops_request="x", limiter="false", overridable="false"), NOTHING),
        ({"example.com/qos": "urgent"}, NOTHING),
        ({}, NOTHING),
        # A limit of 0 counts as absent.
        (pod_annotations(tflops_limit="0", vram_limit="0"), NOTHING),
    ],
)
def test_share_annotations_are_parsed(found: dict[str, str], expected: ShareParameters) -> None:
    assert share_policy.of_annotations(found) == expected


def test_all_errors_of_annotations_are_reported_at_once() -> None:
    bad = pod_annotations(tflops_limit="1_000", vram_limit="-1Gi", isolation="none", qos="x" * 1000)

    found = errors(share_policy.of_annotations, bad)

    assert [error.partition(": found ")[0] for error in found] == [*bad]
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
