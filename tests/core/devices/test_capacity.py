"""Capacities of a card: their policies, oversubscription, and memory that the driver reserves."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_simulator.api import object_rules
from tensorfusion_dra.core.claims import lending
from tensorfusion_dra.core.claims.admit import ClaimFacts
from tensorfusion_dra.core.claims.prepared import Limit, PreparedClaim
from tensorfusion_dra.core.devices import capacity
from tensorfusion_dra.core.devices.capacity import Oversubscription
from tensorfusion_dra.core.devices.gpu import HostResources
from tensorfusion_dra.core.errors import ClaimError
from tensorfusion_dra.core.kubernetes import quantity
from tensorfusion_dra.core.kubernetes.quantity import GIB, MIB
from tests.support.builders.allocations import allocation
from tests.support.builders.claims import allocated_claim, claim_admission
from tests.support.builders.devices import NODE, published_devices
from tests.support.builders.gpus import gpu, gpus, partition
from tests.support.builders.nodes import node_facts


def test_card_offers_compute_and_memory_with_a_policy() -> None:
    offered = {name: entry.as_api() for name, entry in capacity.of_card(gpu(), None).items()}

    assert offered == {
        "tflops": {
            "value": "312",
            "requestPolicy": {"default": "312", "validRange": {"min": "0"}},
        },
        "vram": {
            "value": "80Gi",
            "requestPolicy": {"default": "80Gi", "validRange": {"min": "1Mi", "step": "1Mi"}},
        },
    }


@pytest.mark.parametrize(
    ("vram_bytes", "reserved_bytes", "value"),
    [
        (80 * GIB, 0, "80Gi"),
        (80 * GIB - 1, 0, "81919Mi"),
        (85_520_809_984, 0, "81559Mi"),
        (16 * GIB + MIB // 2, 0, "16Gi"),
        # Driver and firmware reserve a part.
        (15360 * MIB, 450 * MIB - 1, "14910Mi"),
    ],
)
def test_memory_is_what_is_not_reserved_rounded_down_to_the_step_of_its_shares(
    vram_bytes: int, reserved_bytes: int, value: str
) -> None:
    card = gpu(vram_bytes=vram_bytes, reserved_bytes=reserved_bytes)
    (device,) = published_devices(card)

    shown = (str(device.capacity["vram"].value), device.attributes["node_total_vram"])
    assert shown == (value, value)
    assert capacity.usable_vram_bytes(card) == quantity.parse(value).ceil() <= vram_bytes


POOL = replace(
    NODE,
    oversubscription=Oversubscription(
        tflops_percent=150, host_memory_percent=50, host_disk_percent=0
    ),
)


def test_tenants_divide_the_virtual_totals_and_by_default_no_physical_capacity() -> None:
    a100, second = published_devices(
        *(replace(card, vram_bytes=40 * GIB) for card in gpus(2)),
        node=POOL,
        host=HostResources(memory_bytes=80 * GIB),
    )

    assert {name: (str(e.value), str(e.default)) for name, e in a100.capacity.items()} == {
        "tflops": ("312", "0"),
        "vram": ("40Gi", "0"),
        "virtual_tflops": ("468", "468"),
        "virtual_vram": ("60Gi", "60Gi"),
    }
    assert list(object_rules.device_errors("", a100.as_api())) == []
    totals = {
        "node_total_tflops": "624",
        "node_virtual_tflops": "936",
        "node_total_vram": "80Gi",
        "node_virtual_vram": "120Gi",
    }
    for each in (a100, second):
        assert each.attributes.items() >= totals.items()


def test_cards_divide_host_memory_and_disk_in_proportion_to_their_own_memory() -> None:
    ratios = Oversubscription(tflops_percent=100, host_memory_percent=50, host_disk_percent=10)
    cards = (gpu(0, vram_bytes=16 * GIB), gpu(1, vram_bytes=48 * GIB))
    host = HostResources(memory_bytes=64 * GIB, disk_bytes=320 * GIB)

    totals = capacity.virtual_totals(cards, ratios, host)

    assert [totals[card.uuid].vram_bytes for card in cards] == [
        32 * GIB,  # 16 + 64 x 1/4
        96 * GIB,  # 48 + 64 x 3/4
    ]


def test_partitions_get_nothing_of_host_memory_and_disk() -> None:
    ratios = Oversubscription(tflops_percent=200, host_memory_percent=50, host_disk_percent=0)
    cards = (gpu(0, vram_bytes=16 * GIB), partition(card=1))

    totals = capacity.virtual_totals(cards, ratios, HostResources(memory_bytes=64 * GIB))

    found = [(totals[card.uuid].vram_bytes, str(totals[card.uuid].tflops)) for card in cards]
    assert found == [(48 * GIB, "624"), (cards[1].vram_bytes, "40444m")]


def test_virtual_compute_is_in_thousandths_because_it_is_a_default() -> None:
    card = gpu(milli_tflops=82_580)
    ratios = Oversubscription(tflops_percent=133, host_memory_percent=0, host_disk_percent=0)

    totals = capacity.virtual_totals([card], ratios, HostResources())

    assert str(totals[card.uuid].tflops) == "109831m"


@given(
    st.lists(st.integers(1, 200 * GIB), min_size=1, max_size=8),
    st.integers(0, 2**42),
    st.integers(0, 2**44),
    st.integers(0, 100),
    st.integers(0, 100),
)
def test_parts_never_exceed_the_whole(
    sizes: list[int], memory: int, disk: int, memory_percent: int, disk_percent: int
) -> None:
    ratios = Oversubscription(
        tflops_percent=100, host_memory_percent=memory_percent, host_disk_percent=disk_percent
    )
    cards = tuple(gpu(index, vram_bytes=size + MIB) for index, size in enumerate(sizes))
    host = HostResources(memory_bytes=memory, disk_bytes=disk)

    totals = capacity.virtual_totals(cards, ratios, host)

    own = sum(card.vram_bytes for card in cards)
    handed_out = sum(total.vram_bytes for total in totals.values())
    assert handed_out <= own + memory * memory_percent // 100 + disk * disk_percent // 100
    for card in cards:
        assert totals[card.uuid].vram_bytes % MIB == 0
        assert totals[card.uuid].vram_bytes >= capacity.usable_vram_bytes(card)


VIRTUAL = node_facts(gpu(vram_bytes=40 * GIB), node=POOL, host=HostResources(memory_bytes=40 * GIB))
"""One 40Gi A100 that its pool hands out as 468 TFLOPS and 60Gi."""
STOPPED = node_facts(gpu(vram_bytes=40 * GIB))
"""The same card after its pool stopped oversubscribing, or before it began."""
(A100,) = STOPPED.devices


def claim(number: int, on: ClaimFacts, *beside: PreparedClaim, **amounts: str) -> PreparedClaim:
    """Return a claim with these amounts of the card, and no physical ones by default."""
    given = {"tflops": "0", "vram": "0", **amounts}
    consumed = {name: quantity.parse(text) for name, text in given.items()}
    share = allocation(A100, number, consumed=consumed)
    return claim_admission(allocated_claim(f"claim-{number}", share), on=on, beside=beside)


def virtual(tflops: str, vram: str) -> dict[str, str]:
    return {"virtual_tflops": tflops, "virtual_vram": vram}


BEFORE_IT = claim(9, STOPPED, tflops="300", vram="30Gi")
FIRST = claim(1, VIRTUAL, **virtual("400", "40Gi"))
LEFT = claim(1, STOPPED, **virtual("78", "30Gi"))
MORE = claim(1, STOPPED, **virtual("468", "60Gi"))


@pytest.mark.parametrize(
    ("on", "amounts", "beside", "error"),
    [
        (
            VIRTUAL,
            virtual("1n", "1Mi"),
            [FIRST, claim(2, VIRTUAL, FIRST, **virtual("68", "20Gi"))],
            "virtual_tflops: found 1n plus 468 in use, expected at most 468",
        ),
        (
            VIRTUAL,
            virtual("1", "1Mi"),
            [claim(1, VIRTUAL, tflops="312", vram="40Gi", **virtual("468", "60Gi"))],
            "virtual_tflops: found 1 plus 468 in use, expected at most 468",
        ),
        (
            VIRTUAL,
            virtual("200", "1Gi"),
            [BEFORE_IT],
            "virtual_tflops: found 200 plus 300 in use, expected at most 468",
        ),
        (VIRTUAL, virtual("168", "30Gi"), [BEFORE_IT], None),
        (
            STOPPED,
            virtual("78", "20Gi"),
            [LEFT],
            "vram: found 20Gi plus 30Gi in use, expected at most 40Gi",
        ),
        (STOPPED, virtual("78", "10Gi"), [LEFT], None),
        (
            STOPPED,
            virtual("1", "1Mi"),
            [MORE],
            "tflops: found 1 plus 312 in use, expected at most 312",
        ),
        (STOPPED, virtual("78", "0"), [], "vram: found 0, expected at least 1Mi"),
    ],
    ids=[
        *("virtual total", "physical card", "share from before", "fits a share from before"),
        *("after it stopped", "fits after it stopped", "more than the card", "amount of 0"),
    ],
)
def test_claims_never_exceed_the_virtual_or_physical_totals(
    on: ClaimFacts, amounts: dict[str, str], beside: list[PreparedClaim], error: str | None
) -> None:
    with pytest.raises(ClaimError, match=error) if error else nullcontext():
        assert claim(3, on, *beside, **amounts).shares


@pytest.mark.parametrize(
    ("granted", "consumed", "limit"),
    [
        (LEFT, {"tflops": "78", "vram": "30Gi"}, Limit(sm_percent=25, vram_bytes=30 * GIB)),
        (MORE, {"tflops": "312", "vram": "40Gi"}, Limit(sm_percent=100, vram_bytes=40 * GIB)),
    ],
)
def test_claim_gets_its_virtual_amounts_of_the_card_after_oversubscription_stopped(
    granted: PreparedClaim, consumed: dict[str, str], limit: Limit
) -> None:
    (kept,) = granted.shares

    assert {name: str(amount) for name, amount in kept.consumed.items()} == consumed
    assert kept.limit == limit


RESERVING = node_facts(gpu(vram_bytes=40 * GIB, reserved_bytes=450 * MIB))
OF_ALL = claim(1, STOPPED, tflops="312", vram="40Gi")


def test_record_of_the_total_before_memory_was_reserved_stays() -> None:
    today = lending.with_totals(OF_ALL, RESERVING.devices)

    (kept,) = lending.divided([today], RESERVING.rules)

    assert kept.shares[0].limit == OF_ALL.shares[0].limit


@pytest.mark.parametrize(
    ("vram", "beside", "error"),
    [
        ("1Mi", OF_ALL, "vram: found 1Mi plus 40Gi in use, expected at most 40510Mi"),
        (
            "1Gi",
            claim(2, RESERVING, tflops="1", vram="39Gi"),
            "vram: found 1Gi plus 39Gi in use, expected at most 40510Mi",
        ),
    ],
)
def test_new_claims_have_to_fit_what_is_not_reserved(
    vram: str, beside: PreparedClaim, error: str
) -> None:
    with pytest.raises(ClaimError, match=error):
        claim(3, RESERVING, beside, vram=vram)
