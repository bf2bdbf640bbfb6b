"""Readings while an event set is open: the cards they find, and when the set is closed."""

from tests.discovery.nvml.nvml_machine import Machine, answers, card, uuid
from tests.discovery.nvml.test_nvml_trouble import uuids


def bind(machine: Machine, *indices: int) -> None:
    """Bind these cards to the kernel driver."""
    driver = machine.folder / "sys" / "bus" / "pci" / "drivers" / "nvidia"
    driver.mkdir(parents=True, exist_ok=True)
    for index in indices:
        (driver / f"0000:{0x3A + index:02x}:00.0").touch()


def bind_step(machine: Machine, index: int) -> list[str]:
    """Return a step that binds another card."""
    driver = machine.folder / "sys" / "bus" / "pci" / "drivers" / "nvidia"
    return ["write", f"{driver}/0000:{0x3A + index:02x}:00.0", ""]


def test_nvml_finds_no_new_card_while_an_event_set_is_open(machine: Machine) -> None:
    """This is a limitation of NVML; it shows that the next test is not trivial."""
    bind(machine, 0)
    _, _, _, again = machine.run(
        answers(card(0)),
        ["read"],
        ["events", uuid(0)],
        machine.rewrite(answers(card(0), card(1))),
        ["read"],
    )

    assert uuids(again) == [uuid(0)]


def test_card_newly_bound_to_the_kernel_driver_is_found_at_once(machine: Machine) -> None:
    bind(machine, 0)
    _, _, _, _, again, events = machine.run(
        answers(card(0)),
        ["read"],
        ["events", uuid(0)],
        machine.rewrite(answers(card(0), card(1))),
        bind_step(machine, 1),
        ["read"],
        ["reopened"],
    )

    assert uuids(again) == [uuid(0), uuid(1)]
    assert events is True


def test_every_reading_finds_new_cards_while_a_card_is_not_watched(machine: Machine) -> None:
    _, _, _, again = machine.run(
        answers(card(0), card(1)),
        ["read"],
        ["events", uuid(0)],
        machine.rewrite(answers(card(0), card(1), card(2))),
        ["read"],
    )

    assert uuids(again) == [uuid(0), uuid(1), uuid(2)]


def test_lost_card_is_reported_with_the_fields_that_it_still_answers(machine: Machine) -> None:
    (found,) = machine.run(answers(card(0, memory="!15"), card(1, handle="!15")), ["read"])

    assert found["gpus"] == []
    assert [(lost["uuid"], lost["pci_bus_id"]) for lost in found["lost"]] == [
        (uuid(0), "0000:3a:00.0"),
        (None, None),
    ]


def test_unsupported_recovery_action_is_not_reported_as_none(
    machine: Machine,
) -> None:
    (found,) = machine.run(
        answers(card(0), card(1, recovery="!3"), card(2, recovery="4")), ["read"]
    )

    assert found["recovery"] == {uuid(0): 0, uuid(2): 4}
