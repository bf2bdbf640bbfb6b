"""Cards that are remembered, and those of them that are published."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from tensorfusion_dra.core.devices import health
from tensorfusion_dra.core.devices.gpu import Gpu, Inventory, LeftOut, LostCard
from tensorfusion_dra.core.devices.health import (
    HealthProblem,
    HealthRules,
    KnownCards,
    Moment,
    ProblemKind,
    PublishedCards,
)
from tests.support.builders.gpus import gpu, gpus

NOW = Moment(1000.0, datetime(2026, 3, 1, tzinfo=UTC))
RULES = HealthRules(quiet_seconds=0, good_readings=1, failed_readings=1)
A, B, C = gpus(3)
XID = HealthProblem(kind=ProblemKind.XID, reason="xid-79", text="XID 79")


def known(*gpus: Gpu) -> KnownCards:
    return after_reading(KnownCards(), Inventory(gpus=gpus))


def after_reading(
    before: KnownCards, inventory: Inventory, rules: HealthRules = RULES
) -> KnownCards:
    no_source: dict[str, tuple[HealthProblem, ...]] = {gpu.uuid: () for gpu in inventory.gpus}
    return health.after_reading(before, inventory, NOW, rules, reported=no_source)


def read(before: KnownCards, *gpus: Gpu, **more: Any) -> tuple[KnownCards, Inventory]:
    inventory = Inventory(gpus=gpus, **more)
    return after_reading(before, inventory), inventory


def seen(
    before: KnownCards, *gpus: Gpu, claimed: tuple[Gpu, ...] = (), **more: Any
) -> PublishedCards:
    after, inventory = read(before, *gpus, **more)
    return health.published(after, inventory, {name(each) for each in claimed})


def name(card: Gpu) -> str:
    return card.uuid.lower()


def reason(cards: PublishedCards, card: Gpu) -> str:
    return cards.unhealthy[name(card)].worst.reason


def test_present_card_is_published_unchanged() -> None:
    shown = seen(known(A, B), A, B)

    assert shown == PublishedCards(
        inventory=Inventory(gpus=(A, B)), unhealthy={}, absent=frozenset()
    )


def test_vanished_card_without_claims_is_sick_and_not_published() -> None:
    shown = seen(known(A, B), B)

    assert shown.inventory.gpus == (B,)
    assert reason(shown, A) == "vanished"
    assert shown.absent == {name(A)}


def test_vanished_card_with_claims_is_published_unchanged_at_its_position() -> None:
    shown = seen(known(A, B, C), A, replace(C, index=1), claimed=(B,))

    assert [card.uuid for card in shown.inventory.gpus] == [A.uuid, B.uuid, C.uuid]
    assert shown.inventory.gpus[1] == B
    assert shown.absent == {name(B)}


@pytest.mark.parametrize(
    "lost",
    [
        LostCard(subject=A.uuid, uuid=A.uuid, pci_bus_id=None, text="handle: LOST"),
        LostCard(subject="GPU 0", uuid=None, pci_bus_id=A.pci_bus_id, text="handle: LOST"),
        LostCard(subject="GPU 0", uuid=None, pci_bus_id=None, text="handle: LOST"),
    ],
)
def test_lost_card_is_matched_by_uuid_bus_id_or_elimination_and_counted_once(
    lost: LostCard,
) -> None:
    left_out = (LeftOut(subject=lost.subject, reason="lost"),)

    shown = seen(known(A, B), B, claimed=(A,), lost=(lost,), left_out=left_out)

    assert reason(shown, A) == "lost"
    assert shown.unhealthy[name(A)].worst.text == "the GPU is lost: handle: LOST"
    assert shown.inventory.gpus == (A, B)
    assert shown.inventory.left_out == ()


def test_lost_card_without_claims_stays_left_out() -> None:
    lost = LostCard(subject=A.uuid, uuid=A.uuid, pci_bus_id=None, text="LOST")
    left_out = (LeftOut(subject=A.uuid, reason="lost"),)

    shown = seen(known(A, B), B, lost=(lost,), left_out=left_out)

    assert (shown.inventory.gpus, shown.inventory.left_out) == ((B,), left_out)


def test_card_that_became_unusable_is_published_with_the_reason() -> None:
    left_out = (LeftOut(subject=A.uuid, reason="mig_mode: found MIG on"),)

    shown = seen(known(A), left_out=left_out, claimed=(A,))

    assert reason(shown, A) == "unusable"
    assert shown.unhealthy[name(A)].worst.text.endswith("mig_mode: found MIG on")
    assert (shown.inventory.gpus, shown.inventory.left_out) == ((A,), ())


def test_returning_card_is_published_once_it_is_healthy() -> None:
    patient = replace(RULES, good_readings=2)
    gone, _ = read(known(A, B), B)
    inventory = Inventory(gpus=(A, B))

    back = after_reading(gone, inventory, patient)
    well = after_reading(back, inventory, patient)

    first = health.published(back, inventory, ())
    assert first.inventory.gpus == (B,)
    assert [each.subject for each in first.inventory.left_out] == [A.uuid]
    assert health.published(back, inventory, {name(A)}).inventory.gpus == (A, B)
    assert health.published(well, inventory, ()).inventory == inventory


@pytest.mark.parametrize(("recovery", "is_sick"), [({}, False), ({0: 0}, False), ({0: 1}, True)])
def test_requested_recovery_action_is_trouble(recovery: dict[int, int], is_sick: bool) -> None:
    actions = {(A, B)[index].uuid: action for index, action in recovery.items()}

    shown = seen(known(A, B), A, B, recovery=actions)

    assert bool(shown.unhealthy) is is_sick
    assert shown.inventory.gpus == (A, B)
    assert shown.absent == frozenset()


def test_new_driver_version_clears_reported_errors() -> None:
    struck = health.after_report(known(A), A.uuid, XID, NOW)

    same, _ = read(struck, A)
    other, _ = read(struck, replace(A, driver_version="580.95.05"))

    assert (bool(same.unhealthy()), bool(other.unhealthy())) == (True, False)


def test_failed_reading_is_trouble_of_all_cards() -> None:
    hung = HealthProblem(kind=ProblemKind.UNREADABLE, reason="nvml-hung", text="hung")

    after = health.after_failure(known(A, B), hung, NOW, RULES)

    assert {sick.worst.reason for sick in after.unhealthy().values()} == {"nvml-hung"}
    assert after.absent == frozenset()


def record(before: KnownCards) -> Any:
    return health.as_json(before, boot_id="boot-1")


def restored(kept: Any, *, boot_id: str = "boot-1", claimed: tuple[Gpu, ...] = ()) -> KnownCards:
    names = {name(card) for card in claimed}
    return health.from_json(kept, boot_id=boot_id, claimed=names, now=NOW)


def test_restart_keeps_cards_and_their_sickness() -> None:
    card = gpu(5, simulated=True, minor=None, pci_bus_id=None)
    before = health.after_report(known(A, card), A.uuid, XID, NOW)

    after = restored(record(before))

    assert (after.cards, after.unhealthy()) == (before.cards, before.unhealthy())
    assert after.health[A.uuid].reported == (XID,)
    assert record(after) == record(before)


def test_reboot_heals_every_card_and_keeps_those_with_claims() -> None:
    before = health.after_report(known(A, B), A.uuid, XID, NOW)

    after = restored(record(before), boot_id="boot-2", claimed=(A,))

    assert (set(after.cards), dict(after.health)) == ({A.uuid}, {})


def test_restart_forgets_an_absent_card_without_claims() -> None:
    gone, _ = read(known(A, B, C), C)

    after = restored(record(gone), claimed=(A,))

    assert set(after.cards) == {A.uuid, C.uuid}
    assert set(after.unhealthy()) == {A.uuid}


@pytest.mark.parametrize(
    "damage",
    [
        {"version": 2},
        {"cards": [{"uuid": "GPU-1"}]},
        {"cards": 7},
        {"sick": {"GPU-1": {"since": "yesterday"}}},
        {"absent": None},
    ],
)
def test_malformed_record_is_refused(damage: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"found|Invalid"):
        restored({**record(known(A)), **damage})
