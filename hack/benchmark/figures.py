"""Statistics of measured calls."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

CALLS: Final = ("prepare", "again", "unprepare")
"""The calls of a claim: its first prepare, the same prepare again, and its unprepare."""
PROCESS: Final = "process"
"""Name of the figures of a driver's process, beside those of each of CALLS."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Measured calls of one kind.

    Attributes:
        milliseconds: Of each call that succeeded.
        seconds: From the start of the first call to the end of the last.
        claims: Claims of the calls that succeeded.
        errors: Text of each call that failed.
    """

    milliseconds: Sequence[float]
    seconds: float
    claims: int
    errors: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One measurement of a driver.

    Attributes:
        calls: The sample of each of CALLS.
        cpu_seconds: CPU time of the driver's process for these calls, with what it did after its
            answers; None if not known.
        rss_mib: Memory of the driver's process after these calls; None if not known.
    """

    calls: Mapping[str, Sample]
    cpu_seconds: float | None = None
    rss_mib: float | None = None


def joined(samples: Iterable[Sample]) -> Sample:
    """Return all calls of samples that were taken one after the other."""
    each = list(samples)
    return Sample(
        milliseconds=[value for sample in each for value in sample.milliseconds],
        seconds=sum(sample.seconds for sample in each),
        claims=sum(sample.claims for sample in each),
        errors=[error for sample in each for error in sample.errors],
    )


def summary(sample: Sample) -> dict[str, Any]:
    """Return the figures of a sample; percentiles are None if every call failed."""
    cuts = {f"p{percent}_ms": percentile(sample.milliseconds, percent) for percent in (50, 95, 99)}
    found: dict[str, Any] = {
        **cuts,
        "claims_per_s": round(sample.claims / sample.seconds, 1) if sample.seconds else 0.0,
        "calls": len(sample.milliseconds),
        "errors": len(sample.errors),
    }
    if sample.errors:
        found["first_error"] = sample.errors[0][:300]
    return found


def process_summary(measurements: Sequence[Measured]) -> dict[str, float | None]:
    """Return the figures of a driver's process over measurements; None where one is not known."""
    claims = sum(each.calls["prepare"].claims for each in measurements)
    cpu = [each.cpu_seconds for each in measurements if each.cpu_seconds is not None]
    memory = [each.rss_mib for each in measurements if each.rss_mib is not None]
    known = len(cpu) == len(memory) == len(measurements)
    return {
        "cpu_ms_per_claim": round(sum(cpu) / claims * 1000, 2) if known and claims else None,
        "rss_mib": round(statistics.median(memory), 1) if known else None,
    }


def percentile(values: Sequence[float], percent: float) -> float | None:
    """Return the percentile, interpolated between its two neighbours; None of no values."""
    if not values:
        return None
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return round(ordered[low] + (ordered[high] - ordered[low]) * (place - low), 3)


def ratios(
    first: Sequence[Mapping[str, Any]], second: Sequence[Mapping[str, Any]], figure: str
) -> dict[str, float] | None:
    """Return median, lowest and highest of the ratios first / second, pair by pair.

    None if a figure is missing or 0.
    """
    pairs = [(one.get(figure), other.get(figure)) for one, other in zip(first, second, strict=True)]
    if not pairs or not all(one and other for one, other in pairs):
        return None
    each = [float(one) / float(other) for one, other in pairs if one and other]
    return {
        "median": round(statistics.median(each), 3),
        "min": round(min(each), 3),
        "max": round(max(each), 3),
    }
