"""Ages in the short form that `kubectl get` shows.

apimachinery, pkg/util/duration HumanDuration, release 1.36.
"""

from datetime import UTC, datetime, timedelta
from typing import Final

_MINUTE: Final = 60
_HOUR: Final = 60 * _MINUTE
_DAY: Final = 24 * _HOUR
_YEAR: Final = 365 * _DAY
_UNITS: Final = {1: "s", _MINUTE: "m", _HOUR: "h", _DAY: "d", _YEAR: "y"}
_STEPS: Final = (
    (2 * _MINUTE, 1, None),
    (10 * _MINUTE, _MINUTE, 1),
    (3 * _HOUR, _MINUTE, None),
    (8 * _HOUR, _HOUR, _MINUTE),
    (2 * _DAY, _HOUR, None),
    (8 * _DAY, _DAY, _HOUR),
    (2 * _YEAR, _DAY, None),
    (8 * _YEAR, _YEAR, _DAY),
)
"""Upper bound of a duration in seconds, its unit, and a smaller unit to add; None for none."""


def age(timestamp: object) -> str:
    """Return the time since a timestamp of the API; ``<unknown>`` if there is none."""
    if not isinstance(timestamp, str) or not timestamp:
        return "<unknown>"
    return human(datetime.now(UTC) - datetime.fromisoformat(timestamp))


def human(passed: timedelta) -> str:
    """Return a duration in two or three significant figures, such as ``5m30s`` or ``2d3h``."""
    # Truncate towards zero, as Go does: a clock that is 1.5 s ahead is still "0s".
    seconds = int(passed.total_seconds())
    if seconds < -1:
        return "<invalid>"
    seconds = max(seconds, 0)
    steps = (step for step in _STEPS if seconds < step[0])
    _, unit, smaller = next(steps, (None, _YEAR, None))
    whole, left = divmod(seconds, unit)
    rest = left // smaller if smaller else 0
    shown = f"{whole}{_UNITS[unit]}"
    return f"{shown}{rest}{_UNITS[smaller]}" if smaller and rest else shown
