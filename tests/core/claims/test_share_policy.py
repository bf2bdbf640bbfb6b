"""Policy of a share: merged from class, claim, annotations and pods."""

from typing import Any

import pytest

from tensorfusion_dra.core.claims import share_policy
from tensorfusion_dra.core.claims.claim import AllocatedClaim, OpaqueConfig
from tensorfusion_dra.core.claims.share_policy import ShareParameters, SharePolicy
from tensorfusion_dra.core.devices.sharing import Isolation, Qos
from tensorfusion_dra.core.errors import ClaimError
from tensorfusion_dra.core.kubernetes import quantity
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
    annotated = share_policy.annotated(claim)
    if annotated is None:
        annotated = share_policy.of_pods(
            claim, {f"default/{i}": annotation("vram-limit", v) for i, v in enumerate(on_pods)}
        )
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
        ({}, {}, "3Gi", [], "3Gi"),
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
    return share_policy.of_pods(allocated_claim("a", SHARE), pods)


def test_malformed_annotations_are_refused_with_their_owner() -> None:
    claim: AllocatedClaim = allocated_claim("a", SHARE, annotations=annotation("qos", "best"))
    with pytest.raises(ClaimError, match=r"claim default/a: annotation tensor-fusion\.ai/qos: f"):
        share_policy.annotated(claim)

    text = r"claim default/a: pod default/p: annotation tensor-fusion\.ai/vram-limit: found '1_0'"
    with pytest.raises(ClaimError, match=text):
        of_pods({"default/o": {}, "default/p": annotation("vram-limit", "1_0")})


def test_annotations_that_do_not_concern_shares_are_ignored() -> None:
    claim = allocated_claim("a", SHARE, annotations={"tensor-fusion.ai/gpu-count": "2", "a": "b"})

    assert share_policy.annotated(claim) is None
    assert of_pods({"default/p": {"a": "b"}}) == NOTHING


@pytest.mark.parametrize("key", ["tflops-limit", "vram-limit", "qos", "isolation"])
def test_any_share_annotation_of_a_claim_replaces_those_of_its_pods(key: str) -> None:
    value = {"qos": "low", "isolation": "hard"}.get(key, "1Gi")

    assert (
        share_policy.annotated(allocated_claim("a", SHARE, annotations=annotation(key, value)))
        is not None
    )
