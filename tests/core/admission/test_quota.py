"""What claims count with, and what a GPUResourceQuota refuses."""

from typing import Any

import pytest

from tensorfusion_dra.core import names
from tensorfusion_dra.core.admission import quota
from tensorfusion_dra.core.claims.claim import ClaimRef, allocated
from tests.support.builders.classes import share_class
from tests.support.builders.pods import pod_annotations
from tests.support.builders.policies import policies_of
from tests.support.builders.quotas import quota_document
from tests.support.builders.stored_claims import allocation_result, stored_claim

Json = dict[str, Any]


def exactly(capacity: Json | None = None, **fields: Any) -> Json:
    amounts = {"capacity": {"requests": capacity}} if capacity else {}
    return {"deviceClassName": names.DEVICE_CLASS, **amounts, **fields}


def claim(*requests: Json, config: list[Json] | None = None, **annotations: str) -> Json:
    named = [
        {"name": f"r{i}", **(each if "firstAvailable" in each else {"exactly": each})}
        for i, each in enumerate(requests)
    ]
    return {
        "metadata": {"name": "new", "annotations": pod_annotations(**annotations)},
        "spec": {"devices": {"requests": named, "config": config or []}},
    }


def share(*requests: str, **limits: str) -> Json:
    (config,) = share_class("a", limits=limits)["spec"]["config"]
    return {"requests": list(requests), **config}


AMOUNTS = {"tflops": "10", "vram": "2Gi"}
WHOLE = allocation_result("d", tflops="312", vram="80Gi")


def named(name: str) -> Json:
    return {"name": name, **exactly(AMOUNTS)}


@pytest.mark.parametrize(
    ("found", "counted"),
    [
        (claim(exactly(AMOUNTS)), ["10", "2Gi", "10", "2Gi"]),
        (
            claim(exactly({f"{names.DRIVER}/tflops": "10", f"{names.DRIVER}/vram": "2Gi"})),
            ["10", "2Gi", "10", "2Gi"],
        ),
        (
            claim(exactly({"tflops": "1", "virtual_tflops": "10", "virtual_vram": "2Gi"})),
            ["10", "2Gi", "10", "2Gi"],
        ),
        (claim(exactly(AMOUNTS, count=3)), ["30", "6Gi", "30", "6Gi"]),
        (claim(exactly(AMOUNTS, allocationMode="All")), ["320", "64Gi", "320", "64Gi"]),
        (claim(exactly(AMOUNTS), exactly(AMOUNTS)), ["20", "4Gi", "20", "4Gi"]),
        (
            claim({"firstAvailable": [exactly(AMOUNTS), exactly({"tflops": "5", "vram": "3Gi"})]}),
            ["10", "3Gi", "10", "3Gi"],
        ),
        (claim(exactly(AMOUNTS, count=2), vram_limit="4Gi"), ["20", "4Gi", "20", "8Gi"]),
        (claim(exactly(AMOUNTS), config=[share(vram="4Gi")]), ["10", "2Gi", "10", "4Gi"]),
        (
            claim(exactly(AMOUNTS), exactly(AMOUNTS), config=[share("r1", tflops="90")]),
            ["20", "4Gi", "100", "4Gi"],
        ),
        (claim(exactly(AMOUNTS), config=[share(speed="1")]), ["10", "2Gi", "10", "2Gi"]),
        (
            claim(
                {"firstAvailable": [named("a"), named("b")]},
                config=[share("r0/b", vram="80Gi"), share("r0/a", vram="4Gi")],
            ),
            ["10", "2Gi", "10", "80Gi"],
        ),
        (claim(exactly({"tflops": "-9", "vram": "2Gi"})), ["0", "2Gi", "0", "2Gi"]),
        (claim(exactly()), [None] * 4),
        (claim(exactly(AMOUNTS), exactly({"vram": "1Gi"})), ["10", "3Gi", "10", "3Gi"]),
        (stored_claim("a", WHOLE), ["312", "80Gi", "312", "80Gi"]),
        # Without cards of this driver it does not count.
        (claim(exactly(AMOUNTS, adminAccess=True)), None),
        (claim({"deviceClassName": "nic.example.com"}), None),
        (stored_claim("a", {**WHOLE, "driver": "nic.example.com"}), None),
        (stored_claim("a", {**WHOLE, "adminAccess": True}), None),
    ],
)
def test_claim_counts_with_its_amounts_and_limits(
    found: Json, counted: list[str | None] | None
) -> None:
    amounts = {name: str(amount) for name, amount in quota.counted(found).items()}

    shown = ["requests.tflops", "requests.vram", "limits.tflops", "limits.vram"]
    assert [amounts.get(name) for name in (*shown, "workers")] == (
        [*counted, "1"] if counted else [None] * 5
    )


OTHERS = {name: quota.counted(claim(exactly(AMOUNTS))) for name in ("a", "b")}


@pytest.mark.parametrize(
    ("document", "found", "texts"),
    [
        (
            quota_document(limits={"vram": "5Gi"}),
            claim(exactly(AMOUNTS), vram_limit="3Gi"),
            [
                "limits.vram: found 3Gi, expected at most 1Gi: 4Gi of 5Gi are taken by a (2Gi), "
                "b (2Gi)"
            ],
        ),
        (quota_document(), claim(exactly()), []),
        (quota_document(tflops="30", vram="6Gi", workers=3), claim(exactly(AMOUNTS)), []),
        (
            quota_document(tflops="29"),
            claim(exactly(AMOUNTS)),
            ["requests.tflops: found 10, expected at most 9: 20 of 29 are taken by a (10), b (10)"],
        ),
        (
            quota_document(limits={"vram": "5Gi"}, tflops="1"),
            claim(exactly(AMOUNTS)),
            [
                "requests.tflops: found 10, expected at most 0: 20 of 1 are taken by "
                "a (10), b (10)",
                "limits.vram: found no limit in the claim, expected one in its parameters or its "
                "annotation tensor-fusion.ai/vram-limit",
            ],
        ),
        (
            quota_document(workers=2),
            claim(exactly(AMOUNTS)),
            ["workers: found 1, expected at most 0: 2 of 2 are taken by a (1), b (1)"],
        ),
        (
            quota_document(tflops="100", vram="1Ti"),
            claim(exactly({"tflops": "1"})),
            ["requests.vram: found a request without vram, expected its amount"],
        ),
        (
            quota_document(tflops="much"),
            claim(exactly(AMOUNTS)),
            [
                "spec: found 'much', expected a quantity such as 100, 71200m or 16Gi",
            ],
        ),
    ],
)
def test_refusal_names_what_is_left_and_who_has_the_rest(
    document: Json, found: Json, texts: list[str]
) -> None:
    refusals = quota.refusals(document, found, OTHERS)

    assert list(refusals) == [f"GPUResourceQuota gpus: {text}" for text in texts]


def test_refusal_names_the_five_claims_that_have_most() -> None:
    others = {f"c{i}": quota.counted(claim(exactly({"vram": f"{i}Gi"}))) for i in range(1, 8)}

    (text,) = quota.refusals(quota_document(vram="28Gi"), claim(exactly({"vram": "1Gi"})), others)

    assert text.endswith("by c7 (7Gi), c6 (6Gi), c5 (5Gi), c4 (4Gi), c3 (3Gi) and 2 more")


SINGLE = {"maxRequests": {"tflops": "10", "vram": "2Gi"}, "maxGPUCount": 2}
BIG = {"tflops": "11", "vram": "3Gi"}


@pytest.mark.parametrize(
    ("single", "requests", "texts"),
    [
        (SINGLE, [exactly(AMOUNTS), exactly(AMOUNTS)], []),
        (SINGLE, [exactly(AMOUNTS, count=2)], []),
        (
            SINGLE,
            [exactly(AMOUNTS, count=3)],
            ["maxGPUCount: found 3 GPUs, expected at most 2"],
        ),
        (
            SINGLE,
            [exactly(AMOUNTS), exactly(BIG)],
            [
                "requests.tflops: found 11 of one GPU, expected at most 10",
                "requests.vram: found 3Gi of one GPU, expected at most 2Gi",
            ],
        ),
        (
            SINGLE,
            [{"firstAvailable": [{"name": "a", **exactly(BIG)}, named("b")]}],
            [
                "requests.tflops: found 11 of one GPU, expected at most 10",
                "requests.vram: found 3Gi of one GPU, expected at most 2Gi",
            ],
        ),
        (
            SINGLE,
            [exactly({"tflops": "1"})],
            ["requests.vram: found a request without vram, expected its amount"],
        ),
        (
            {"maxLimits": {"vram": "4Gi"}},
            [exactly(AMOUNTS)],
            [
                "limits.vram: found no limit in the claim, expected one in its parameters or its "
                "annotation tensor-fusion.ai/vram-limit"
            ],
        ),
        ({"maxRequests": {"tflops": "0"}}, [exactly()], []),
        ({}, [exactly(allocationMode="All")] * 2, []),
    ],
)
def test_each_card_of_a_claim_and_their_number_is_limited(
    single: Json, requests: list[Json], texts: list[str]
) -> None:
    refusals = quota.refusals(quota_document(single=single), claim(*requests), {})

    assert list(refusals) == [f"GPUResourceQuota gpus: {text}" for text in texts]


def test_limit_of_a_card_is_checked_again_when_it_changes() -> None:
    document = quota_document(single={"maxLimits": {"vram": "4Gi"}, "maxGPUCount": 1})
    request = exactly(AMOUNTS, count=2)  # from before the quota
    small, large = (claim(request, vram_limit=limit) for limit in ("4Gi", "5Gi"))

    assert not [*quota.refusals(document, small, {}, large)]
    (text,) = quota.refusals(document, large, {}, small)
    assert text.endswith(": limits.vram: found 5Gi of one GPU, expected at most 4Gi")


DEFAULTS_OF_PODS = {
    "defaultRequests": {"tflops": 10, "vram": "2Gi"},
    "defaultLimits": {"tflops": "20", "vram": "0"},
}


@pytest.mark.parametrize(
    ("annotations", "added"),
    [
        ({}, {"tflops-request": "10", "vram-request": "2Gi", "tflops-limit": "20"}),
        (
            {"tflops-request": "5", "vram-request": "0"},
            {"vram-request": "2Gi", "tflops-limit": "20"},
        ),
        (
            {"compute-percent-request": "5", "vram-percent-request": "5"},
            {"tflops-limit": "20"},
        ),
        ({"compute-percent-limit": "5"}, {"tflops-request": "10", "vram-request": "2Gi"}),
    ],
)
def test_pods_get_amounts_that_they_do_not_name(
    annotations: dict[str, str], added: dict[str, str]
) -> None:
    quotas = [quota_document(single=DEFAULTS_OF_PODS)]

    found = quota.defaults(quotas, pod_annotations(**annotations))

    assert found == pod_annotations(**added)


LIMITED = quota_document(limits={"vram": "5Gi"})
TWO_CHOICES = {"firstAvailable": [named("a"), named("b")]}


@pytest.mark.parametrize(
    ("found", "is_admitted"),
    [
        (claim(exactly(AMOUNTS)), False),
        (claim(exactly(AMOUNTS), vram_limit="5Gi"), True),
        (claim(exactly(AMOUNTS), vram_limit="0"), True),  # as the webhook fills a claim
        (claim(exactly(AMOUNTS), qos="high"), True),  # hides the pods' annotations
        (claim(exactly(AMOUNTS), config=[share(vram="5Gi")]), True),
        (claim(exactly(AMOUNTS), config=[share(tflops="5")]), False),
        (claim(exactly(AMOUNTS), config=[share("r0", vram="5Gi")]), True),
        (claim(exactly(AMOUNTS), exactly(AMOUNTS), config=[share("r0", vram="1Gi")]), False),
        (claim(TWO_CHOICES, config=[share("r0", vram="5Gi")]), True),
        (claim(TWO_CHOICES, config=[share("r0/a", vram="5Gi")]), False),
        (claim(TWO_CHOICES, config=[share("r0/a", vram="5Gi"), share("r0/b", vram="1Gi")]), True),
    ],
)
def test_claim_that_a_quota_of_limits_admits_gets_what_was_counted(
    found: Json, is_admitted: bool
) -> None:
    assert bool([*quota.refusals(LIMITED, found, {})]) is not is_admitted
    most = max(limits_by_the_node(found))
    if is_admitted:
        assert most <= quota.counted(found)["limits.vram"]
    else:
        assert str(most) == "80Gi"


def limits_by_the_node(found: Json) -> list[Any]:
    """Return each limit that the node may set, if a pod of the claim is annotated with 80Gi."""
    of_pods = {"default/train": {names.ANNOTATION_VRAM_LIMIT: "80Gi"}}
    config = [{**each, "source": "FromClaim"} for each in found["spec"]["devices"]["config"]]
    limits = []
    for request in found["spec"]["devices"]["requests"]:
        for subrequest in request.get("firstAvailable") or [None]:
            chosen = request["name"] + (f"/{subrequest['name']}" if subrequest else "")
            result = allocation_result("gpu-0", tflops="10", vram="2Gi", request=chosen)
            stored = stored_claim("new", result)
            stored["metadata"]["annotations"] = found["metadata"]["annotations"]
            stored["status"]["allocation"]["devices"]["config"] = config
            ref = ClaimRef(namespace="default", name="new", uid=stored["metadata"]["uid"])
            known = allocated(ref, stored)
            (policy,) = policies_of(known, lambda: of_pods)
            limits.append(policy.vram_limit or REQUESTED_MEMORY)
    return limits


def limited(vram_limit: str, **annotations: str) -> Json:
    return claim(exactly(AMOUNTS), config=None, vram_limit=vram_limit, **annotations)


REQUESTED_MEMORY = quota.counted(claim(exactly(AMOUNTS)))["requests.vram"]


@pytest.mark.parametrize(
    ("before", "after", "is_admitted"),
    [
        (limited("4Gi"), claim(exactly(AMOUNTS)), False),
        (claim(exactly(AMOUNTS)), limited("80Gi"), False),
        (limited("4Gi"), limited("80Gi"), False),
        (limited("80Gi"), limited("40Gi"), True),  # from before the quota
        (limited("80Gi"), limited("80Gi", qos="high"), True),
        (limited("4Gi"), limited("5Gi"), True),
    ],
)
def test_change_of_a_claim_is_refused_if_it_takes_more_than_is_left(
    before: Json, after: Json, is_admitted: bool
) -> None:
    assert (list(quota.refusals(LIMITED, after, {}, before)) == []) is is_admitted
