"""Slices at an API server that drops fields because a feature gate is off."""

from collections.abc import Sequence

from tensorfusion_dra.core.devices import slices
from tensorfusion_dra.core.devices.slices import Slice
from tensorfusion_dra.core.kubernetes import slice_normal_form
from tensorfusion_dra.core.kubernetes.slice_normal_form import (
    GATE_CONSUMABLE_CAPACITY,
    GATE_DEVICE_TAINTS,
)
from tests.support.builders.slices import NAME, stored_slices, wanted_slices
from tests.support.slice_store import writes_by_verb

CONSUMABLE_OFF = frozenset({GATE_CONSUMABLE_CAPACITY})
TAINTS_OFF = frozenset({GATE_DEVICE_TAINTS})


def dropping(gates: frozenset[str], items: Sequence[Slice]) -> list[Slice]:
    """Return the slices as an API server with these gates off stores them."""
    return [
        {
            **item,
            "spec": {
                **item["spec"],
                "devices": slice_normal_form.without(item["spec"]["devices"], gates),
            },
        }
        for item in items
    ]


def test_dropped_fields_count_as_a_difference_until_the_gate_is_known() -> None:
    kept = dropping(CONSUMABLE_OFF, stored_slices())

    assert writes_by_verb(slices.plan(wanted_slices(), kept)) == {"update": [NAME]}
    assert not slices.plan(wanted_slices(), kept, dropped=CONSUMABLE_OFF)
    assert slices.plan(wanted_slices(), kept, dropped=TAINTS_OFF)


def test_with_a_gate_off_other_changes_are_still_written() -> None:
    kept = dropping(CONSUMABLE_OFF, stored_slices())

    plan = slices.plan(wanted_slices(3), kept, dropped=CONSUMABLE_OFF)

    assert writes_by_verb(plan) == {"update": [NAME]}


def test_gate_that_is_on_again_causes_no_write_while_it_counts_as_off() -> None:
    assert not slices.plan(wanted_slices(), stored_slices(), dropped=CONSUMABLE_OFF)


def test_dropped_fields_identify_their_gates() -> None:
    (item,) = wanted_slices()
    devices = [{**device, "taints": [{"key": "a"}]} for device in item["spec"]["devices"]]
    tainted = {**item, "spec": {**item["spec"], "devices": devices}}

    for gates in (CONSUMABLE_OFF, TAINTS_OFF, CONSUMABLE_OFF | TAINTS_OFF):
        assert slices.dropped_gates(tainted, dropping(gates, [tainted])[0]) == gates


def test_complete_slice_has_no_dropped_gates() -> None:
    for item in (*wanted_slices(0), *wanted_slices(2)):
        assert slices.dropped_gates(item, item) == frozenset()


def test_difference_that_no_gate_explains_has_no_dropped_gates() -> None:
    (item,) = wanted_slices(2)
    (other,) = wanted_slices(1)

    assert slices.dropped_gates(item, other) == frozenset()
