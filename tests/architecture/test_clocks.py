"""Nothing is timed by the clock on the wall, which an administrator or NTP may set at any time."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

PACKAGE: Final = Path(__file__).parents[2] / "tensorfusion_dra"
WALL: Final = {
    ("time", "time"),
    ("time", "time_ns"),
    ("time", "localtime"),
    ("datetime", "now"),
    ("datetime", "today"),
    ("datetime", "utcnow"),
}
TIME_OF_DAY: Final = {
    "app/doctor/webhook.py",  # certificates end by it
    "cluster/events.py",  # an Event's time
    "driver/card_memory.py",  # since when a card is unhealthy, kept over restarts
    "driver/status.py",  # lastTransitionTime of a condition
    "kubelet/health.py",  # last_updated_time, which the kubelet replaces by its own
    "state/ledger_check.py",  # when a record was set aside
    "state/ledger_file.py",  # the name of a ledger that was set aside
    "state/record_copies.py",  # the name of a copy that was set aside
}
"""Files that tell others the time of day, or hold it against a date that others have set."""


def readers_of_the_wall_clock() -> Iterator[str]:
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
                continue
            if (node.value.id, node.attr) in WALL:
                yield str(path.relative_to(PACKAGE))


def test_only_what_is_told_or_set_by_others_is_read_from_the_wall_clock() -> None:
    found = {path for path in readers_of_the_wall_clock() if not path.startswith("simulator/")}

    assert found == TIME_OF_DAY
