"""Capacities of a card: their policies, oversubscription, and memory that the driver reserves."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorfusion_dra.core.claims import lending
from tensorfusion_dra.core.claims.prepared import Limit, PreparedClaim
from tensorfusion_dra.core.devices import capacity
from tensorfusion_dra.core.devices.capacity import Oversubscription
from tensorfusion_dra.core.devices.device import Device
from tensorfusion_dra.core.devices.gpu import Gpu, HostResources
from tensorfusion_dra.core.errors import ClaimError
from tensorfusion_dra.core.kubernetes import device_rules, quantity
from tensorfusion_dra.core.kubernetes.quantity import GIB, MIB
from tests.support.builders.allocations import allocation
from tests.support.builders.claims import allocated_claim, claim_admission, claim_record
from tests.support.builders.devices import NODE, published_devices
from tests.support.builders.gpus import gpu
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
    ("vram_bytes", "value"),
    [
        (80 * GIB, "80Gi"),
        (80 * GIB - 1, "81919Mi"),
        (85_520_809_984, "81559Mi"),
        (16 * GIB + MIB // 2, "16Gi"),
    ],
)
def test_memory_is_rounded_down_to_the_step_of_its_shares(vram_bytes: int, value: str) -> None:
    card = gpu(vram_bytes=vram_bytes)

    offered = capacity.of_card(card, None)["vram"]

    assert str(offered.value) == value
    assert capacity.usable_vram_bytes(card) == quantity.parse(value).ceil() <= vram_bytes


HALF_MORE = Oversubscription(tflops_percent=150, host_memory_percent=50, host_disk_percent=0)
POOL = replace(NODE, oversubscription=HALF_MORE)


def oversubscribed_devices(
    *cards: Gpu, host: HostResources, ratios: Oversubscription = HALF_MORE
) -> tuple[Device, ...]:
    return published_devices(*cards, node=replace(NODE, oversubscription=ratios), host=host)


def test_tenants_divide_the_virtual_totals_and_by_default_no_physical_capacity() -> None:
    (a100,) = oversubscribed_devices(
        gpu(vram_bytes=40 * GIB), host=HostResources(memory_bytes=40 * GIB)
    )

    found = a100.capacity.items()
    assert {name: (str(entry.value), str(entry.default)) for name, entry in found} == {
        "tflops": ("312", "0"),
        "vram": ("40Gi", "0"),
        "virtual_tflops": ("468", "468"),
        "virtual_vram": ("60Gi", "60Gi"),
    }
    assert device_rules.violations(a100.as_api()) == ()


def test_cards_divide_host_memory_and_disk_in_proportion_to_their_own_memory() -> None:
    ratios = Oversubscription(tflops_percent=100, host_memory_percent=50, host_disk_percent=10)
    small, large = oversubscribed_devices(
        gpu(0, vram_bytes=16 * GIB),
        gpu(1, vram_bytes=48 * GIB),
        host=HostResources(memory_bytes=64 * GIB, disk_bytes=320 * GIB),
        ratios=ratios,
    )

    assert str(small.capacity["virtual_vram"].value) == "32Gi"  # 16 + 64 x 1/4
    assert str(large.capacity["virtual_vram"].value) == "96Gi"  # 48 + 64 x 3/4


def test_every_device_has_the_nodes_totals() -> None:
    (first, second) = oversubscribed_devices(
        gpu(0, vram_bytes=40 * GIB),
        gpu(1, vram_bytes=40 * GIB),
        host=HostResources(memory_bytes=80 * GIB),
    )

    totals = {
        "node_total_tflops": "624",
        "node_virtual_tflops": "936",
        "node_total_vram": "80Gi",
        "node_virtual_vram": "120Gi",
    }
    for one in (first, second):
        assert one.attributes.items() >= totals.items()


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


AMOUNTS = {"tflops": "0", "vram": "0"}


def oversubscribed_claim(
    name: str, virtual: tuple[str, str] | None, beside: Sequence[PreparedClaim] = ()
) -> PreparedClaim:
    """Return a claim on one 40Gi A100 at 1.5x; None requests the physical capacities."""
    node = node_facts(
        gpu(vram_bytes=40 * GIB), node=POOL, host=HostResources(memory_bytes=40 * GIB)
    )
    (a100,) = node.devices
    if virtual is None:
        consumed = {"tflops": "312", "vram": "40Gi", "virtual_tflops": "468"}
        amounts = {**consumed, "virtual_vram": "60Gi"}
    else:
        amounts = {**AMOUNTS, "virtual_tflops": virtual[0], "virtual_vram": virtual[1]}
    share = replace(
        allocation(a100, int(name)),
        consumed={key: quantity.parse(text) for key, text in amounts.items()},
    )
    return claim_admission(allocated_claim(f"claim-{name}", share), on=node, beside=beside)


def claim_after_oversubscription(
    name: str, tflops: str, vram: str, beside: Sequence[PreparedClaim] = ()
) -> PreparedClaim:
    """Return a claim with virtual amounts, prepared after its pool stopped oversubscribing."""
    node = node_facts(gpu(vram_bytes=40 * GIB))
    (card,) = node.devices
    amounts = {"tflops": "0", "vram": "0", "virtual_tflops": tflops, "virtual_vram": vram}
    consumed = {capacity: quantity.parse(text) for capacity, text in amounts.items()}
    wanted = allocated_claim(name, allocation(card, ord(name), consumed=consumed))
    return claim_admission(wanted, on=node, beside=beside)


PHYSICAL = node_facts(gpu(vram_bytes=40 * GIB))
(A100,) = PHYSICAL.devices
BEFORE_IT = claim_record("old", allocation(A100, 9, tflops="300", vram="30Gi"), on=PHYSICAL)
FIRST = oversubscribed_claim("1", ("400", "40Gi"))
SECOND = oversubscribed_claim("2", ("68", "20Gi"), [FIRST])
WHOLE = oversubscribed_claim("1", None)
LEFT = claim_after_oversubscription("a", "78", "30Gi")
MORE = claim_after_oversubscription("a", "468", "60Gi")


@pytest.mark.parametrize(
    ("admitted", "wanted", "beside", "error"),
    [
        (
            oversubscribed_claim,
            ("3", ("1n", "1Mi")),
            [FIRST, SECOND],
            "virtual_tflops: found 1n plus 468 in use, expected at most 468",
        ),
        (
            oversubscribed_claim,
            ("2", ("1", "1Mi")),
            [WHOLE],
            "virtual_tflops: found 1 plus 468 in use, expected at most 468",
        ),
        (
            oversubscribed_claim,
            ("1", ("200", "1Gi")),
            [BEFORE_IT],
            "virtual_tflops: found 200 plus 300 in use, expected at most 468",
        ),
        (oversubscribed_claim, ("2", ("168", "30Gi")), [BEFORE_IT], None),
        (
            claim_after_oversubscription,
            ("b", "78", "20Gi"),
            [LEFT],
            "vram: found 20Gi plus 30Gi in use, expected at most 40Gi",
        ),
        (claim_after_oversubscription, ("c", "78", "10Gi"), [LEFT], None),
        (
            claim_after_oversubscription,
            ("b", "1", "1Mi"),
            [MORE],
            "tflops: found 1 plus 312 in use, expected at most 312",
        ),
        (
            claim_after_oversubscription,
            ("a", "78", "0"),
            [],
            "vram: found 0, expected at least 1Mi",
        ),
    ],
    ids=[
        *("virtual total", "physical card", "share from before", "fits a share from before"),
        *("after it stopped", "fits after it stopped", "more than the card", "amount of 0"),
    ],
)
def test_claims_never_exceed_the_virtual_or_physical_totals(
    admitted: Callable[..., PreparedClaim],
    wanted: tuple[Any, ...],
    beside: list[PreparedClaim],
    error: str | None,
) -> None:
    with pytest.raises(ClaimError, match=error) if error else nullcontext():
        assert admitted(*wanted, beside).shares


@pytest.mark.parametrize(
    ("claim", "consumed", "limit"),
    [
        (LEFT, {"tflops": "78", "vram": "30Gi"}, Limit(sm_percent=25, vram_bytes=30 * GIB)),
        (MORE, {"tflops": "312", "vram": "40Gi"}, Limit(sm_percent=100, vram_bytes=40 * GIB)),
    ],
)
def test_claim_gets_its_virtual_amounts_of_the_card_after_oversubscription_stopped(
    claim: PreparedClaim, consumed: dict[str, str], limit: Limit
) -> None:
    (kept,) = claim.shares

    assert {name: str(amount) for name, amount in kept.consumed.items()} == consumed
    assert kept.limit == limit


T4 = gpu(vram_bytes=15360 * MIB, milli_tflops=65_000)
RESERVING = replace(T4, reserved_bytes=450 * MIB - 1)
BEFORE, NOW = node_facts(T4), node_facts(RESERVING)
(CARD,) = NOW.devices


def test_capacity_is_the_total_less_the_reserved_memory_in_whole_mib() -> None:
    (device,) = published_devices(RESERVING)

    assert str(device.capacity["vram"].value) == "14910Mi"
    assert device.attributes["node_total_vram"] == "14910Mi"


def test_record_of_the_old_total_stays_and_new_claims_have_to_fit_the_new_one() -> None:
    whole = claim_record("a", allocation(CARD, 1, tflops="65", vram="15Gi"), on=BEFORE)

    today = lending.with_totals(whole, NOW.devices)
    (kept,) = lending.redistribute_limits([today], NOW.rules)

    assert kept.shares[0].limit == whole.shares[0].limit
    with pytest.raises(ClaimError, match="in use, expected at most 14910Mi"):
        claim_admission(
            allocated_claim("b", allocation(CARD, 2, tflops="0", vram="1Mi")),
            on=NOW,
            beside=[whole],
        )
    half = claim_record("c", allocation(CARD, 3, tflops="1", vram="14Gi"), on=NOW)
    with pytest.raises(
        ClaimError, match="vram: found 1Gi plus 14Gi in use, expected at most 14910Mi"
    ):
        claim_admission(
            allocated_claim("d", allocation(CARD, 4, tflops="1", vram="1Gi")), on=NOW, beside=[half]
        )
