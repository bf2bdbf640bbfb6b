"""Changes of a card's health: sick at once, healthy again after a while; and XIDs."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorfusion_dra.core.devices import health, xids
from tensorfusion_dra.core.devices.health import (
    HEALTHY,
    CardEvent,
    CardHealth,
    EventKind,
    Finding,
    HealthProblem,
    HealthRules,
    Moment,
    ProblemKind,
)
from tensorfusion_dra.core.devices.xids import XidRules
from tests.support.tally import examples

RULES = HealthRules(failed_readings=2, good_readings=3, quiet_seconds=100)
XID = HealthProblem(kind=ProblemKind.XID, reason="xid-79", text="XID 79")
LOST = HealthProblem(kind=ProblemKind.LOST, reason="lost", text="lost")
RESET = HealthProblem(kind=ProblemKind.RECOVERY, reason="gpu-reset-required", text="reset")
HUNG = HealthProblem(kind=ProblemKind.UNREADABLE, reason="nvml-hung", text="hung")
GOOD = Finding(needs_nothing=True)
SILENT = Finding()  # from a driver that reports nothing about recovery


def moment(seconds: float) -> Moment:
    return Moment(seconds, datetime(2026, 3, 1, tzinfo=UTC) + timedelta(seconds=seconds))


def bad(trouble: HealthProblem) -> Finding:
    return Finding(problems=(trouble,))


def after(
    *findings: Finding, every: float = 50, start: CardHealth = HEALTHY, rules: HealthRules = RULES
) -> CardHealth:
    """Return the health after these readings, the first at 0 s."""
    for number, finding in enumerate(findings):
        start = health.read(start, finding, moment(number * every), rules)
    return start


@pytest.mark.parametrize("trouble", [LOST, RESET])
def test_trouble_found_by_a_reading_makes_the_card_sick_at_once(trouble: HealthProblem) -> None:
    found = after(bad(trouble))

    assert found.unhealthy is not None
    assert found.unhealthy.worst == trouble
    assert found.unhealthy.since == moment(0).at


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
    findings: Sequence[Finding], every: float, is_sick: bool
) -> None:
    found = after(bad(RESET), *findings, every=every)

    assert (found.unhealthy is not None) is is_sick


@pytest.mark.parametrize(
    ("finding", "clears"),
    [
        (GOOD, True),
        (Finding(was_reset=True), True),
        (SILENT, False),
    ],
)
def test_reported_error_is_cleared_by_the_driver_or_by_a_reset(
    finding: Finding, clears: bool
) -> None:
    struck = health.reported(HEALTHY, XID, moment(0))

    found = after(finding, *[SILENT] * 9, every=1000, start=struck)

    assert (found == HEALTHY) is clears


def test_card_that_was_away_and_is_back_counts_as_reset() -> None:
    struck = health.reported(HEALTHY, XID, moment(0))

    assert after(bad(LOST), *[SILENT] * 4, start=struck) == HEALTHY


def test_reported_error_is_cleared_by_time_if_configured() -> None:
    struck = health.reported(HEALTHY, XID, moment(0))
    patient = replace(RULES, xid_clear_seconds=400)

    assert after(*[SILENT] * 8, start=struck, rules=patient).unhealthy is not None
    assert after(*[SILENT] * 11, start=struck, rules=patient) == HEALTHY


def test_two_failed_readings_in_a_row_make_the_card_sick_and_one_does_not() -> None:
    once = health.unread(HEALTHY, HUNG, moment(0), RULES)
    again = health.unread(once, HUNG, moment(1), RULES)
    apart = health.unread(health.read(once, GOOD, moment(1), RULES), HUNG, moment(2), RULES)

    assert once.unhealthy is apart.unhealthy is None
    assert again.unhealthy is not None
    assert again.unhealthy.worst == HUNG


def test_reason_gets_worse_but_not_better_while_a_card_is_sick() -> None:
    struck = health.reported(HEALTHY, XID, moment(0))
    lost = health.read(struck, bad(LOST), moment(1), RULES)
    then = health.reported(health.read(lost, bad(RESET), moment(2), RULES), XID, moment(3))

    assert lost.unhealthy is not None
    assert lost.unhealthy.worst == LOST
    assert then.unhealthy == lost.unhealthy
    assert then.unhealthy.since == moment(0).at


def test_repeated_error_keeps_the_reason_but_delays_recovery() -> None:
    once = health.reported(HEALTHY, XID, moment(0))
    again = health.reported(once, XID, moment(90))

    assert again.unhealthy == once.unhealthy
    assert again.reported == once.reported
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
    findings: dict[str, Any] = {
        "good": GOOD,
        "silent": SILENT,
        "lost": bad(LOST),
        "reset": bad(RESET),
    }
    if step == "xid":
        return health.reported(state, XID, now)
    if step == "unread":
        return health.unread(state, HUNG, now, rules)
    return health.read(state, findings[step], now, rules)


@pytest.mark.parametrize("code", [8, 13, 31, 43, 45, 63, 68, 92, 94, 135, 141, 154, 160])
def test_application_errors_do_not_mark_the_card(code: int) -> None:
    assert not XidRules().marks_card(code)


@pytest.mark.parametrize("code", [46, 48, 62, 64, 74, 79, 95, 109, 110, 119, 120, 136, 140, 143])
def test_errors_that_need_a_reset_or_more_mark_the_card(code: int) -> None:
    assert XidRules().marks_card(code)


@pytest.mark.parametrize("code", [0, 1, 167, 999, 123_456])
def test_xid_that_is_not_in_the_catalogue_marks_the_card(code: int) -> None:
    assert XidRules().marks_card(code)


def test_settings_precede_the_catalogue_and_critical_precedes_ignored() -> None:
    rules = XidRules(ignored=frozenset({79, 48}), critical=frozenset({13, 48}))

    assert [code for code in (13, 31, 48, 79, 95) if rules.marks_card(code)] == [13, 48, 95]


def test_every_described_xid_marks_the_card() -> None:
    assert not xids.DESCRIPTIONS.keys() & xids.APPLICATION
    assert xids.description(79) == "XID 79: GPU has fallen off the bus"
    assert xids.description(999) == "XID 999"
