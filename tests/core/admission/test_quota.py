"""What claims count with, and what a GPUResourceQuota refuses."""

from typing import Any

import pytest

from tensorfusion_dra.core import names
from tensorfusion_dra.core.admission import quota
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
    found = {
        f"tensor-fusion.ai/{name.replace('_', '-')}": text for name, text in annotations.items()
    }
    return {
        "metadata": {"name": "new", "annotations": found},
        "spec": {"devices": {"requests": named, "config": config or []}},
    }


def share(*requests: str, **limits: str) -> Json:
    parameters = {"apiVersion": "tensor-fusion.ai/v1alpha1", "kind": "GpuShare", "limits": limits}
    return {
        "requests": list(requests),
        "opaque": {"driver": names.DRIVER, "parameters": parameters},
    }


AMOUNTS = {"tflops": "10", "vram": "2Gi"}
SMALL = {"tflops": "5", "vram": "3Gi"}
QUALIFIED = {f"{names.DRIVER}/tflops": "10", f"{names.DRIVER}/vram": "2Gi"}
VIRTUAL = {"tflops": "1", "virtual_tflops": "10", "virtual_vram": "2Gi"}


@pytest.mark.parametrize(
    ("found", "counted"),
    [
        (claim(exactly(AMOUNTS)), ["10", "2Gi", "10", "2Gi"]),
        (claim(exactly(QUALIFIED)), ["10", "2Gi", "10", "2Gi"]),
        (claim(exactly(VIRTUAL)), ["10", "2Gi", "10", "2Gi"]),
        (claim(exactly(AMOUNTS, count=3)), ["30", "6Gi", "30", "6Gi"]),
        (claim(exactly(AMOUNTS, allocationMode="All")), ["320", "64Gi", "320", "64Gi"]),
        (claim(exactly(AMOUNTS), exactly(AMOUNTS)), ["20", "4Gi", "20", "4Gi"]),
        (
            claim({"firstAvailable": [exactly(AMOUNTS), exactly(SMALL)]}),
            ["10", "3Gi", "10", "3Gi"],
        ),
        (claim(exactly(AMOUNTS, count=2), vram_limit="4Gi"), ["20", "4Gi", "20", "8Gi"]),
        (claim(exactly(AMOUNTS), config=[share(vram="4Gi")]), ["10", "2Gi", "10", "4Gi"]),
        (
            claim(exactly(AMOUNTS), exactly(AMOUNTS), config=[share("r1", tflops="90")]),
            ["20", "4Gi", "100", "4Gi"],
        ),
        (claim(exactly(AMOUNTS), config=[share(speed="1")]), ["10", "2Gi", "10", "2Gi"]),
        (claim(exactly({"tflops": "-9", "vram": "2Gi"})), ["0", "2Gi", "0", "2Gi"]),
        (claim(exactly()), [None] * 4),
        (claim(exactly(AMOUNTS), exactly({"vram": "1Gi"})), ["10", "3Gi", "10", "3Gi"]),
        (
            stored_claim("a", allocation_result("d", tflops="312", vram="80Gi")),
            ["312", "80Gi", "312", "80Gi"],
        ),
    ],
)
def test_claim_counts_with_its_amounts_and_limits(found: Json, counted: list[str | None]) -> None:
    names_of_amounts = ["requests.tflops", "requests.vram", "limits.tflops", "limits.vram"]
    amounts = quota.counted(found)

    assert [amounts.get(name) and str(amounts[name]) for name in names_of_amounts] == counted
    assert str(amounts["workers"]) == "1"


@pytest.mark.parametrize(
    "found",
    [
        claim(exactly(AMOUNTS, adminAccess=True)),
        claim({"deviceClassName": "nic.example.com"}),
        stored_claim(
            "a", {**allocation_result("d", tflops="1", vram="1"), "driver": "nic.example.com"}
        ),
        stored_claim("a", {**allocation_result("d", tflops="1", vram="1"), "adminAccess": True}),
    ],
)
def test_claim_without_cards_of_this_driver_does_not_count(found: Json) -> None:
    assert quota.counted(found) == {}


OTHERS = {name: quota.counted(claim(exactly(AMOUNTS))) for name in ("a", "b")}


@pytest.mark.parametrize(
    ("document", "found", "texts"),
    [
        (quota_document(), exactly(), []),
        (quota_document(tflops="30", vram="6Gi", workers=3), exactly(AMOUNTS), []),
        (
            quota_document(tflops="29"),
            exactly(AMOUNTS),
            ["requests.tflops: found 10, expected at most 9: 20 of 29 are taken by a (10), b (10)"],
        ),
        (
            quota_document(limits={"vram": "5Gi"}, tflops="1"),
            exactly(AMOUNTS),
            [
                "requests.tflops: found 10, expected at most 0: 20 of 1 are taken by "
                "a (10), b (10)",
                "limits.vram: found 2Gi, expected at most 1Gi: 4Gi of 5Gi are taken by "
                "a (2Gi), b (2Gi)",
            ],
        ),
        (
            quota_document(workers=2),
            exactly(AMOUNTS),
            ["workers: found 1, expected at most 0: 2 of 2 are taken by a (1), b (1)"],
        ),
        (
            quota_document(tflops="100", vram="1Ti"),
            exactly({"tflops": "1"}),
            ["requests.vram: found a request without vram, expected its amount"],
        ),
        (
            quota_document(tflops="much"),
            exactly(AMOUNTS),
            [
                "spec.total: found 'much', expected a quantity such as 100, 71200m or 16Gi",
            ],
        ),
    ],
)
def test_refusal_names_what_is_left_and_who_has_the_rest(
    document: Json, found: Json, texts: list[str]
) -> None:
    refusals = quota.refusals(document, claim(found), OTHERS)

    assert list(refusals) == [f"GPUResourceQuota gpus: {text}" for text in texts]


def test_refusal_names_the_five_claims_that_have_most() -> None:
    others = {f"c{i}": quota.counted(claim(exactly({"vram": f"{i}Gi"}))) for i in range(1, 8)}

    (text,) = quota.refusals(quota_document(vram="28Gi"), claim(exactly({"vram": "1Gi"})), others)

    assert text.endswith("by c7 (7Gi), c6 (6Gi), c5 (5Gi), c4 (4Gi), c3 (3Gi) and 2 more")
