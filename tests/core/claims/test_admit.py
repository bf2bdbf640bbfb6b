"""The last check before a device is handed out, in single cases and for generated claims."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorfusion_dra.core.claims.claim import AllocatedClaim, Allocation
from tensorfusion_dra.core.claims.prepared import Limit, PreparedClaim
from tensorfusion_dra.core.errors import ClaimError, RetryableError
from tensorfusion_dra.core.kubernetes import quantity
from tensorfusion_dra.core.kubernetes.quantity import GIB, Quantity
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
    return claim_admission(allocated_claim(name, *allocations), on=NODE, beside=beside)


@pytest.mark.parametrize(
    ("granted", "kind", "consumed", "limit"),
    [
        (
            allocation(GPU_0, 1, tflops="78", vram="20Gi"),
            {"share_id": share_id(1), "exclusive": False, "admin_access": False},
            {"tflops": quantity.parse("78"), "vram": quantity.parse("20Gi")},
            Limit(sm_percent=25, vram_bytes=20 * GIB),
        ),
        (
            exclusive_allocation(GPU_0),
            {"share_id": None, "exclusive": True, "admin_access": False},
            {"tflops": quantity.parse("312"), "vram": quantity.parse("80Gi")},
            Limit(sm_percent=100, vram_bytes=80 * GIB),
        ),
        (
            exclusive_allocation(GPU_0, admin_access=True),
            {"share_id": None, "exclusive": False, "admin_access": True},
            {},
            None,
        ),
    ],
    ids=["share", "whole device", "admin access"],
)
def test_allocation_becomes_a_record_with_its_limit_and_device_nodes(
    granted: Allocation, kind: dict[str, Any], consumed: dict[str, Quantity], limit: Limit | None
) -> None:
    record = admit("a", granted)

    (kept,) = record.shares
    assert (record.ref, record.common_nodes) == (claim_ref("a"), COMMON_NODES)
    assert record.enforcer == ENFORCER.name
    assert (kept.request, kept.device, kept.gpu_uuid) == ("gpu", GPU_0, gpu(0).uuid)
    assert {name: getattr(kept, name) for name in kind} == kind
    assert kept.device_nodes == ("/dev/nvidia0",)
    assert (kept.consumed, kept.limit, kept.clamped) == (consumed, limit, False)


def test_claim_of_a_pod_group_gets_whole_cards_without_limits_and_no_parts() -> None:
    whole = allocated_claim("a", exclusive_allocation(GPU_0), group="podgroups/train")
    part = allocated_claim("b", allocation(GPU_0, 1, **LEAST), group="podgroups/train")

    (kept,) = claim_admission(whole, on=NODE).shares

    assert kept.limit is None
    with pytest.raises(RetryableError, match="reserved for podgroups/train, which"):
        claim_admission(part, on=NODE)


HALF = {"tflops": "156", "vram": "40Gi"}
LEAST = {"tflops": "0", "vram": "1Mi"}
EXCLUSIVE = exclusive_allocation(GPU_0)
ONE = allocation(GPU_0, 1, **LEAST)
AMOUNTS = {"tflops": quantity.parse("1"), "vram": quantity.parse("1Gi")}


@pytest.mark.parametrize(
    ("wanted", "existing", "text"),
    [
        (
            [allocation(GPU_0, 1, **HALF), allocation(GPU_0, 2, tflops="156.001", vram="1Mi")],
            [],
            f"{GPU_0}: tflops: found 156001m plus 156 in use, expected at most 312",
        ),
        (
            [allocation(GPU_0, 2, vram="2Mi")],
            [allocation(GPU_0, 1, vram="81919Mi")],
            f"{GPU_0}: vram: found 2Mi plus 81919Mi in use, expected at most 80Gi",
        ),
        (
            [allocation(GPU_0, 1)],
            [allocation(GPU_0, 1)],
            f"{GPU_0}: found share {share_id(1)} in use by default/a, expected a share of its own",
        ),
        (
            [allocation(GPU_0, 3), allocation(GPU_0, 3)],
            [],
            f"{GPU_0}: found share {share_id(3)} in use by default/a, expected a share of its own",
        ),
        *(
            (
                wanted,
                existing,
                f"{GPU_0}: found default/a on the device, expected no other claim beside an "
                "exclusive allocation",
            )
            for wanted, existing in (
                ([EXCLUSIVE], [EXCLUSIVE]),
                ([ONE], [EXCLUSIVE]),
                ([EXCLUSIVE], [ONE]),
                ([EXCLUSIVE, EXCLUSIVE], []),
                ([EXCLUSIVE, ONE], []),
                ([ONE, EXCLUSIVE], []),
            )
        ),
        (
            [allocation(GPU_0, 1, pool="default/node-02")],
            [],
            "allocated from pool default/node-02, this node's is default/node-01",
        ),
        # One bad allocation refuses the whole claim.
        (
            [allocation(GPU_0, 1), allocation("gpu-gone", 2)],
            [],
            f"device gpu-gone unknown, this node has {GPU_0}, {GPU_1}",
        ),
        *(
            (
                [allocation(GPU_0, 1, consumed={left: AMOUNTS[left]})],
                [],
                f"{GPU_0}: {missing}: found no consumed capacity, expected one",
            )
            for missing, left in (("tflops", "vram"), ("vram", "tflops"))
        ),
        (
            [allocation(GPU_0, 1, share_id=None)],
            [],
            f"{GPU_0}: found consumed capacity without a share ID",
        ),
    ],
)
def test_claim_that_does_not_fit_is_refused(
    wanted: list[Allocation], existing: list[Allocation], text: str
) -> None:
    # A deleted claim of the same name is another claim.
    before = claim_record("a", *existing, on=NODE)
    deleted = replace(before, ref=replace(before.ref, uid="uid-before"))

    with pytest.raises(ClaimError) as caught:
        admit("a", *wanted, beside=[deleted])

    assert str(caught.value) == f"claim default/a: {text}"


def test_last_byte_and_last_flop_fit() -> None:
    beside = [claim_record("a", allocation(GPU_0, 1, tflops="156", vram="81919Mi"), on=NODE)]

    admit("b", allocation(GPU_0, 2, tflops="156", vram="1Mi"), beside=beside)


@pytest.mark.parametrize(
    "other", [exclusive_allocation(GPU_0), allocation(GPU_0, 1, tflops="312", vram="80Gi")]
)
def test_admin_access_fits_beside_every_user_and_blocks_none(other: Allocation) -> None:
    admin = exclusive_allocation(GPU_0, request="watch", admin_access=True)

    admit("b", admin, beside=[claim_record("a", other, on=NODE)])
    admit("a", other, beside=[claim_record("b", admin, on=NODE)])
    admit("c", admin, other)


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
WHOLE_DEVICES = st.builds(
    lambda device, admin: exclusive_allocation(device, admin_access=admin), DEVICES, st.booleans()
)
CLAIMS = st.builds(
    lambda name, allocations: allocated_claim(name, *allocations),
    st.sampled_from("abcdef"),
    st.lists(st.one_of(SHARES, SHARES, SHARES, WHOLE_DEVICES), min_size=1, max_size=3),
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
            records[claim.ref.uid] = claim_admission(claim, on=NODE, beside=records.values())
            fitted = True
        except ClaimError:
            fitted = False

        assert fitted == fits(claim, others)
        if leaves:
            records.pop(claim.ref.uid, None)
