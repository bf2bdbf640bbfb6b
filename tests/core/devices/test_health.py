"""Health of cards: unhealthy at once, healthy after a while; which are remembered and published."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorfusion_dra.core.devices import health, xids
from tensorfusion_dra.core.devices.gpu import Gpu, Inventory, LeftOut, LostCard
from tensorfusion_dra.core.devices.health import (
    HEALTHY,
    CardEvent,
    CardHealth,
    CardReading,
    EventKind,
    HealthProblem,
    HealthRules,
    KnownCards,
    Moment,
    ProblemKind,
    Unhealthy,
)
from tensorfusion_dra.core.devices.xids import XidRules
from tests.support.builders.gpus import gpu, gpus
from tests.support.tally import examples

RULES = HealthRules(failed_readings=2, good_readings=3, quiet_seconds=100)
XID = HealthProblem(kind=ProblemKind.XID, reason="xid-79", text="XID 79")
LOST = HealthProblem(kind=ProblemKind.LOST, reason="lost", text="lost")
HUNG = HealthProblem(kind=ProblemKind.UNREADABLE, reason="nvml-hung", text="hung")
RESET = HealthProblem(kind=ProblemKind.RECOVERY, reason="gpu-reset-required", text="reset")
GOOD = CardReading(needs_nothing=True)
SILENT = CardReading()  # from a driver that reports nothing about recovery


def moment(seconds: float) -> Moment:
    return Moment(seconds, datetime(2026, 3, 1, tzinfo=UTC) + timedelta(seconds=seconds))


def bad(trouble: HealthProblem) -> CardReading:
    return CardReading(problems=(trouble,))


def after(
    *findings: CardReading,
    every: float = 50,
    start: CardHealth = HEALTHY,
    rules: HealthRules = RULES,
) -> CardHealth:
    """Return the health after these readings, the first at 0 s."""
    for number, finding in enumerate(findings):
        start = health.with_reading(start, finding, moment(number * every), rules)
    return start


@pytest.mark.parametrize("trouble", [LOST, RESET])
def test_trouble_found_by_a_reading_makes_the_card_sick_at_once(trouble: HealthProblem) -> None:
    assert after(bad(trouble)).unhealthy == Unhealthy(worst=trouble, since=moment(0).at)


@pytest.mark.parametrize(
    ("findings", "every", "is_sick"),
    [
        ([GOOD, GOOD], 200, True),  # quiet for long enough, but too few good readings
        ([GOOD, GOOD, GOOD], 200, False),
        ([GOOD, GOOD, GOOD, GOOD], 20, True),  # enough good readings, but too soon
        ([GOOD] * 6, 20, False),
        ([GOOD, GOOD, bad(LOST), GOOD, GOOD], 200, True),
    ],
)
def test_card_recovers_after_quiet_time_and_good_readings(
    findings: Sequence[CardReading], every: float, is_sick: bool
) -> None:
    found = after(bad(RESET), *findings, every=every)

    assert (found.unhealthy is not None) is is_sick


@pytest.mark.parametrize(
    ("findings", "clear_seconds", "is_cleared"),
    [
        # By the driver, by a reset, or by being away and back.
        ([GOOD, *[SILENT] * 4], 0, True),
        ([CardReading(was_reset=True), *[SILENT] * 4], 0, True),
        ([bad(LOST), *[SILENT] * 4], 0, True),
        ([SILENT] * 99, 0, False),
        # By time, if configured.
        ([SILENT] * 8, 400, False),
        ([SILENT] * 11, 400, True),
        ([SILENT] * 4, 0.5, True),
    ],
)
def test_reported_error_is_cleared_by_the_driver_by_a_reset_or_by_time(
    findings: Sequence[CardReading], clear_seconds: float, *, is_cleared: bool
) -> None:
    struck = health.with_report(HEALTHY, XID, moment(0))
    rules = replace(RULES, xid_clear_seconds=clear_seconds)

    assert (after(*findings, start=struck, rules=rules) == HEALTHY) is is_cleared


def test_two_failed_readings_in_a_row_make_the_card_sick_and_one_does_not() -> None:
    once = health.with_failed_reading(HEALTHY, HUNG, moment(0), RULES)
    again = health.with_failed_reading(once, HUNG, moment(1), RULES)
    apart = health.with_failed_reading(
        health.with_reading(once, GOOD, moment(1), RULES), HUNG, moment(2), RULES
    )

    assert once.unhealthy is apart.unhealthy is None
    assert again.unhealthy == Unhealthy(worst=HUNG, since=moment(1).at)


def test_reason_gets_worse_but_not_better_while_a_card_is_sick() -> None:
    lost = after(SILENT, bad(LOST), every=1, start=health.with_report(HEALTHY, XID, moment(0)))
    then = health.with_report(
        health.with_reading(lost, bad(RESET), moment(2), RULES), XID, moment(3)
    )

    assert lost.unhealthy == then.unhealthy == Unhealthy(worst=LOST, since=moment(0).at)


def test_repeated_error_keeps_the_reason_but_delays_recovery() -> None:
    once = health.with_report(HEALTHY, XID, moment(0))
    again = health.with_report(once, XID, moment(90))

    assert (again.unhealthy, again.reported) == (once.unhealthy, once.reported)
    assert after(*[GOOD] * 4, start=again).unhealthy is not None


@pytest.mark.parametrize(
    ("kind", "code", "reason"),
    [
        (EventKind.XID, 79, "xid-79"),
        (EventKind.XID, 13, None),
        (EventKind.UNCORRECTABLE_ECC, 0, "uncorrectable-ecc"),
        (EventKind.FATAL_POISON, 0, "fatal-poison"),
        (EventKind.RETIREMENT_FAILED, 0, "retirement-failed"),
        (EventKind.UNAVAILABLE, 0, "unavailable"),
        (EventKind.RECOVERY_ACTION, 0, None),
    ],
)
def test_trouble_of_each_kind_of_event(kind: EventKind, code: int, reason: str | None) -> None:
    trouble = health.problem_of(CardEvent(gpu_uuid="GPU-1", kind=kind, code=code), RULES)

    assert (trouble.reason if trouble else None) == reason


STEPS = st.lists(
    st.tuples(
        st.floats(min_value=0, max_value=70),
        st.sampled_from(["good", "silent", "lost", "reset", "xid", "unread"]),
    ),
    max_size=60,
)


@settings(max_examples=examples(200))
@given(
    STEPS,
    st.integers(1, 3),
    st.integers(1, 4),
    st.floats(0, 150),
    st.sampled_from([0.0, 10.0, 500.0]),
)
def test_card_never_flaps_faster_than_the_quiet_time(
    steps: Sequence[tuple[float, str]], failed: int, good: int, quiet: float, clear: float
) -> None:
    rules = HealthRules(
        failed_readings=failed, good_readings=good, quiet_seconds=quiet, xid_clear_seconds=clear
    )
    state, now, sick_at, goods = HEALTHY, 0.0, 0.0, 0
    for seconds, step in steps:
        now += seconds
        before, state = state, _stepped(state, step, moment(now), rules)
        goods = goods + 1 if step in ("good", "silent") else 0
        if before.unhealthy is None and state.unhealthy is not None:
            assert step not in ("good", "silent")
            sick_at = now
            assert state.unhealthy.since == moment(now).at
        elif before.unhealthy is not None and state.unhealthy is None:
            assert now - sick_at >= quiet
            assert goods >= good
            assert state == HEALTHY
        elif before.unhealthy is not None and state.unhealthy is not None:
            assert state.unhealthy.since == before.unhealthy.since
            assert state.unhealthy.worst.kind >= before.unhealthy.worst.kind


def _stepped(state: CardHealth, step: str, now: Moment, rules: HealthRules) -> CardHealth:
    if step == "xid":
        return health.with_report(state, XID, now)
    if step == "unread":
        return health.with_failed_reading(state, HUNG, now, rules)
    findings = {"good": GOOD, "silent": SILENT, "lost": bad(LOST), "reset": bad(RESET)}
    return health.with_reading(state, findings[step], now, rules)


@pytest.mark.parametrize(
    ("codes", "marks"),
    [
        ([8, 13, 31, 43, 45, 63, 68, 92, 94, 135, 141, 154, 160], False),
        ([46, 48, 62, 64, 74, 79, 95, 109, 110, 119, 120, 136, 140, 143], True),
        ([0, 1, 167, 999, 123_456], True),
    ],
    ids=["application", "needs a reset or more", "not in the catalogue"],
)
def test_xid_marks_the_card_unless_the_application_made_it(
    codes: list[int], *, marks: bool
) -> None:
    assert {XidRules().marks_card(code) for code in codes} == {marks}


def test_settings_precede_the_catalogue_and_critical_precedes_ignored() -> None:
    rules = XidRules(ignored=frozenset({79, 48}), critical=frozenset({13, 48}))

    assert [code for code in (13, 31, 48, 79, 95) if rules.marks_card(code)] == [13, 48, 95]


def test_every_described_xid_marks_the_card() -> None:
    assert not xids.DESCRIPTIONS.keys() & xids.APPLICATION
    assert xids.description(79) == "XID 79: GPU has fallen off the bus"
    assert xids.description(999) == "XID 999"


NOW = Moment(1000.0, datetime(2026, 3, 1, tzinfo=UTC))
AT_ONCE = HealthRules(quiet_seconds=0, good_readings=1, failed_readings=1)
A, B, C = gpus(3)


def after_reading(
    before: KnownCards, inventory: Inventory, rules: HealthRules = AT_ONCE
) -> KnownCards:
    no_source: dict[str, tuple[HealthProblem, ...]] = {gpu.uuid: () for gpu in inventory.gpus}
    return health.after_reading(before, inventory, NOW, rules, reported=no_source)


def known(*gpus: Gpu) -> KnownCards:
    return read(KnownCards(), *gpus)


def read(before: KnownCards, *gpus: Gpu, **more: Any) -> KnownCards:
    return after_reading(before, Inventory(gpus=gpus, **more))


def name(card: Gpu) -> str:
    return card.uuid.lower()


def lost(
    subject: str = "GPU 0", *, uuid: str | None = None, pci_bus_id: str | None = None
) -> dict[str, Any]:
    """Return what a reading says of a lost card, found by its UUID or bus ID."""
    card = LostCard(subject=subject, uuid=uuid, pci_bus_id=pci_bus_id, text="")
    return {"lost": (card,), "left_out": (LeftOut(subject=subject, reason="lost"),)}


LOST_A = lost(A.uuid, uuid=A.uuid)


@pytest.mark.parametrize(
    ("found", "claimed", "more", "published", "reasons"),
    [
        ((A, B, C), (), {}, (A, B, C), {}),
        ((B, C), (), {}, (B, C), {A: "vanished"}),
        ((A, replace(C, index=1)), (B,), {}, (A, B, replace(C, index=1)), {B: "vanished"}),
        # A lost card is matched by its UUID, by its bus ID or by elimination, and counted once.
        ((B, C), (A,), LOST_A, (A, B, C), {A: "lost"}),
        ((B, C), (A,), lost(pci_bus_id=A.pci_bus_id), (A, B, C), {A: "lost"}),
        ((B, C), (A,), lost(), (A, B, C), {A: "lost"}),
        ((B, C), (), LOST_A, (B, C), {A: "lost"}),
        (
            (B, C),
            (A,),
            {"left_out": (LeftOut(subject=A.uuid, reason="MIG mode is on"),)},
            (A, B, C),
            {A: "unusable"},
        ),
        ((A, B, C), (), {"recovery": {A.uuid: 0}}, (A, B, C), {}),
        ((A, B, C), (), {"recovery": {A.uuid: 1}}, (A, B, C), {A: "gpu-reset-required"}),
    ],
    ids=[
        *("present", "vanished", "vanished with claims", "lost", "lost by bus ID"),
        *("lost by elimination", "lost without claims", "unusable", "no action", "action"),
    ],
)
def test_absent_cards_are_published_while_they_have_claims(
    found: tuple[Gpu, ...],
    claimed: tuple[Gpu, ...],
    more: dict[str, Any],
    published: tuple[Gpu, ...],
    reasons: dict[Gpu, str],
) -> None:
    inventory = Inventory(gpus=found, **more)

    shown = health.published(
        after_reading(known(A, B, C), inventory), inventory, {name(each) for each in claimed}
    )

    assert shown.inventory.gpus == published
    assert {card: each.worst.reason for card, each in shown.unhealthy.items()} == {
        name(card): reason for card, reason in reasons.items()
    }
    assert {*shown.absent} == {name(card) for card in reasons if card not in found}
    assert shown.inventory.left_out == (() if claimed else more.get("left_out", ()))


def test_returning_card_is_published_once_it_is_healthy() -> None:
    patient, inventory = replace(AT_ONCE, good_readings=2), Inventory(gpus=(A, B))
    back = after_reading(read(known(A, B), B), inventory, patient)
    well = after_reading(back, inventory, patient)

    first = health.published(back, inventory, ()).inventory
    assert first.gpus == (B,)
    assert [each.subject for each in first.left_out] == [A.uuid]
    assert health.published(back, inventory, {name(A)}).inventory.gpus == (A, B)
    assert health.published(well, inventory, ()).inventory == inventory


def test_new_driver_version_clears_reported_errors() -> None:
    struck = health.after_report(known(A), A.uuid, XID, NOW)

    assert read(struck, A).unhealthy()
    assert not read(struck, replace(A, driver_version="580.95.05")).unhealthy()


def test_failed_reading_is_trouble_of_all_cards() -> None:
    after = health.after_failure(known(A, B), HUNG, NOW, AT_ONCE)

    sick = Unhealthy(worst=HUNG, since=NOW.at)
    assert after.unhealthy() == {A.uuid: sick, B.uuid: sick}
    assert after.absent == frozenset()


def restored(
    before: KnownCards,
    *,
    boot_id: str = "boot-1",
    claimed: tuple[Gpu, ...] = (),
    damage: Mapping[str, Any] = {},
) -> KnownCards:
    """Return the cards as they are read after a restart, or with another boot ID a reboot."""
    kept: Any = {**health.as_json(before, boot_id="boot-1"), **damage}
    names = {name(card) for card in claimed}
    return health.from_json(kept, boot_id=boot_id, claimed=names, now=NOW)


def test_restart_keeps_cards_and_their_sickness() -> None:
    card = gpu(5, simulated=True, minor=None, pci_bus_id=None)
    before = health.after_report(known(A, card), A.uuid, XID, NOW)

    after = restored(before)

    assert (after.cards, after.unhealthy()) == (before.cards, before.unhealthy())
    assert after.health[A.uuid].reported == (XID,)
    assert restored(after) == after


def test_reboot_heals_every_card_and_keeps_those_with_claims() -> None:
    before = health.after_report(known(A, B), A.uuid, XID, NOW)

    after = restored(before, boot_id="boot-2", claimed=(A,))

    assert (set(after.cards), dict(after.health)) == ({A.uuid}, {})


def test_restart_forgets_an_absent_card_without_claims() -> None:
    after = restored(read(known(A, B, C), C), claimed=(A,))

    assert (set(after.cards), set(after.unhealthy())) == ({A.uuid, C.uuid}, {A.uuid})


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
        restored(known(A), damage=damage)
