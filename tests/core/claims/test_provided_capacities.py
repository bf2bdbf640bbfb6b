"""Capacities of other packages: counted at admission, and never in the way otherwise."""

from dataclasses import replace

import pytest

from tensorfusion_dra.core.claims import lending
from tensorfusion_dra.core.claims.admit import ClaimFacts
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.devices.capacity import Capacity, consumable
from tensorfusion_dra.core.errors import ClaimError
from tensorfusion_dra.core.kubernetes import quantity
from tests.support.builders.allocations import allocation
from tests.support.builders.claims import allocated_claim, claim_admission
from tests.support.builders.gpus import gpu
from tests.support.builders.nodes import node_facts

SLOTS = "example.com/slots"
PLAIN = node_facts(gpu())
(CARD,) = PLAIN.devices


def with_slots(capacity: Capacity) -> ClaimFacts:
    device = PLAIN.devices[CARD]
    extended = replace(device, capacity={**device.capacity, SLOTS: capacity})
    return replace(PLAIN, devices={CARD: extended})


def record(
    name: str, number: int, slots: str | None, *, on: ClaimFacts, beside: tuple[PreparedClaim, ...]
) -> PreparedClaim:
    amounts = {"tflops": "10", "vram": "1Gi"} | ({} if slots is None else {SLOTS: slots})
    consumed = {key: quantity.parse(text) for key, text in amounts.items()}
    claim = allocated_claim(name, allocation(CARD, number, consumed=consumed))
    return claim_admission(claim, on=on, beside=beside)


def test_amounts_of_a_provided_capacity_are_recorded_and_add_up() -> None:
    node = with_slots(consumable(4))
    first = record("a", 1, "3", on=node, beside=())

    second = record("b", 2, "1", on=node, beside=(first,))

    assert first.shares[0].consumed[SLOTS] == quantity.parse("3")
    with pytest.raises(ClaimError, match=r"example.com/slots: found 1 plus 4 in use"):
        record("c", 3, "1", on=node, beside=(first, second))


def test_claim_from_before_the_capacity_was_published_consumes_none_of_it() -> None:
    old = record("a", 1, None, on=PLAIN, beside=())
    node = with_slots(consumable(4))

    late = record("b", 2, None, on=node, beside=(old,))
    full = record("c", 3, "4", on=node, beside=(old, late))

    assert late.shares[0].consumed[SLOTS] == quantity.parse("0")
    assert full.shares[0].consumed[SLOTS] == quantity.parse("4")


def test_claim_that_consumes_none_fits_after_the_provider_lowered_the_capacity() -> None:
    first = record("a", 1, "4", on=with_slots(consumable(4)), beside=())
    lowered = with_slots(consumable(2))

    second = record("b", 2, None, on=lowered, beside=(first,))

    assert second.shares[0].consumed[SLOTS] == quantity.parse("0")
    with pytest.raises(ClaimError, match="slots"):
        record("c", 3, "1", on=lowered, beside=(first,))


def test_record_fits_beside_claims_after_the_provider_is_gone() -> None:
    first = record("a", 1, "4", on=with_slots(consumable(4)), beside=())

    second = record("b", 2, "4", on=PLAIN, beside=(first,))

    assert SLOTS not in second.shares[0].consumed
    assert lending.redistribute_limits([first, second], PLAIN.rules) == [
        first,
        second,
    ]


def test_capacity_from_text_always_has_a_policy() -> None:
    """Without a default Kubernetes would count the whole value of a claim that names none."""
    assert consumable("4Gi", step="1Gi", maximum="2Gi").as_api() == {
        "value": "4Gi",
        "requestPolicy": {"default": "0", "validRange": {"min": "0", "max": "2Gi", "step": "1Gi"}},
    }
