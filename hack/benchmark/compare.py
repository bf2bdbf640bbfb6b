"""Measurement of one driver, or of two in turn, at every combination of settings.

Two drivers are measured in rounds: in each, one after the other with the same settings, and in the
next round the other way around. So both meet the same state of the machine. A ratio is that of two
neighbours; its median, lowest and highest value over the rounds show how far it can be trusted.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from benchmark.cells import Cell
from benchmark.figures import CALLS, Sample, joined, ratios, summary
from benchmark.recorded import Recorded
from benchmark.subject import Subject

COMPARED: Final = ("p50_ms", "p95_ms", "p99_ms", "claims_per_s")
"""Figures of which ratios are shown."""

Row = dict[str, Any]
Progress = Callable[[str], None]


def rows(
    subjects: Sequence[Subject | Recorded],
    cells: Sequence[Cell],
    *,
    calls: int,
    rounds: int,
    progress: Progress,
) -> list[Row]:
    """Return a row of figures for each combination of settings.

    Args:
        calls: Calls of each kind in each row, over all rounds.
        progress: Gets a line before each row.
    """
    found = []
    for cell in cells:
        progress(", ".join(f"{name} {value:g}" for name, value in cell.as_json().items()))
        found.append(row(subjects, cell, calls=calls, rounds=rounds))
    return found


def row(subjects: Sequence[Subject | Recorded], cell: Cell, *, calls: int, rounds: int) -> Row:
    """Return the figures of one combination of settings, and the ratios of two subjects."""
    live = [each for each in subjects if not isinstance(each, Recorded)]
    samples: dict[str, list[Mapping[str, Sample]]] = {each.name: [] for each in live}
    for number in range(rounds):
        for each in live if number % 2 == 0 else reversed(live):
            samples[each.name].append(each.measure(cell, max(1, calls // rounds)))
    figures = {
        each.name: each.figures(cell)
        if isinstance(each, Recorded)
        else {name: summary(joined(one[name] for one in samples[each.name])) for name in CALLS}
        for each in subjects
    }
    found: Row = {**cell.as_json(), "figures": figures}
    if len(subjects) > 1:
        pairs = [_each(subject, figures, samples, len(live)) for subject in subjects]
        found["ratios"] = {
            name: {
                figure: ratios([one[name] for one in pairs[0]], [o[name] for o in pairs[1]], figure)
                for figure in COMPARED
            }
            for name in CALLS
        }
    return found


def _each(
    subject: Subject | Recorded,
    figures: Mapping[str, Mapping[str, Any]],
    samples: Mapping[str, Sequence[Mapping[str, Sample]]],
    live: int,
) -> Sequence[Mapping[str, Any]]:
    """Return the figures of each round; of the whole row if the other subject is a file."""
    if live < 2:
        return [figures[subject.name]]
    return [{name: summary(one[name]) for name in CALLS} for one in samples[subject.name]]
