"""The results as text."""

from collections.abc import Iterator, Sequence
from typing import Final

from gpucheck.steps import Json, Result
from tensorfusion_dra.app.shared.streams import table

_STEPS: Final = ("STEP", "RESULT", "SECONDS", "FOUND")
_RATES: Final = ("STEP", "TENANT", "LIMIT", "MEASURED", "LOWEST", "HIGHEST", "KERNELS/S")


def text(results: Sequence[Result], head: Json) -> str:
    """Return the steps and the measured rates, below a line that says what was real."""
    lines = [heading(head), ""]
    lines += table([_STEPS, *(_step(each) for each in results)])
    rows = list(_rates(results))
    if rows:
        lines += ["", "Compute in percent of that without a limit", ""]
        lines += table([_RATES, *rows])
    return "\n".join(lines)


def heading(head: Json) -> str:
    """Return one line: whether the driver was real or a stand-in."""
    if head["stand_ins"]:
        return f"STAND-INS, no GPU: {', '.join(head['stand_ins'])}"
    return "This machine's own NVIDIA driver"


def _step(result: Result) -> tuple[object, ...]:
    first, _, rest = result.text.partition("\n")
    return result.step, result.state, f"{result.seconds:.1f}", first + (" ..." if rest else "")


def _rates(results: Sequence[Result]) -> Iterator[tuple[object, ...]]:
    for result in results:
        for row in result.facts.get("rates", ()):
            limit = row["limit_percent"]
            yield (
                result.step,
                row["label"],
                "" if limit is None else f"{limit} %",
                *(f"{row[name]:.1f} %" for name in ("percent", "low_percent", "high_percent")),
                f"{row['kernels_per_second']:.1f}",
            )
