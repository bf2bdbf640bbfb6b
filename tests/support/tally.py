"""Counts of what the tests really did, for their closing lines."""

import os
from collections import Counter
from typing import Final

Tally = Counter[str]

EFFORT: Final = int(os.environ.get("FAULT_EFFORT", "1"))
"""How many times as much the tests do that could go on for ever."""

POINTS_KILLED: Final = "fault points killed"
INPUTS_FUZZED: Final = "inputs fuzzed"
INPUTS_DAMAGED: Final = "files damaged"
STEPS_IN_ANY_ORDER: Final = "steps in any order"
PODS_CHURNED: Final = "pods churned through rolling updates"
