"""Tests do not compare clocks, so that none fails because the machine is slow."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

TESTS: Final = Path(__file__).parents[1]
CLOCK: Final = re.compile(r"\b(monotonic|perf_counter|process_time|seconds|elapsed)\b")


def upper_bounds_of_time(tree: ast.AST) -> Iterator[int]:
    """Yield the lines of asserts that bound a duration from above."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert) and isinstance(node.test, ast.Compare):
            measured = ast.unparse(node.test.left)
            if CLOCK.search(measured) and isinstance(node.test.ops[0], ast.Lt | ast.LtE):
                yield node.lineno


def test_no_test_fails_because_the_machine_is_slow() -> None:
    found = [
        f"{path.relative_to(TESTS)}:{line}"
        for path in sorted(TESTS.rglob("test_*.py"))
        if "e2e" not in path.parts
        for line in upper_bounds_of_time(ast.parse(path.read_text()))
    ]

    assert found == []
