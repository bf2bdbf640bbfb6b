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


def stored_claim_a(*results: dict[str, Any]) -> dict[str, Any]:
    return stored_claim("a", *results, uid=REF.uid)


def read_allocations(*results: dict[str, Any]) -> tuple[Allocation, ...]:
    return claims.allocated(REF, stored_claim_a(*results)).allocations


def full_result(**changes: Any) -> dict[str, Any]:
    """Return a result for 100 TFLOPS and 16Gi; a change to None removes the field."""
    given = {**allocation_result(DEVICE, tflops="100", vram="16Gi"), **changes}
    return {name: value for name, value in given.items() if value is not None}


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
    claim = stored_claim_a(full_result())
    ours = {"driver": "tensor-fusion.ai.dra-driver", "parameters": {"kind": "GpuShare"}}
    claim["status"]["allocation"]["devices"]["config"] = [
        {"source": "FromClass", "opaque": ours},
        {"source": "FromClaim", "opaque": {**ours, "driver": "nic.example.com"}},
        {"source": "FromClaim", "requests": ["gpu", "b/c"], "opaque": ours},
        {"source": "FromClaim"},
    ]

    assert claims.allocated(REF, claim).configs == (
        OpaqueConfig(trusted=True, requests=(), parameters={"kind": "GpuShare"}),
        OpaqueConfig(trusted=False, requests=("gpu", "b/c"), parameters={"kind": "GpuShare"}),
    )


@pytest.mark.parametrize("source", ["FromClaim", "fromclass", "", None, "FromElsewhere"])
def test_only_configs_from_a_class_are_trusted(source: str | None) -> None:
    claim = stored_claim_a(full_result())
    opaque = {"driver": "tensor-fusion.ai.dra-driver"}
    claim["status"]["allocation"]["devices"]["config"] = [{"source": source, "opaque": opaque}]

    (config,) = claims.allocated(REF, claim).configs

    assert not config.trusted
    assert config.parameters is None


def test_pods_annotations_and_other_consumers_are_read() -> None:
    claim = stored_claim_a(full_result())
    claim["metadata"]["annotations"] = {"tensor-fusion.ai/qos": "high"}
    claim["status"]["reservedFor"] += [
        {"apiGroup": "example.com", "resource": "jobs", "name": "j", "uid": "uid-of-j"},
        {"apiGroup": "example.com", "resource": "pods", "name": "p", "uid": "uid-of-p"},
        {"resource": "pods", "name": "b", "uid": "uid-of-b"},
    ]

    read_claim = claims.allocated(REF, claim)

    assert read_claim.annotations == {"tensor-fusion.ai/qos": "high"}
    assert read_claim.pods == (
        PodRef(namespace="default", name="a", uid="uid-of-a"),
        PodRef(namespace="default", name="b", uid="uid-of-b"),
    )
    assert read_claim.group == "jobs/j, pods/p"


@pytest.mark.parametrize("nothing", [None, [], {}])
def test_empty_fields_mean_no_configs_pods_and_annotations(
    nothing: object,
) -> None:
    claim = stored_claim_a(full_result())
    claim["metadata"]["annotations"] = nothing
    claim["status"]["reservedFor"] = nothing
    claim["status"]["allocation"]["devices"]["config"] = nothing

    read_claim = claims.allocated(REF, claim)

    assert (read_claim.configs, read_claim.pods) == ((), ())
    assert read_claim.annotations == {}


def test_results_keep_their_order_and_other_drivers_are_skipped() -> None:
    found = read_allocations(
        full_result(request="b"),
        full_result(
            driver="nic.example.com", device="nic-0", consumedCapacity={"bandwidth": "nonsense"}
        ),
        full_result(request="a"),
    )

    assert [allocation.request for allocation in found] == ["b", "a"]


@pytest.mark.parametrize(
    "devices", [{}, {"results": None}, {"results": [full_result(driver="nic.example.com")]}]
)
def test_claim_without_our_devices_has_no_allocations(devices: dict[str, Any]) -> None:
    claim = stored_claim_a()
    claim["status"]["allocation"] = {"nodeSelector": {}, "devices": devices}

    assert claims.allocated(REF, claim).allocations == ()


def test_replaced_claim_is_refused_with_both_uids() -> None:
    claim = stored_claim_a(full_result())
    claim["metadata"]["uid"] = "another-uid"

    with pytest.raises(
        ClaimError, match=f"claim default/a: found UID another-uid, expected {REF.uid}"
    ):
        claims.allocated(REF, claim)


@pytest.mark.parametrize(
    "status", [None, {}, {"allocation": None}, {"allocation": {}}, {"reservedFor": []}]
)
def test_claim_that_is_not_allocated_is_refused(status: dict[str, Any] | None) -> None:
    claim = stored_claim_a()
    claim["status"] = status

    with pytest.raises(ClaimError, match="claim default/a: found no allocation, expected one"):
        claims.allocated(REF, claim)


@pytest.mark.parametrize(
    ("amounts", "text"),
    [
        *(
            ({"tflops": "1", "vram": amount}, r"vram: found -.*, expected 0 or more")
            for amount in ("-1", "-1Mi", "-0.000000001", "-9999999999999Ei")
        ),
        *(
            ({"tflops": amount}, r"tflops: found .*, expected ")
            for amount in ("", "NaN", "inf", "1_000", "16 Gi", "all", "1e999999999", None)
        ),
    ],
)
def test_amount_that_is_negative_or_no_quantity_is_refused(
    amounts: dict[str, Any], text: str
) -> None:
    with pytest.raises(ClaimError, match=f"claim default/a: {DEVICE}: {text}"):
        read_allocations(full_result(consumedCapacity=amounts))


@pytest.mark.parametrize("field", ["request", "pool", "device"])
@pytest.mark.parametrize("value", [None, 7, ["gpu"]])
def test_result_without_one_of_its_names_is_refused(field: str, value: object) -> None:
    with pytest.raises(ClaimError, match=f"claim default/a: {field}: found .*, expected a name"):
        read_allocations(full_result(**{field: value}))


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


def test_uid_of_letters_digits_and_hyphens_is_accepted() -> None:
    for uid in (REF.uid, "a", "A1", "a" * 63, "0" * 32):
        claims.check_ref(replace(REF, uid=uid))
