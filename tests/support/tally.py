"""Counts of what the tests really did, for their closing lines."""

import os
from collections import Counter
from typing import Final

Tally = Counter[str]

EFFORT: Final = float(os.environ.get("FAULT_EFFORT", "0.1"))
"""How much the tests do of what could go on for ever.

Up to 1 the share of it, the same in every run: a fixed sample for `make test`, and all of it for
`make test-faults`. Above 1 so many times as much, and something else in each run.
"""

POINTS_KILLED: Final = "fault points killed"
INPUTS_FUZZED: Final = "inputs fuzzed"
INPUTS_DAMAGED: Final = "files damaged"
STEPS_IN_ANY_ORDER: Final = "steps in any order"
PODS_CHURNED: Final = "pods churned through rolling updates"


def share(count: int, *, least: int = 1) -> int:
    """Return the effort's share of a count, up to the count itself."""
    return min(count, max(least, round(count * EFFORT)))


def examples(count: int) -> int:
    """Return how many of so many generated examples a test tries: at least half of them."""
    return round(count * max(EFFORT, 0.5))
