"""Readings beside an open set of events: what they find, and when the set gives way."""

from tests.discovery.nvml.nvml_machine import Machine, answers, card, uuid
from tests.discovery.nvml.test_nvml_trouble import uuids


def bind(machine: Machine, *indices: int) -> None:
    """The kernel driver has these cards."""
    driver = machine.folder / "sys" / "bus" / "pci" / "drivers" / "nvidia"
    driver.mkdir(parents=True, exist_ok=True)
    for index in indices:
        (driver / f"0000:{0x3A + index:02x}:00.0").touch()


def bound(machine: Machine, index: int) -> list[str]:
    """A step that binds another card."""
    driver = machine.folder / "sys" / "bus" / "pci" / "drivers" / "nvidia"
    return ["write", f"{driver}/0000:{0x3A + index:02x}:00.0", ""]


def test_while_events_are_waited_for_nvml_counts_no_new_card(machine: Machine) -> None:
    """Not what is wanted, but what makes the next test worth something."""
    bind(machine, 0)
    _, _, _, again = machine.run(
        answers(card(0)),
        ["read"],
        ["events", uuid(0)],
        machine.rewrite(answers(card(0), card(1))),
        ["read"],
    )

    assert uuids(again) == [uuid(0)]


def test_a_card_that_the_kernel_driver_got_is_found_at_once(machine: Machine) -> None:
    bind(machine, 0)
    _, _, _, _, again, events = machine.run(
        answers(card(0)),
        ["read"],
        ["events", uuid(0)],
        machine.rewrite(answers(card(0), card(1))),
        bound(machine, 1),
        ["read"],
        ["reopened"],
    )

    assert uuids(again) == [uuid(0), uuid(1)]
    assert events is True


def test_beside_a_card_that_is_not_watched_every_reading_is_fresh(machine: Machine) -> None:
    _, _, _, again = machine.run(
        answers(card(0), card(1)),
        ["read"],
        ["events", uuid(0)],
        machine.rewrite(answers(card(0), card(1), card(2))),
        ["read"],
    )

    assert uuids(again) == [uuid(0), uuid(1), uuid(2)]


def test_a_lost_card_is_told_with_what_it_still_says(machine: Machine) -> None:
    (found,) = machine.run(answers(card(0, memory="!15"), card(1, handle="!15")), ["read"])

    assert found["gpus"] == []
    assert [(lost["uuid"], lost["pci_bus_id"]) for lost in found["lost"]] == [
        (uuid(0), "0000:3a:00.0"),
        (None, None),
    ]


def test_a_driver_that_does_not_know_recovery_actions_is_not_taken_for_one_that_needs_none(
    machine: Machine,
) -> None:
    (found,) = machine.run(
        answers(card(0), card(1, recovery="!3"), card(2, recovery="4")), ["read"]
    )

    assert found["recovery"] == {uuid(0): 0, uuid(2): 4}
