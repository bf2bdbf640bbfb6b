"""Measurement of one driver, or of two in turn, at every combination of settings.

Two drivers are measured in rounds: in each, one after the other with the same settings, and in the
next round the other way around. So both meet the same state of the machine. A ratio is that of two
neighbours; its median, lowest and highest value over the rounds show how far it can be trusted.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from benchmark.cells import Cell
from benchmark.figures import CALLS, PROCESS, Measured, joined, process_summary, ratios, summary
from benchmark.recorded import Recorded
from benchmark.subject import Subject

COMPARED: Final = ("p50_ms", "p95_ms", "p99_ms", "claims_per_s")
"""Figures of a call of which ratios are shown."""
COMPARED_PROCESS: Final = ("cpu_ms_per_claim", "rss_mib")
"""Figures of a process of which ratios are shown."""

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
    measured: dict[str, list[Measured]] = {each.name: [] for each in live}
    for number in range(rounds):
        for each in live if number % 2 == 0 else reversed(live):
            measured[each.name].append(each.measure(cell, max(1, calls // rounds)))
    figures = {
        each.name: each.figures(cell)
        if isinstance(each, Recorded)
        else _figures(measured[each.name])
        for each in subjects
    }
    found: Row = {**cell.as_json(), "figures": figures}
    if len(subjects) > 1:
        first, second = (
            [_figures([one]) for one in measured[each.name]]
            if len(live) > 1
            else [figures[each.name]]
            for each in subjects
        )
        found["ratios"] = {name: _ratios(first, second, name) for name in (*CALLS, PROCESS)}
    return found


def _figures(measured: Sequence[Measured]) -> dict[str, Any]:
    calls = {name: summary(joined(one.calls[name] for one in measured)) for name in CALLS}
    return {**calls, PROCESS: process_summary(measured)}


def _ratios(
    first: Sequence[Mapping[str, Any]], second: Sequence[Mapping[str, Any]], name: str
) -> dict[str, Any]:
    """Return the ratios of the figures of one call, or of the process, round by round.

    If one subject is a file, its whole row counts as one round. An old file has no process.
    """
    of_first, of_second = ([one.get(name, {}) for one in rounds] for rounds in (first, second))
    compared = COMPARED_PROCESS if name == PROCESS else COMPARED
    return {figure: ratios(of_first, of_second, figure) for figure in compared}
