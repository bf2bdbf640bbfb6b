"""Nothing is timed by the clock on the wall, which an administrator or NTP may set at any time."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

PACKAGE: Final = Path(__file__).parents[2] / "tensorfusion_dra"
TESTS: Final = Path(__file__).parents[1]
CLOCK: Final = re.compile(r"\b(monotonic|perf_counter|process_time|seconds|elapsed)\b")
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
    "driver/card_health_tracker.py",  # since when a card is unhealthy, kept over restarts
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


def upper_bounds_of_time(tree: ast.AST) -> Iterator[int]:
    """Yield the lines of asserts that something took less than a time."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert) and isinstance(node.test, ast.Compare):
            measured = ast.unparse(node.test.left)
            clock = re.search(
                r"\b(monotonic|perf_counter|process_time|seconds|elapsed)\b", measured
            )
            if clock and isinstance(node.test.ops[0], ast.Lt | ast.LtE):
                yield node.lineno


def test_no_test_fails_because_the_machine_is_slow() -> None:
    found = [
        f"{path.relative_to(TESTS)}:{line}"
        for path in sorted(TESTS.rglob("test_*.py"))
        if "e2e" not in path.parts
        for line in upper_bounds_of_time(ast.parse(path.read_text()))
    ]

    assert found == []


def test_an_upper_bound_of_time_is_found() -> None:
    source = "began = time.monotonic()\nassert time.monotonic() - began < 2\nassert count < 2"

    assert [*upper_bounds_of_time(ast.parse(source))] == [2]
