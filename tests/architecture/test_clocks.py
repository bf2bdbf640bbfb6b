"""Durations never use the wall clock, which an administrator or NTP may set at any time."""

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
    "app/doctor/webhook.py",  # expiry of certificates
    "cluster/events.py",  # the time of an Event
    "driver/api_server_state.py",  # the time of the last answer and the last error
    "driver/card_health_tracker.py",  # start of a card's unhealthy state, kept over restarts
    "driver/node_observer.py",  # the moment of a view
    "driver/publishing_state.py",  # the time of the last write
    "driver/recent_operations.py",  # the time at which an operation ended
    "driver/status.py",  # lastTransitionTime of a condition
    "enforcement/hypervisor/worker_memory.py",  # age of a heartbeat, in seconds since the epoch
    "enforcement/live_signs.py",  # compared with a hypervisor's heartbeat
    "kubelet/health.py",  # last_updated_time, which the kubelet replaces by its own
    "kubelet/registration.py",  # the time of the kubelet's report
    "state/ledger_check.py",  # the time at which a record was quarantined
    "state/ledger_file.py",  # the file name of a quarantined ledger
    "state/record_copies.py",  # the file name of a quarantined copy
}
"""Files that publish or store the time of day, or compare it with a date set elsewhere."""


def readers_of_the_wall_clock() -> Iterator[str]:
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
                continue
            if (node.value.id, node.attr) in WALL:
                yield str(path.relative_to(PACKAGE))


def test_only_listed_files_read_the_wall_clock() -> None:
    found = {path for path in readers_of_the_wall_clock() if not path.startswith("simulator/")}

    assert found == TIME_OF_DAY


def upper_bounds_of_time(tree: ast.AST) -> Iterator[int]:
    """Yield the lines of asserts that bound a duration from above."""
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


def test_upper_bound_of_time_is_found() -> None:
    source = "began = time.monotonic()\nassert time.monotonic() - began < 2\nassert count < 2"

    assert [*upper_bounds_of_time(ast.parse(source))] == [2]
