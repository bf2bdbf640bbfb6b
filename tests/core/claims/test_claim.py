"""Allocations, read from a stored ResourceClaim."""

from dataclasses import replace
from typing import Any

import pytest

from tensorfusion_dra.core.claims import claim as claims
from tensorfusion_dra.core.claims.claim import Allocation, ClaimRef, OpaqueConfig, PodRef
from tensorfusion_dra.core.errors import ClaimError
from tensorfusion_dra.core.kubernetes import quantity
from tests.support.builders.allocations import share_id
from tests.support.builders.stored_claims import allocation_result, stored_claim

REF = ClaimRef(namespace="default", name="a", uid="0a0b0c0d-0000-4000-8000-000000000001")
DEVICE = "gpu-8f3a"
POOL = "default/node-01"


def full_result(**changes: Any) -> dict[str, Any]:
    """Return a result for 100 TFLOPS and 16Gi; a change to None removes the field."""
    given = {**allocation_result(DEVICE, tflops="100", vram="16Gi"), **changes}
    return {name: value for name, value in given.items() if value is not None}


def stored_claim_a(*results: dict[str, Any], **allocated: Any) -> dict[str, Any]:
    """Return the claim with these results, or else one; further fields are of its devices."""
    claim = stored_claim("a", *(results or [full_result()]), uid=REF.uid)
    claim["status"]["allocation"]["devices"] |= allocated
    return claim


def read_allocations(*results: dict[str, Any]) -> tuple[Allocation, ...]:
    return claims.allocated(REF, stored_claim_a(*results)).allocations


NOT_ALLOCATED: list[Any] = [
    *(None, {}, {"allocation": None}, {"allocation": {}}, {"reservedFor": []})
]
WHOLE = {"shareID": None, "consumedCapacity": None}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"shareID": share_id(1)},
            Allocation(
                request="gpu",
                pool=POOL,
                device=DEVICE,
                share_id=share_id(1),
                consumed={"tflops": quantity.parse("100"), "vram": quantity.parse("16Gi")},
            ),
        ),
        (WHOLE, Allocation(request="gpu", pool=POOL, device=DEVICE, share_id=None, consumed={})),
        (
            {**WHOLE, "adminAccess": True},
            Allocation(
                request="gpu",
                pool=POOL,
                device=DEVICE,
                share_id=None,
                consumed={},
                admin_access=True,
            ),
        ),
        # A choice of a prioritized list.
        (
            {**WHOLE, "request": "gpu/small-one"},
            Allocation(
                request="gpu",
                subrequest="small-one",
                pool=POOL,
                device=DEVICE,
                share_id=None,
                consumed={},
            ),
        ),
    ],
)
def test_allocation_of_every_kind_is_read(changes: dict[str, Any], expected: Allocation) -> None:
    assert read_allocations(full_result(**changes)) == (expected,)


def test_only_configs_of_this_driver_are_read_in_their_order() -> None:
    ours = {"driver": "tensor-fusion.ai.dra-driver", "parameters": {"kind": "GpuShare"}}
    claim = stored_claim_a(
        config=[
            {"source": "FromClass", "opaque": ours},
            {"source": "FromClaim", "opaque": {**ours, "driver": "nic.example.com"}},
            {"source": "FromClaim", "requests": ["gpu", "b/c"], "opaque": ours},
            {"source": "FromClaim"},
        ]
    )

    assert claims.allocated(REF, claim).configs == (
        OpaqueConfig(trusted=True, requests=(), parameters={"kind": "GpuShare"}),
        OpaqueConfig(trusted=False, requests=("gpu", "b/c"), parameters={"kind": "GpuShare"}),
    )


@pytest.mark.parametrize("source", ["FromClaim", "fromclass", "", None, "FromElsewhere"])
def test_only_configs_from_a_class_are_trusted(source: str | None) -> None:
    opaque = {"driver": "tensor-fusion.ai.dra-driver"}
    claim = stored_claim_a(config=[{"source": source, "opaque": opaque}])

    assert claims.allocated(REF, claim).configs == (
        OpaqueConfig(trusted=False, requests=(), parameters=None),
    )


def test_pods_annotations_and_other_consumers_are_read() -> None:
    claim = stored_claim_a()
    claim["metadata"]["annotations"] = {"tensor-fusion.ai/qos": "high"}
    claim["status"]["reservedFor"] += [
        {"apiGroup": "example.com", "resource": "jobs", "name": "j", "uid": "uid-of-j"},
        {"apiGroup": "example.com", "resource": "pods", "name": "p", "uid": "uid-of-p"},
        {"resource": "pods", "name": "b", "uid": "uid-of-b"},
    ]

    found = claims.allocated(REF, claim)

    assert found.annotations == {"tensor-fusion.ai/qos": "high"}
    assert found.pods == (
        PodRef(namespace="default", name="a", uid="uid-of-a"),
        PodRef(namespace="default", name="b", uid="uid-of-b"),
    )
    assert found.group == "jobs/j, pods/p"


@pytest.mark.parametrize("nothing", [None, [], {}])
def test_empty_fields_mean_no_configs_pods_and_annotations(nothing: object) -> None:
    claim = stored_claim_a(config=nothing)
    claim["metadata"]["annotations"] = claim["status"]["reservedFor"] = nothing

    found = claims.allocated(REF, claim)

    assert (found.configs, found.pods, found.annotations) == ((), (), {})


def test_results_keep_their_order_and_other_drivers_are_skipped() -> None:
    nic = {"driver": "nic.example.com", "consumedCapacity": {"bandwidth": "nonsense"}}
    results = (full_result(request="b"), full_result(**nic), full_result(request="a"))

    assert [allocation.request for allocation in read_allocations(*results)] == ["b", "a"]


@pytest.mark.parametrize("results", [None, [], [full_result(driver="nic.example.com")]])
def test_claim_without_our_devices_has_no_allocations(results: object) -> None:
    assert claims.allocated(REF, stored_claim_a(results=results)).allocations == ()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"metadata": {"uid": "another-uid"}}, f"found UID another-uid, expected {REF.uid}"),
        *(({"status": status}, "found no allocation, expected one") for status in NOT_ALLOCATED),
    ],
)
def test_replaced_claim_and_one_that_is_not_allocated_are_refused(
    changes: dict[str, Any], text: str
) -> None:
    with pytest.raises(ClaimError, match=f"claim default/a: {text}"):
        claims.allocated(REF, {**stored_claim_a(), **changes})


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        *(
            (
                {"consumedCapacity": {"tflops": "1", "vram": amount}},
                f"{DEVICE}: vram: found -.*, expected 0 or more",
            )
            for amount in ("-1", "-1Mi", "-0.000000001", "-9999999999999Ei")
        ),
        *(
            ({"consumedCapacity": {"tflops": amount}}, f"{DEVICE}: tflops: found .*, expected ")
            for amount in ("", "NaN", "inf", "1_000", "16 Gi", "all", "1e999999999", None)
        ),
        *(
            ({field: value}, f"{field}: found .*, expected a name")
            for field in ("request", "pool", "device")
            for value in (None, 7, ["gpu"])
        ),
    ],
)
def test_result_with_a_malformed_amount_or_name_is_refused(
    changes: dict[str, Any], text: str
) -> None:
    with pytest.raises(ClaimError, match=f"claim default/a: {text}"):
        read_allocations(full_result(**changes))


@pytest.mark.parametrize(
    "uid",
    [
        "",
        ".",
        "..",
        "../../etc/passwd",
        "a/b",
        "a\\b",
        "a\0b",
        "a b",
        "a\n",
        "a.json",
        "-a",
        "a-",
        "a" * 64,
        "é",
        "\u0661",
        "a=b",
        "/" * 1_000_000,
    ],
    ids=lambda uid: ascii(uid[:20]),
)
def test_uid_that_is_unsafe_in_a_file_name_is_refused(uid: str) -> None:
    with pytest.raises(ClaimError, match=r"claim default/a: UID .{,200}, expected letters"):
        claims.check_ref(replace(REF, uid=uid))


@pytest.mark.parametrize("uid", [REF.uid, "a", "A1", "a" * 63, "0" * 32])
def test_uid_of_letters_digits_and_hyphens_is_accepted(uid: str) -> None:
    claims.check_ref(replace(REF, uid=uid))
