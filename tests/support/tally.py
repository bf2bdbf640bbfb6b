"""Counts of what the tests really did, for their closing lines."""

from collections import Counter
from typing import Final

Tally = Counter[str]

POINTS_KILLED: Final = "fault points killed"
INPUTS_FUZZED: Final = "inputs fuzzed"
INPUTS_DAMAGED: Final = "files damaged"
STEPS_IN_ANY_ORDER: Final = "steps in any order"
PODS_CHURNED: Final = "pods churned through rolling updates"
