"""Reasons for which slices are written, as they are counted."""

from dataclasses import replace

import pytest

from tensorfusion_dra.core.devices.oversubscription import Oversubscription
from tensorfusion_dra.core.devices.slices import Slice, WriteReason
from tensorfusion_dra.core.errors import RetryableError
from tests.driver.test_publish import XID_79, Setup
from tests.support.builders.devices import NODE
from tests.support.ports import SlicesInMemory
from tests.support.prepared_node import simulated_inventory

OVERSUBSCRIBED = Oversubscription(tflops_percent=150, host_memory_percent=0, host_disk_percent=0)


class UnreliableSlices(SlicesInMemory):
    """Slices of an API server that does not answer one write, if `refuses` is set."""

    refuses = False

    def replace(self, item: Slice, *, trial: bool = False) -> Slice:
        if self.refuses:
            self.refuses = False
            raise RetryableError("no answer")
        return super().replace(item, trial=trial)


def counted(setup: Setup) -> dict[WriteReason, int]:
    """Return the reasons that were counted."""
    return {
        reason: number for reason, number in setup.publisher.state.view().writes.items() if number
    }


def published(slices: SlicesInMemory | None = None) -> Setup:
    """Return a publisher that has found its slices as it wants them."""
    before = Setup(slices, simulated_inventory("1xT4"))
    before.publish()
    after = Setup(before.slices, simulated_inventory("1xT4"))
    after.publish()
    assert counted(after) == {}
    return after


def test_every_reason_is_counted_from_the_start() -> None:
    assert Setup().publisher.state.view().writes == dict.fromkeys(WriteReason, 0)


def test_new_card() -> None:
    setup = published()
    setup.discovery.inventory = simulated_inventory("2xT4")

    setup.publish()

    assert counted(setup) == {WriteReason.DEVICES: 1}


@pytest.mark.parametrize("taint_effect", ["NoSchedule", ""])
def test_unhealthy_card(taint_effect: str) -> None:
    setup = published()
    setup.catalog._taint_effect = taint_effect
    setup.catalog.note_event(XID_79)

    setup.publish()

    assert counted(setup) == {WriteReason.HEALTH: 1}


def test_other_capacity() -> None:
    setup = published()
    setup.catalog.set_node(replace(NODE, oversubscription=OVERSUBSCRIBED))

    setup.publish()

    assert counted(setup) == {WriteReason.VALUES: 1}


def test_repair() -> None:
    setup = published()
    setup.slices.items.clear()

    setup.publish()

    assert counted(setup) == {WriteReason.REPAIR: 1}


def test_write_that_failed_is_counted_once_it_succeeds() -> None:
    slices = UnreliableSlices()
    setup = published(slices)
    setup.catalog.note_event(XID_79)
    slices.refuses = True

    with pytest.raises(RetryableError):
        setup.publish()
    assert counted(setup) == {}
    setup.publish()

    assert counted(setup) == {WriteReason.RETRY: 1}


def test_reason_after_a_retry_is_a_new_one() -> None:
    slices = UnreliableSlices()
    setup = published(slices)
    setup.catalog.note_event(XID_79)
    slices.refuses = True
    with pytest.raises(RetryableError):
        setup.publish()
    setup.publish()
    setup.discovery.inventory = simulated_inventory("2xT4")

    setup.publish()

    assert counted(setup) == {WriteReason.RETRY: 1, WriteReason.DEVICES: 1}
