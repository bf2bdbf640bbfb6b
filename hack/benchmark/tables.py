"""Figures as tables for a terminal."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from benchmark.figures import CALLS, PROCESS

_SETTINGS: Final = (
    ("held", "held"),
    ("api_ms", "API ms"),
    ("devices", "devices"),
    ("claims_per_call", "claims"),
    ("at_a_time", "at a time"),
)
_FIGURES: Final = ("p50_ms", "p95_ms", "p99_ms", "claims_per_s")

Row = Mapping[str, Any]


def latencies(rows: Sequence[Row]) -> str:
    """Return a table with a line for each driver, setting and call."""
    drivers = [name for row in rows for name in row["figures"]]
    width = max(map(len, (*drivers, "driver")))
    lines = [
        "".join(f"{title:>11}" for _, title in _SETTINGS)
        + f"   {'driver':{width}}  {'call':10}"
        + f"{'p50 ms':>9}{'p95 ms':>9}{'p99 ms':>9}{'claims/s':>10}{'errors':>8}"
    ]
    for row in rows:
        settings = "".join(f"{row[name]:>11g}" for name, _ in _SETTINGS)
        for driver, figures in row["figures"].items():
            for call in CALLS:
                values = [_number(figures[call][name]) for name in _FIGURES]
                cells = "".join(f"{value:>9}" for value in values[:3]) + f"{values[3]:>10}"
                errors = f"{figures[call]['errors']:>8}"
                lines.append(f"{settings}   {driver:{width}}  {call:10}{cells}{errors}")
    return "\n".join(lines)


def processes(rows: Sequence[Row]) -> str:
    """Return a table of CPU time and memory with a line for each driver and setting.

    Two drivers have a third line with the ratios of the first to the second. "" if not measured.
    """
    drivers = [name for row in rows for name in row["figures"]]
    width = max(map(len, (*drivers, "driver")))
    lines = [
        "".join(f"{title:>11}" for _, title in _SETTINGS)
        + f"   {'driver':{width}}{'CPU ms a claim':>24}{'RSS MiB':>24}"
    ]
    for row in rows:
        found = {
            driver: [_number(value) for value in figures.get(PROCESS, {}).values()]
            for driver, figures in row["figures"].items()
        }
        if ratios := row.get("ratios", {}).get(PROCESS):
            found["ratio"] = [_ratio(ratio) for ratio in ratios.values()]
        settings = "".join(f"{row[name]:>11g}" for name, _ in _SETTINGS)
        for name, values in found.items():
            if set(values) - {"-"}:
                lines.append(
                    f"{settings}   {name:{width}}{''.join(f'{each:>24}' for each in values)}"
                )
    return "\n".join(lines) if len(lines) > 1 else ""


def comparison(rows: Sequence[Row]) -> str:
    """Return a table of the ratios of the first driver to the second, with their range."""
    first, second = rows[0]["figures"]
    lines = [
        f"{first} / {second}: median (lowest to highest) of the pairs",
        "".join(f"{title:>11}" for _, title in _SETTINGS)
        + f"   {'call':10}{'p50':>24}{'p95':>24}{'p99':>24}{'claims/s':>24}",
    ]
    for row in rows:
        settings = "".join(f"{row[name]:>11g}" for name, _ in _SETTINGS)
        for call in CALLS:
            cells = "".join(f"{_ratio(row['ratios'][call][name]):>24}" for name in _FIGURES)
            lines.append(f"{settings}   {call:10}{cells}")
    return "\n".join(lines)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _ratio(ratio: Mapping[str, float] | None) -> str:
    if ratio is None:
        return "-"
    return f"{ratio['median']:.2f} ({ratio['min']:.2f} to {ratio['max']:.2f})"
