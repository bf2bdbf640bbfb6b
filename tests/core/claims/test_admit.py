"""The last check before a device is handed out: amounts, isolation, capacities of others."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorfusion_dra.core.claims import admit as admission
from tensorfusion_dra.core.claims import isolation, lending
from tensorfusion_dra.core.claims.admit import ClaimFacts
from tensorfusion_dra.core.claims.claim import AllocatedClaim, Allocation
from tensorfusion_dra.core.claims.prepared import Limit, PreparedClaim
from tensorfusion_dra.core.claims.share_policy import OF_CARDS
from tensorfusion_dra.core.devices.capacity import Oversubscription, consumable
from tensorfusion_dra.core.devices.gpu import HostResources, Isolation
from tensorfusion_dra.core.errors import ClaimError, RetryableError
from tensorfusion_dra.core.kubernetes import quantity
from tensorfusion_dra.core.kubernetes.quantity import GIB, Quantity
from tensorfusion_dra.enforcers.hami_core.enforcer import HamiCore
from tensorfusion_dra.enforcers.mps.enforcer import Mps
from tests.support.builders.allocations import allocation, exclusive_allocation, share_id
from tests.support.builders.claims import allocated_claim, claim_admission, claim_ref
from tests.support.builders.devices import NODE as MEMBER
from tests.support.builders.gpus import gpu, gpus
from tests.support.builders.nodes import COMMON_NODES, ENFORCER, node_facts
from tests.support.builders.policies import share_policy

NODE = node_facts(*gpus(2))
GPU_0, GPU_1 = NODE.devices


def admit(
    name: str,
    *allocations: Allocation,
    on: ClaimFacts = NODE,
    beside: Sequence[PreparedClaim] = (),
    **policy: Any,
) -> PreparedClaim:
    """Return the record of a claim beside others; its policy has these attributes."""
    chosen = share_policy(**policy)
    return claim_admission(allocated_claim(name, *allocations), on=on, beside=beside, policy=chosen)


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
    assert (record.ref, record.common_nodes, record.enforcer) == (
        claim_ref("a"),
        COMMON_NODES,
        ENFORCER.name,
    )
    expected = {
        "request": "gpu",
        "device": GPU_0,
        "gpu_uuid": gpu(0).uuid,
        "device_nodes": ("/dev/nvidia0",),
        "clamped": False,
        "consumed": consumed,
        "limit": limit,
        **kind,
    }
    assert {name: getattr(kept, name) for name in expected} == expected


def test_claim_of_a_pod_group_gets_whole_cards_without_limits_and_no_parts() -> None:
    whole = allocated_claim("a", exclusive_allocation(GPU_0), group="podgroups/train")
    part = allocated_claim("b", allocation(GPU_0, 1, **LEAST), group="podgroups/train")

    (kept,) = claim_admission(whole, on=NODE).shares

    assert kept.limit is None
    with pytest.raises(RetryableError, match="reserved for podgroups/train, which"):
        claim_admission(part, on=NODE)


LEAST = {"tflops": "0", "vram": "1Mi"}
EXCLUSIVE = exclusive_allocation(GPU_0)
ONE = allocation(GPU_0, 1, **LEAST)
AMOUNTS = {"tflops": quantity.parse("1"), "vram": quantity.parse("1Gi")}


@pytest.mark.parametrize(
    ("wanted", "existing", "text"),
    [
        (
            [
                allocation(GPU_0, 1, tflops="156", vram="40Gi"),
                allocation(GPU_0, 2, tflops="156.001", vram="1Mi"),
            ],
            [],
            f"{GPU_0}: tflops: found 156001m plus 156 in use, expected at most 312",
        ),
        (
            [allocation(GPU_0, 2, vram="2Mi")],
            [allocation(GPU_0, 1, vram="81919Mi")],
            f"{GPU_0}: vram: found 2Mi plus 81919Mi in use, expected at most 80Gi "
            "(in use by default/a)",
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
    before = admit("a", *existing)
    deleted = replace(before, ref=replace(before.ref, uid="uid-before"))

    with pytest.raises(ClaimError) as caught:
        admit("a", *wanted, beside=[deleted])

    assert str(caught.value) == f"claim default/a: {text}"


def test_last_byte_and_last_flop_fit() -> None:
    first = admit("a", allocation(GPU_0, 1, tflops="156", vram="81919Mi"))

    assert admit("b", allocation(GPU_0, 2, tflops="156", vram="1Mi"), beside=[first]).shares


ADMIN = exclusive_allocation(GPU_0, request="watch", admin_access=True)
SOFT, HARD, SHARED = Isolation.SOFT, Isolation.HARD, Isolation.SHARED


@pytest.mark.parametrize(("mode", "other"), list(product(OF_CARDS, repeat=2)))
@pytest.mark.parametrize(
    "user", [EXCLUSIVE, allocation(GPU_0, 1, tflops="312", vram="80Gi")], ids=["whole", "share"]
)
def test_admin_access_fits_beside_every_user_and_blocks_none(
    user: Allocation, mode: Isolation, other: Isolation
) -> None:
    """Its isolation is no tenant's choice, so it may be any."""
    tenant = admit("a", user, isolation=mode)

    admin = admit("b", ADMIN, isolation=other, isolation_by_tenant=True, beside=[tenant])

    assert admit("a", user, isolation=mode, beside=[admin]).shares
    assert admit("c", ADMIN, user, isolation=mode).shares


@pytest.mark.parametrize(
    ("existing", "wanted"),
    [pair for pair in product(OF_CARDS, repeat=2) if SHARED in pair or len({*pair}) == 2],
)
def test_card_has_one_mode_and_in_shared_isolation_one_tenant(
    existing: Isolation, wanted: Isolation
) -> None:
    first = admit("a", ONE, isolation=existing)
    found = (
        f"default/a on the card in isolation {existing}, expected no other tenant"
        if SHARED in (existing, wanted)
        else f"the card in isolation {existing} by default/a, expected the same"
    )

    with pytest.raises(
        ClaimError, match=f"^claim default/b: {GPU_0}: isolation {wanted}: found {found}$"
    ):
        admit("b", allocation(GPU_0, 2), isolation=wanted, beside=[first])


def test_claim_has_one_share_of_a_card_in_shared_isolation() -> None:
    text = "found default/a on the card in isolation shared, expected no other tenant"

    with pytest.raises(ClaimError, match=text):
        admit("a", ONE, allocation(GPU_0, 2), isolation=SHARED)


@pytest.mark.parametrize("enforcer", [HamiCore.name, Mps.name])
def test_hard_and_soft_share_a_card_if_the_enforcer_treats_them_alike(enforcer: str) -> None:
    node = replace(NODE, enforcer=enforcer)
    soft = admit("a", ONE, on=node, isolation=SOFT)

    kept = admit("b", allocation(GPU_0, 2), on=node, isolation=HARD, beside=[soft])

    assert [each.isolation for each in kept.shares] == [HARD]


def test_claim_with_two_isolation_modes_is_refused() -> None:
    claim = allocated_claim("a", ONE, allocation(GPU_1, 2, request="two"))
    modes = replace(NODE, policies=[share_policy(isolation=mode) for mode in (SOFT, HARD)])

    with pytest.raises(
        ClaimError, match=r"^claim default/a: isolation: found hard, soft, expected one$"
    ):
        admission.record(claim, modes)


def test_claim_that_has_its_card_without_limits_keeps_later_claims_off_even_if_the_card_grows() -> (
    None
):
    """Example: ECC is turned off at a reboot, which leaves containers more memory."""
    before, after = (node_facts(gpu(vram_bytes=size * GIB)) for size in (80, 86))
    whole = admit("a", allocation(GPU_0, 1, tflops="312", vram="80Gi"), on=before)

    alone = isolation.without_limits(whole, before.devices)

    assert alone is not None
    assert [(share.isolation, share.limit) for share in alone.shares] == [(SHARED, None)]
    text = "isolation soft: found default/a on the card in isolation shared, expected no other"
    with pytest.raises(ClaimError, match=f"claim default/late: {GPU_0}: {text} tenant"):
        admit("late", allocation(GPU_0, 2, tflops="0", vram="1Gi"), on=after, beside=[alone])


@pytest.mark.parametrize(
    ("ratios", "has_limits"),
    [
        # All of the card's own compute and memory, so there is nothing to limit.
        (Oversubscription(tflops_percent=150, host_memory_percent=0, host_disk_percent=0), False),
        # Only the limiter gives a container more memory than the card has.
        (Oversubscription(tflops_percent=100, host_memory_percent=50, host_disk_percent=0), True),
    ],
)
def test_whole_card_needs_its_limits_only_if_its_memory_is_expanded(
    ratios: Oversubscription, has_limits: bool
) -> None:
    pool = replace(MEMBER, oversubscription=ratios)
    node = node_facts(gpu(), node=pool, host=HostResources(memory_bytes=80 * GIB))

    claim = admit("a", EXCLUSIVE, on=node)

    assert (isolation.without_limits(claim, node.devices) is None) is has_limits


SLOTS = "example.com/slots"


def with_slots(value: int | None) -> ClaimFacts:
    """Return a node whose first card has so many slots of another package; None for none."""
    device = NODE.devices[GPU_0]
    slots = {} if value is None else {SLOTS: consumable(value)}
    extended = replace(device, capacity={**device.capacity, **slots})
    return replace(NODE, devices={GPU_0: extended})


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param([(4, "3", "3"), (4, "1", "1"), (4, "1", "refused")], id="amounts add up"),
        pytest.param(
            [(None, None, None), (4, None, "0"), (4, "4", "4")],
            id="claim from before the capacity was published",
        ),
        pytest.param(
            [(4, "4", "4"), (2, None, "0"), (2, "1", "refused")],
            id="claim without slots after the provider lowered them",
        ),
        pytest.param([(4, "4", "4"), (None, "4", None)], id="the provider is gone"),
    ],
)
def test_capacity_of_another_package_is_counted_and_never_in_the_way_otherwise(
    steps: list[tuple[int | None, str | None, str | None]],
) -> None:
    """Each step: the slots of the card, those that the next claim names, and those it gets."""
    records: list[PreparedClaim] = []
    for number, (value, named, kept) in enumerate(steps):
        amounts = {"tflops": "10", "vram": "1Gi", **({SLOTS: named} if named else {})}
        consumed = {name: quantity.parse(text) for name, text in amounts.items()}
        expected = pytest.raises(ClaimError, match=f"{SLOTS}: found 1 plus 4 in use")
        with expected if kept == "refused" else nullcontext():
            share = allocation(GPU_0, number, consumed=consumed)
            records.append(admit(f"c{number}", share, on=with_slots(value), beside=records))
            assert records[-1].shares[0].consumed.get(SLOTS) == (kept and quantity.parse(kept))

    assert lending.divided(records, NODE.rules) == records


def test_capacity_from_text_always_has_a_policy() -> None:
    """Without a default Kubernetes would count the whole value of a claim that names none."""
    assert consumable("4Gi", step="1Gi", maximum="2Gi").as_api() == {
        "value": "4Gi",
        "requestPolicy": {"default": "0", "validRange": {"min": "0", "max": "2Gi", "step": "1Gi"}},
    }


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
CLAIMS = st.builds(
    lambda name, allocations: allocated_claim(name, *allocations),
    st.sampled_from("abcdef"),
    st.lists(
        st.one_of(
            SHARES,
            SHARES,
            SHARES,
            st.builds(
                lambda device, admin: exclusive_allocation(device, admin_access=admin),
                DEVICES,
                st.booleans(),
            ),
        ),
        min_size=1,
        max_size=3,
    ),
)


def fits(claim: AllocatedClaim, others: list[PreparedClaim]) -> bool:
    """Return True if a claim fits, computed by device instead of by share."""
    for name, device in NODE.devices.items():
        shares = (share for other in others for share in other.shares)
        mine = [
            each for each in claim.allocations if (each.device, each.admin_access) == (name, False)
        ]
        theirs = [each for each in shares if (each.device, each.admin_access) == (name, False)]
        ids = [each.share_id for each in mine] + [each.share_id for each in theirs]
        if mine and (len(set(ids)) < len(ids) or (len(ids) > 1 and None in ids)):
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
        with nullcontext() if fits(claim, others) else pytest.raises(ClaimError):
            records[claim.ref.uid] = claim_admission(claim, on=NODE, beside=records.values())
        if leaves:
            records.pop(claim.ref.uid, None)
