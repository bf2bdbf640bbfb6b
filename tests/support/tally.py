"""Counts of the tests' actual work, for the summary of a run."""

import os
from collections import Counter
from typing import Final

Tally = Counter[str]

EFFORT: Final = float(os.environ.get("FAULT_EFFORT", "0.1"))
"""Amount of work in tests that could go on for ever.

Up to 1, it is the share of the work that is done, the same in every run: a fixed sample for
pytest alone, and all of it for `make test-faults`. Above 1, it is a multiple of the work, with
different examples in each run.
"""

POINTS_KILLED: Final = "fault points killed"
INPUTS_FUZZED: Final = "inputs fuzzed"
INPUTS_DAMAGED: Final = "files damaged"
STEPS_IN_ANY_ORDER: Final = "steps in any order"
PODS_CHURNED: Final = "pods churned through rolling updates"


def portion(count: int, *, least: int = 1) -> int:
    """Return the effort's share of a count, up to the count itself."""
    return min(count, max(least, round(count * EFFORT)))


def examples(count: int) -> int:
    """Return how many of a test's generated examples are tried: at least half of them."""
    return round(count * max(EFFORT, 0.5))
