"""docs/adr: each decision has a date and a status, and the index lists them all."""

import re
from pathlib import Path
from typing import Final

import pytest

from tests.support import markdown
from tests.support.markdown import ROOT

FOLDER: Final = ROOT / "docs" / "adr"
DECISIONS: Final = sorted(FOLDER.glob("[0-9]*.md"))
HEAD: Final = re.compile(
    r"# (?P<number>\d+)\. (?P<title>.+)\n\n"
    r"Date: (?P<date>\d{4}-\d\d-\d\d)\n"
    r"Status: (?P<status>accepted|(?:overtaken by|merged into) (?P<other>\d+))\n\n"
)


def head(file: Path) -> dict[str, str]:
    """Return number, title, date, status and, if it names one, the other decision of a file."""
    found = HEAD.match(markdown.text(file))
    assert found, f"{file.name}: expected a title, a date and a known status in its first lines"
    return found.groupdict(default="")


def row(file: Path) -> list[str]:
    """Return the index's row about a file."""
    about = head(file)
    return [about["number"], f"[{about['title']}]({file.name})", about["date"], about["status"]]


def test_index_lists_every_decision_with_its_date_and_status() -> None:
    rows = markdown.table(markdown.text(FOLDER / "README.md"), "decisions")

    assert rows == [row(file) for file in DECISIONS]


@pytest.mark.parametrize("file", DECISIONS, ids=lambda file: file.name[:4])
def test_number_is_that_of_the_file_and_a_status_names_another_decision(file: Path) -> None:
    about = head(file)

    others = {int(each.name[:4]) for each in DECISIONS if each != file}
    assert int(about["number"]) == int(file.name[:4])
    assert not about["other"] or int(about["other"]) in others
