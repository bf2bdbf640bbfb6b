"""The measured shares of compute beside their limits, as a PNG file."""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from gpucheck import tables
from gpucheck.steps import Json, Result

_TITLE_COLUMNS: Final = 100


def is_installed() -> bool:
    """Return True if matplotlib is there; it is optional."""
    try:
        import matplotlib.figure  # noqa: F401, PLC0415
    except ImportError:
        return False
    return True


def write(file: Path, results: Sequence[Result], head: Json) -> None:
    """Draw a bar for each measured share, with its spread, and a mark at its limit."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - an optional package

    rows = [(each.step, row) for each in results for row in each.facts.get("rates", ())]
    drawn = Figure(figsize=(9, 1.5 + 0.3 * len(rows)), layout="constrained")
    axes = drawn.subplots()
    places = range(len(rows))
    measured = [row["percent"] for _, row in rows]
    spread = [
        [row["percent"] - row["low_percent"] for _, row in rows],
        [row["high_percent"] - row["percent"] for _, row in rows],
    ]
    axes.barh(places, measured, xerr=spread, color="tab:blue", label="measured, lowest to highest")
    limits = [(row["limit_percent"], place) for place, (_, row) in zip(places, rows, strict=True)]
    marked = [(limit, place) for limit, place in limits if limit is not None]
    if marked:
        axes.scatter(*zip(*marked, strict=True), marker="|", s=200, color="tab:red", label="limit")
    axes.set_yticks(places, [_label(step, row) for step, row in rows])
    axes.invert_yaxis()
    axes.set_xlabel("kernels per second, in percent of those without a limit")
    axes.margins(y=0.01)
    drawn.suptitle(textwrap.fill(tables.heading(head), _TITLE_COLUMNS), fontsize="medium")
    drawn.legend(loc="outside lower center", ncols=2)
    drawn.savefig(file, format="png", dpi=120)


def _label(step: str, row: Json) -> str:
    limit = row["limit_percent"]
    return f"{step}, {row['label']}" + ("" if limit is None else f", {limit} %")
