"""The levels of findings."""

import pytest

from tensorfusion_dra.core import finding
from tensorfusion_dra.core.finding import Finding, Level


@pytest.mark.parametrize(
    ("levels", "expected"),
    [
        ([], Level.OK),
        ([Level.NOTE, Level.OK], Level.NOTE),
        ([Level.WARNING, Level.NOTE], Level.WARNING),
        ([Level.COULD_NOT_LOOK, Level.WARNING], Level.COULD_NOT_LOOK),
        ([Level.OK, Level.PROBLEM, Level.COULD_NOT_LOOK], Level.PROBLEM),
    ],
)
def test_worst_finding_counts_and_could_not_look_is_worse_than_a_warning(
    levels: list[Level], expected: Level
) -> None:
    found = [Finding(level=level, subject="a", found="b") for level in levels]

    assert finding.worst(found) is expected
