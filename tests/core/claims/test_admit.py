"""The last check before a device is handed out, in single cases and for generated claims."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorfusion_dra.core.claims.claim import AllocatedClaim, Allocation
from tensorfusion_dra.core.claims.limits import Limit
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.errors import ClaimError
from tensorfusion_dra.core.kubernetes import quantity
from tensorfusion_dra.core.kubernetes.quantity import GIB
from tests.support.builders.allocations import allocation, exclusive_allocation, share_id
from tests.support.builders.claims import (
    allocated_claim,
    claim_admission,
    claim_record,
    claim_ref,
)
from tests.support.builders.gpus import gpu, gpus
from tests.support.builders.nodes import COMMON_NODES, ENFORCER, node_facts

NODE = node_facts(*gpus(2))
GPU_0, GPU_1 = NODE.devices


def admit(
    name: str, *allocations: Allocation, beside: Sequence[PreparedClaim] = ()
) -> PreparedClaim:
    return claim_admission(allocated_claim(name, *allocations), on=NODE, beside=beside).record


def refusal(name: str, *allocations: Allocation, beside: Sequence[PreparedClaim] = ()) -> str:
    with pytest.raises(ClaimError) as caught:
        admit(name, *allocations, beside=beside)
    return str(caught.value)


def test_share_becomes_a_record_with_its_limit_and_device_nodes() -> None:
    record = admit("a", allocation(GPU_0, 1, tflops="78", vram="20Gi"))

    (kept,) = record.shares
    assert record.ref == claim_ref("a")
    assert record.common_nodes == COMMON_NODES
    assert record.enforcer == ENFORCER.name
    assert kept.request == "gpu"
    assert kept.device == GPU_0
    assert kept.gpu_uuid == gpu(0).uuid
    assert kept.share_id == share_id(1)
    assert not kept.exclusive
    assert kept.device_nodes == ("/dev/nvidia0",)
    assert kept.consumed == {"tflops": quantity.parse("78"), "vram": quantity.parse("20Gi")}
    assert kept.limit == Limit(sm_percent=25, vram_bytes=20 * GIB)
    assert not kept.clamped


def test_exclusive_device_is_recorded_as_the_whole_device() -> None:
    (kept,) = admit("a", exclusive_allocation(GPU_0)).shares

    assert kept.exclusive
    assert kept.share_id is None
    assert kept.consumed == {"tflops": quantity.parse("312"), "vram": quantity.parse("80Gi")}
    assert kept.limit == Limit(sm_percent=100, vram_bytes=80 * GIB)


def test_admin_access_consumes_nothing_and_has_no_limit() -> None:
    (kept,) = admit("a", exclusive_allocation(GPU_0, admin_access=True)).shares

    assert kept.admin_access
    assert not kept.exclusive
    assert kept.consumed == {}
    assert kept.limit is None
    assert kept.device_nodes == ("/dev/nvidia0",)


def test_shares_of_one_claim_on_a_card_add_up() -> None:
    half = {"tflops": "156", "vram": "40Gi"}

    record = admit(
        "a", allocation(GPU_0, 1, **half), allocation(GPU_0, 2, **half, request="second")
    )

    assert [kept.share_id for kept in record.shares] == [share_id(1), share_id(2)]
    text = refusal(
        "a", allocation(GPU_0, 1, **half), allocation(GPU_0, 2, tflops="156.001", vram="1Mi")
    )
    assert (
        text
        == f"claim default/a: {GPU_0}: tflops: found 156001m plus 156 in use, expected at most 312"
    )


def test_last_byte_fits_and_a_step_more_does_not() -> None:
    beside = [claim_record("a", allocation(GPU_0, 1, vram="81919Mi"), on=NODE)]

    admit("b", allocation(GPU_0, 2, vram="1Mi"), beside=beside)

    text = refusal("b", allocation(GPU_0, 2, vram="2Mi"), beside=beside)
    assert (
        text
        == f"claim default/b: {GPU_0}: vram: found 2Mi plus 81919Mi in use, expected at most 80Gi"
    )


def test_same_name_with_another_uid_is_another_claim() -> None:
    before = claim_record("a", allocation(GPU_0, 1), on=NODE)
    deleted = replace(before, ref=replace(before.ref, uid="uid-before"))

    text = refusal("a", allocation(GPU_0, 1), beside=[deleted])

    assert text == (
        f"claim default/a: {GPU_0}: found share {share_id(1)} in use by default/a, "
        "expected a share of its own"
    )


def test_share_id_in_use_is_refused() -> None:
    beside = [claim_record("a", allocation(GPU_0, 1), on=NODE)]

    text = refusal("b", allocation(GPU_0, 1), beside=beside)

    assert text == (
        f"claim default/b: {GPU_0}: found share {share_id(1)} in use by default/a, "
        "expected a share of its own"
    )
    assert "in use by default/c" in refusal("c", allocation(GPU_0, 3), allocation(GPU_0, 3))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (exclusive_allocation(GPU_0), exclusive_allocation(GPU_0)),
        (exclusive_allocation(GPU_0), allocation(GPU_0, 1, tflops="0", vram="1Mi")),
        (allocation(GPU_0, 1, tflops="0", vram="1Mi"), exclusive_allocation(GPU_0)),
    ],
    ids=["exclusive beside exclusive", "share beside exclusive", "exclusive beside share"],
)
def test_exclusive_device_is_not_shared(first: Allocation, second: Allocation) -> None:
    beside = [claim_record("a", first, on=NODE)]

    text = refusal("b", second, beside=beside)

    assert text == (
        f"claim default/b: {GPU_0}: found default/a on the device, expected no other claim "
        "beside an exclusive allocation"
    )
    assert "found default/c on the device" in refusal("c", first, second)


@pytest.mark.parametrize(
    "other", [exclusive_allocation(GPU_0), allocation(GPU_0, 1, tflops="312", vram="80Gi")]
)
def test_admin_access_fits_beside_every_user_and_blocks_none(other: Allocation) -> None:
    admin = exclusive_allocation(GPU_0, request="watch", admin_access=True)

    admit("b", admin, beside=[claim_record("a", other, on=NODE)])
    admit("a", other, beside=[claim_record("b", admin, on=NODE)])
    admit("c", admin, other)


def test_pool_of_another_node_is_refused_with_both_pools() -> None:
    text = refusal("a", allocation(GPU_0, 1, pool="default/node-02"))

    assert (
        text
        == "claim default/a: allocated from pool default/node-02, this node's is default/node-01"
    )


def test_unknown_device_is_refused_with_the_known_ones() -> None:
    text = refusal("a", allocation("gpu-gone", 1))

    assert text == f"claim default/a: device gpu-gone unknown, this node has {GPU_0}, {GPU_1}"


def test_error_on_a_node_without_devices_lists_none() -> None:
    with pytest.raises(ClaimError, match="device gpu-gone unknown, this node has none"):
        claim_admission(allocated_claim("a", allocation("gpu-gone", 1)), on=node_facts())


@pytest.mark.parametrize("missing", ["tflops", "vram"])
def test_share_without_an_amount_of_each_capacity_is_refused(missing: str) -> None:
    amounts = {"tflops": quantity.parse("1"), "vram": quantity.parse("1Gi")}
    del amounts[missing]

    text = refusal("a", allocation(GPU_0, 1, consumed=amounts))

    assert text == f"claim default/a: {GPU_0}: {missing}: found no consumed capacity, expected one"


def test_amounts_without_a_share_id_are_refused() -> None:
    text = refusal("a", allocation(GPU_0, 1, share_id=None))

    assert text == f"claim default/a: {GPU_0}: found consumed capacity without a share ID"


def test_amounts_of_capacities_that_the_device_lacks_are_not_recorded() -> None:
    amounts = {name: quantity.parse("1Gi") for name in ("tflops", "vram", "bandwidth")}

    with pytest.raises(ClaimError, match="tflops"):
        admit("a", allocation(GPU_0, 1, consumed=amounts))
    (kept,) = admit(
        "a", allocation(GPU_0, 1, consumed={**amounts, "tflops": quantity.parse("1")})
    ).shares

    assert kept.consumed.keys() == {"tflops", "vram"}


def test_one_bad_allocation_refuses_the_whole_claim() -> None:
    assert "gpu-gone" in refusal("a", allocation(GPU_0, 1), allocation("gpu-gone", 2))


VRAM = st.integers(1, 90).map(lambda gib: f"{gib}Gi")
TFLOPS = st.integers(0, 330_000).map(lambda milli: f"{milli}m")
DEVICES = st.sampled_from([GPU_0, GPU_1])
SHARES = st.builds(
    lambda device, number, tflops, vram: allocation(device, number, tflops=tflops, vram=vram),
    DEVICES,
    st.integers(0, 9),
    TFLOPS,
    VRAM,
)
EXCLUSIVE = st.builds(
    lambda device, admin: exclusive_allocation(device, admin_access=admin), DEVICES, st.booleans()
)
CLAIMS = st.builds(
    lambda name, allocations: allocated_claim(name, *allocations),
    st.sampled_from("abcdef"),
    st.lists(st.one_of(SHARES, SHARES, SHARES, EXCLUSIVE), min_size=1, max_size=3),
)


def fits(claim: AllocatedClaim, others: list[PreparedClaim]) -> bool:
    """Return True if a claim fits, computed by device instead of by share."""
    for name, device in NODE.devices.items():
        mine = [item for item in claim.allocations if item.device == name]
        mine = [item for item in mine if not item.admin_access]
        theirs = [item for other in others for item in other.shares if item.device == name]
        theirs = [item for item in theirs if not item.admin_access]
        ids = [item.share_id for item in mine] + [item.share_id for item in theirs]
        exclusive_here = any(number is None for number in ids)
        if mine and ((len(ids) > 1 and exclusive_here) or len(set(ids)) < len(ids)):
            return False
        for capacity, entry in device.capacity.items():
            taken = sum(item.consumed[capacity].nano for item in mine if item.share_id)
            taken += sum(item.consumed[capacity].nano for item in theirs)
            if mine and taken > entry.value.nano:
                return False
    return True


@given(st.lists(st.tuples(CLAIMS, st.booleans()), max_size=12))
def test_exactly_the_claims_that_fit_are_admitted(
    steps: list[tuple[AllocatedClaim, bool]],
) -> None:
    records: dict[str, PreparedClaim] = {}
    for claim, leaves in steps:
        others = [record for uid, record in records.items() if uid != claim.ref.uid]
        try:
            records[claim.ref.uid] = claim_admission(claim, on=NODE, beside=records.values()).record
            fitted = True
        except ClaimError:
            fitted = False

        assert fitted == fits(claim, others)
        if leaves:
            records.pop(claim.ref.uid, None)
