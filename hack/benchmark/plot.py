"""A plot of the cost of each call against the number of claims held, as a PNG file."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmark.figures import series


class PlotError(Exception):
    """Nothing can be plotted here."""


def check_installed() -> None:
    """Check before a long measurement that a plot can be drawn.

    Raises:
        PlotError: matplotlib is not installed.
    """
    try:
        import matplotlib.figure  # noqa: F401, PLC0415
    except ImportError as error:
        raise PlotError(
            "--plot: found no matplotlib, expected it for a PNG file; "
            "install the dependency group 'bench'"
        ) from error


def write(file: Path, rows: Sequence[Mapping[str, Any]], figure: str = "p50_ms") -> None:
    """Draw a line for each driver and call.

    Raises:
        PlotError: matplotlib is not installed.
    """
    check_installed()
    from matplotlib.figure import Figure  # noqa: PLC0415 - an optional package

    drawn = Figure(figsize=(8, 5), layout="constrained")
    axes = drawn.subplots()
    for each in series(rows, figure):
        held, values = zip(*each.points, strict=True)
        axes.plot(held, values, marker="o", label=f"{each.call}, {each.label}")
    axes.set_xscale("symlog", linthresh=1)
    levels = sorted({row["held"] for row in rows})
    axes.set_xticks(levels, [f"{level:,}" for level in levels])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("claims held")
    axes.set_ylabel(figure.replace("_ms", " in ms"))
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    drawn.savefig(file, format="png", dpi=120)
