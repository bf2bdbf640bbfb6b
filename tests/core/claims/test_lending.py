"""Lending of a card's memory and compute: no tenant's limit reduces another tenant's request."""

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorfusion_dra.core.claims import lending
from tensorfusion_dra.core.claims.admit import ClaimFacts
from tensorfusion_dra.core.claims.claim import Allocation
from tensorfusion_dra.core.claims.prepared import Limit, PreparedClaim
from tensorfusion_dra.core.claims.share_policy import SharePolicy
from tensorfusion_dra.core.devices.capacity import Oversubscription
from tensorfusion_dra.core.devices.gpu import HostResources, Isolation
from tensorfusion_dra.core.errors import ClaimError
from tensorfusion_dra.core.kubernetes import quantity
from tensorfusion_dra.core.kubernetes.quantity import GIB
from tests.support.builders.allocations import allocation, exclusive_allocation
from tests.support.builders.claims import allocated_claim, claim_admission
from tests.support.builders.devices import NODE as DEFAULT_NODE
from tests.support.builders.gpus import gpu, gpus
from tests.support.builders.nodes import ENFORCERS, HAMI_CORE, MPS, NVIDIA, RULES, node_facts
from tests.support.builders.policies import DEFAULTS, share_policy
from tests.support.tenants import Card, limit_of

NODE = node_facts(*gpus(2))
GPU_0, GPU_1 = NODE.devices
OVERCOMMIT = replace(NODE, rules=replace(RULES, overcommit_limits=True))
CARD_GIB = 80


def of_card(number: int, vram: int, *, device: str = GPU_0) -> Allocation:
    return allocation(device, number, tflops="1", vram=f"{vram}Gi")


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param(
            [("a", 10, 80, {"a": 80}), ("b", 50, 50, {"a": 30, "b": 50})],
            id="a later request takes back what was lent",
        ),
        pytest.param(
            [
                ("a", 10, 30, {"a": 30}),
                ("b", 10, 40, {"a": 30, "b": 40}),
                ("c", 30, 30, {"a": 30, "b": 20, "c": 30}),
                ("d", 20, 80, {"a": 20, "b": 10, "c": 30, "d": 20}),
            ],
            id="the last borrower gives back first",
        ),
        pytest.param(
            [
                ("a", 10, 40, {"a": 40}),
                ("b", 10, 50, {"a": 40, "b": 40}),
                ("c", 60, 60, {"a": 10, "b": 10, "c": 60}),
                ("c", 0, 0, {"a": 40, "b": 40}),
                ("a", 0, 0, {"b": 50}),
            ],
            id="limits grow back in order of arrival when a tenant leaves",
        ),
        pytest.param(
            [
                ("c", 10, 20, {"c": 20}),
                ("b", 10, 70, {"c": 20, "b": 60}),
                ("c", 0, 0, {"b": 70}),
                ("a", 10, 70, {"b": 70, "a": 10}),
            ],
            id="the order depends neither on names nor on claims that left",
        ),
    ],
)
def test_memory_is_lent_and_taken_back(steps: list[tuple[str, int, int, dict[str, int]]]) -> None:
    """Each step: a tenant, its request (0 if it leaves), its limit, and all limits afterwards."""
    card, wanted = Card(NODE), dict[str, int]()
    for number, (name, request, limit, expected) in enumerate(steps):
        wanted[name] = limit

        if request:
            card.admit(name, of_card(number, request), limit=f"{limit}Gi")
        else:
            card.release(name)

        assert card.gib() == expected
        clamped = {record.ref.name: record.shares[0].clamped for record in card.claims()}
        assert clamped == {name: size < wanted[name] for name, size in expected.items()}


@pytest.mark.parametrize(
    ("enforcer", "rules", "limit"),
    [
        ("nvidia", {}, 4),
        ("nvidia", {"factor": 10}, 10),
        ("nvidia", {"factor": 1000}, 80),
        ("nvidia", {"factor": 1}, 1),
        ("nvidia", {"overcommit_limits": True}, 80),  # the administrator's word
        ("tensor-fusion", {}, 80),
    ],
)
def test_who_reserves_little_borrows_little_of_what_cannot_be_taken_back(
    enforcer: str, rules: dict[str, Any], limit: int
) -> None:
    card = Card(replace(NODE, enforcer=enforcer, rules=replace(RULES, **rules)))

    record = card.admit("a", of_card(1, 1), limit="80Gi")

    assert card.gib() == {"a": limit}
    assert record.shares[0].memory_clamped is (limit < CARD_GIB)


def test_admin_access_and_claims_without_limits_borrow_nothing() -> None:
    card = Card(NODE)
    for name, share, policy in (
        ("admin", exclusive_allocation(GPU_0, admin_access=True), DEFAULTS),
        ("free", of_card(9, 30), share_policy(vram="80Gi", limiter=False)),
    ):
        card.records[name] = claim_admission(allocated_claim(name, share), on=NODE, policy=policy)
    before = dict(card.records)

    record = card.admit("a", of_card(1, 10), limit="80Gi")

    assert card.records == {**before, "a": record}
    assert limit_of(record).vram_bytes == 50 * GIB


OVERSUBSCRIBED = node_facts(
    gpu(vram_bytes=40 * GIB),
    node=replace(
        DEFAULT_NODE,
        oversubscription=Oversubscription(
            tflops_percent=100, host_memory_percent=50, host_disk_percent=0
        ),
    ),
    host=HostResources(memory_bytes=40 * GIB),
)


def of_virtual(number: int, vram: int, *, tflops: str = "1") -> Allocation:
    """Return a share of a card whose pool divides virtual amounts."""
    amounts = {"tflops": "0", "vram": "0", "virtual_tflops": tflops, "virtual_vram": f"{vram}Gi"}
    consumed = {name: quantity.parse(text) for name, text in amounts.items()}
    return allocation(GPU_0, number, consumed=consumed)


@pytest.mark.parametrize("overcommit", [True, False])
def test_tenants_keep_their_requests_and_no_more_when_the_pool_shrinks(
    overcommit: bool,
) -> None:
    card = Card(OVERSUBSCRIBED)
    card.admit("b", of_virtual(1, 50), limit="55Gi")
    card.admit("a", of_virtual(2, 1), limit="1Gi")

    rules = replace(RULES, overcommit_limits=overcommit)
    card.node = node_facts(gpu(vram_bytes=40 * GIB), rules=rules)
    card.release("a")

    assert card.gib() == {"b": 50}


def test_limits_on_a_removed_device_stay() -> None:
    card = Card(NODE)
    claim = card.admit("a", of_card(1, 10), limit="60Gi")

    assert lending.with_totals(claim, {}) == claim


def recorded(card: Card) -> list[PreparedClaim]:
    """Return the claims as they are read from their records, without limits."""
    return [PreparedClaim.from_json(claim.as_json()) for claim in card.claims()]


@pytest.mark.parametrize(
    ("damaged", "gib"), [(frozenset(), [60, 60]), ({GPU_0}, [10, 60]), (None, [10, 10])]
)
def test_nothing_is_lent_on_a_device_with_a_damaged_record(
    damaged: lending.Devices, gib: list[int]
) -> None:
    card = Card(NODE)
    card.admit("a", of_card(1, 10), limit="60Gi")
    card.admit("b", of_card(2, 10, device=GPU_1), limit="60Gi")

    found = lending.divided(recorded(card), RULES, damaged=[damaged])

    assert [limit_of(claim).vram_bytes / GIB for claim in found] == gib


STEPS = st.lists(
    st.tuples(
        st.sampled_from("abcdef"),
        st.sampled_from([(GPU_0,), (GPU_1,), (GPU_0, GPU_1), (GPU_0, GPU_0)]),
        st.integers(1, 50),
        st.integers(0, 90),
        st.sampled_from([Isolation.SOFT, Isolation.SOFT, Isolation.HARD]),
    ),
    max_size=14,
)


@given(STEPS, st.booleans())
def test_every_limit_is_between_request_and_wanted_limit_within_the_card(
    steps: list[tuple[str, tuple[str, ...], int, int, Isolation]], overcommit: bool
) -> None:
    card = Card(OVERCOMMIT if overcommit else NODE)
    for number, (name, devices, request, beyond, isolation) in enumerate(steps):
        if name in card.records:
            card.release(name)
        else:
            allocations = [
                of_card(10 * number + index, request, device=device)
                for index, device in enumerate(devices)
            ]
            with suppress(ClaimError):
                card.admit(name, *allocations, limit=f"{request + beyond}Gi", isolation=isolation)
        assert_divided(card, overcommit=overcommit)


def assert_divided(card: Card, *, overcommit: bool) -> None:
    for device in (GPU_0, GPU_1):
        shares = [
            item for record in card.claims() for item in record.shares if item.device == device
        ]
        sizes = [item.limit.vram_bytes for item in shares if item.limit]
        for item, size in zip(shares, sizes, strict=True):
            most = min(item.wanted_vram_bytes, CARD_GIB * GIB)
            assert (most if overcommit else item.reserved.vram_bytes) <= size <= most
        assert overcommit or sum(sizes) <= CARD_GIB * GIB
        # Nothing is left over while a limit that may grow is below the wanted one.
        soft = any(item.clamped and item.isolation is Isolation.SOFT for item in shares)
        assert not soft or sum(sizes) >= CARD_GIB * GIB
    # They follow from the records alone, and another division changes nothing.
    rules = card.node.rules
    assert lending.divided(recorded(card), rules) == card.claims()
    assert lending.divided(card.claims(), rules) == card.claims()


@pytest.mark.parametrize(
    ("granted_by", "fixed", "left"),
    [(NODE, 10, (70, 40)), (OVERCOMMIT, 60, (20, 10))],
    ids=["request", "overcommitted limit"],
)
def test_fixed_limit_stays_when_the_nodes_enforcer_changes(
    granted_by: ClaimFacts, fixed: int, left: tuple[int, int]
) -> None:
    """The containers of the first claim were started with the limit in their environment."""
    card = Card(replace(granted_by, enforcer=MPS.name))
    card.admit("fixed", of_card(1, 10), limit="60Gi")
    assert card.gib() == {"fixed": fixed}

    card.node = NODE
    card.admit("a", of_card(2, 10), limit="80Gi")
    assert card.gib() == {"fixed": fixed, "a": left[0]}

    card.admit("b", of_card(3, 30), limit="80Gi")
    assert card.gib() == {"fixed": fixed, "a": left[1], "b": 30}


def test_limits_of_an_unknown_enforcer_never_change() -> None:
    card = Card(NODE)
    card.admit("a", of_card(1, 10), limit="60Gi")
    card.records["a"] = replace(card.records["a"], enforcer="of-a-later-release")

    card.admit("b", of_card(2, 30), limit="80Gi")

    assert card.gib() == {"a": 60, "b": 30}


DIVIDING = replace(NODE, enforcer=NVIDIA.name)
VIRTUAL = node_facts(
    gpu(),
    node=replace(
        DEFAULT_NODE,
        oversubscription=Oversubscription(
            tflops_percent=150, host_memory_percent=0, host_disk_percent=0
        ),
    ),
)


@pytest.mark.parametrize(
    ("node", "steps"),
    [
        pytest.param(
            DIVIDING,
            [
                ("a", "31.2", {"a": 100}),
                ("b", "156", {"a": 50, "b": 50}),
                ("b", "", {"a": 100}),
            ],
            id="a later request takes back what was lent",
        ),
        # HAMi-core reads its limits once; what is granted cannot be taken back.
        pytest.param(
            replace(NODE, enforcer=HAMI_CORE.name),
            [
                ("a", "1", {"a": 1}),
                ("b", "1", {"a": 1, "b": 1}),
                ("c", "1", {"a": 1, "b": 1, "c": 1}),
            ],
            id="nothing is lent",
        ),
        pytest.param(
            DIVIDING,
            [
                ("a", "104", {"a": 100}),
                ("b", "104", {"a": 66, "b": 34}),
                ("c", "104", {"a": 34, "b": 34, "c": 34}),
            ],
            id="requests are kept if rounding takes their sum above 100 percent",
        ),
        pytest.param(
            replace(VIRTUAL, enforcer=DIVIDING.enforcer),
            [
                ("a", "31.2", {"a": 100}),
                ("b", "31.2", {"a": 100, "b": 50}),
                ("c", "31.2", {"a": 100, "b": 40, "c": 10}),
            ],
            id="virtual compute",
        ),
        pytest.param(
            NODE,
            [
                ("a", "31.2", {"a": 100}),
                ("b", "31.2", {"a": 10, "b": 10}),
                ("a", "", {"b": 100}),
                ("c", "280.8", {"b": 10, "c": 90}),
                ("b", "", {"c": 100}),
            ],
            id="to a share that is alone on its card",
        ),
        pytest.param(
            OVERCOMMIT,
            [("a", "31.2", {"a": 100}), ("b", "31.2", {"a": 100, "b": 100})],
            id="overcommitted",
        ),
    ],
)
def test_compute_is_lent_and_taken_back(
    node: ClaimFacts, steps: list[tuple[str, str, dict[str, int]]]
) -> None:
    """Each step: a tenant, its request, and all limits afterwards; without one, it leaves."""
    card = Card(node)
    for number, (name, request, expected) in enumerate(steps):
        if not request:
            card.release(name)
        elif node.devices == VIRTUAL.devices:
            card.admit(name, of_virtual(number, 1, tflops=request), tflops="312")
        else:
            card.admit(name, allocation(GPU_0, number, tflops=request, vram="1Gi"), tflops="312")

        assert card.percent() == expected
        clamped = [record.shares[0].compute_clamped for record in card.claims()]
        assert clamped == [percent < 100 for percent in expected.values()]


@pytest.mark.parametrize("enforcer", ENFORCERS)
@pytest.mark.parametrize(("asked", "wanted"), [("", 100), ("156", 50)])
def test_node_may_give_shares_without_a_compute_limit_the_card_as_their_limit(
    enforcer: str, asked: str, wanted: int
) -> None:
    node = replace(NODE, enforcer=enforcer)
    shares = {}
    for percent in (0, 100):
        node = replace(node, rules=replace(RULES, unasked_percent=percent))
        card = Card(node)
        record = card.admit("a", allocation(GPU_0, 1, tflops="31.2", vram="1Gi"), tflops=asked)
        (shares[percent],) = record.shares

    assert shares[100].wanted_sm_percent == wanted
    assert shares[0].wanted_sm_percent == (wanted if asked else 10)
    # What the scheduler and quotas count stays.
    for share in shares.values():
        assert (share.requested_sm_percent, share.consumed) == (10, shares[0].consumed)
        assert share.wanted_vram_bytes == share.reserved.vram_bytes == GIB
        assert share.granted is None or share.granted.sm_percent == 10
    assert shares[100].idle_compute is (enforcer == HAMI_CORE.name)
    # Without a limiter that can change them, limits stay at the request.
    assert shares[100].limit == Limit(
        sm_percent=10 if shares[100].granted else wanted, vram_bytes=GIB
    )


def test_share_of_a_whole_card_wants_no_more_compute_than_it_has() -> None:
    node = replace(NODE, rules=replace(RULES, unasked_percent=100), enforcer=HAMI_CORE.name)

    (share,) = Card(node).admit("a", allocation(GPU_0, 1, tflops="312", vram="1Gi")).shares

    assert (share.wanted_sm_percent, share.idle_compute) == (100, False)


def wanted_limit(
    tflops: str, vram: str, *, milli_tflops: int = 312_000, share_policy: SharePolicy = DEFAULTS
) -> Limit:
    consumed = {"tflops": quantity.parse(tflops), "vram": quantity.parse(vram)}
    card = gpu(milli_tflops=milli_tflops)
    _, wanted = lending.request_and_wanted("gpu-0", card, consumed, share_policy)
    return wanted


@pytest.mark.parametrize(
    ("tflops", "percent"),
    [
        ("312", 100),
        ("311", 100),
        ("308.88", 99),
        ("308.881", 100),
        ("156", 50),
        ("156.001", 51),
        ("100", 33),
        ("3.12", 1),
        ("3.121", 2),
        ("1n", 1),
        ("0", 1),
        ("1000", 100),
    ],
)
def test_compute_is_a_percentage_rounded_up_and_within_1_to_100(tflops: str, percent: int) -> None:
    assert wanted_limit(tflops, "1Gi").sm_percent == percent
    assert wanted_limit("0", "1Gi", share_policy=share_policy(tflops=tflops)).sm_percent == percent


@pytest.mark.parametrize(
    ("demands", "granted"),
    [
        ([], []),
        ([(10, 10), (20, 20)], [10, 20]),
        ([(10, 50), (20, 60)], [50, 50]),
        ([(10, 200), (20, 200)], [80, 20]),
        ([(10, 200), (20, 30), (30, 30)], [50, 20, 30]),
        ([(60, 60), (40, 90)], [60, 40]),
        # More is reserved than the card has, after its pool shrank: nothing is lent.
        ([(80, 90), (40, 50)], [80, 40]),
    ],
)
def test_spare_amount_is_lent_first_come_first_served(
    demands: list[tuple[int, int]], granted: list[int]
) -> None:
    assert lending.lent(100, demands) == granted
