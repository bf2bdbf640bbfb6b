"""The commands of the pages can be typed as they are, and none is left out of the test of them."""

import re
from pathlib import Path

import pytest

from tests.support import documented_commands
from tests.support.documented_commands import PAGES, WAYS
from tests.support.markdown import ROOT

DOCUMENTS = (*sorted((ROOT / "docs").glob("*.md")), *sorted(ROOT.glob("*.md")))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_is_run_on_a_cluster_or_says_why_not(page: Path) -> None:
    found = list(documented_commands.blocks(page))

    assert [each.place for each in found if not each.ways and not each.reason] == []
    assert [each.place for each in found if not each.ways <= set(WAYS)] == []
    assert set().union(*(each.ways for each in found)) == set(WAYS)


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: page.name)
def test_every_upgrade_keeps_the_values(page: Path) -> None:
    upgrades = re.findall(r"\$ helm upgrade .*", page.read_text(encoding="utf-8"))

    assert [line for line in upgrades if "--values values.yaml" not in line] == []


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: page.name)
def test_packages_are_installed_from_the_checkout_until_there_is_a_release(
    page: Path,
) -> None:
    is_released = "(unreleased)" not in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    by_name = re.findall(r"^\$ pip install '?tensorfusion.*", page.read_text(), re.MULTILINE)

    assert is_released or not by_name
