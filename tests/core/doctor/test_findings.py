"""How bad several findings are together."""

import pytest

from tensorfusion_dra.core.doctor import finding
from tensorfusion_dra.core.doctor.finding import EXIT_CODES, Finding, Level


def of(level: Level) -> Finding:
    return Finding(level=level, looked_at="a", found="b")


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
def test_the_worst_counts_and_what_nobody_saw_may_be_worse_than_a_warning(
    levels: list[Level], expected: Level
) -> None:
    assert finding.worst(map(of, levels)) is expected


def test_every_level_has_an_exit_code_and_none_is_that_of_bad_input() -> None:
    assert EXIT_CODES.keys() == set(Level)
    assert 2 not in EXIT_CODES.values()
    assert [EXIT_CODES[level] for level in (Level.OK, Level.NOTE)] == [0, 0]


def test_a_finding_has_the_same_keys_whatever_it_is() -> None:
    said = finding.warning("a", "b", expected="c", cure="d").as_json()

    assert said.keys() == finding.ok("a", "b").as_json().keys()
    assert said["level"] == "warning"
