"""XIDs that mark a card."""

import pytest

from tensorfusion_dra.core.devices import xids
from tensorfusion_dra.core.devices.xids import XidRules


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
