"""Rules for the code's structure: imports of core, names, and tests that compare no clocks."""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

PACKAGE: Final = Path(__file__).parents[2] / "tensorfusion_dra"
OUTSIDE: Final = {
    "asyncio",
    "ctypes",
    "glob",
    "io",
    "logging",
    "multiprocessing",
    "os",
    "pathlib",
    "random",
    "shutil",
    "signal",
    "socket",
    "sqlite3",
    "subprocess",
    "sys",
    "tempfile",
    "threading",
    "time",
    "urllib",
    "uuid",
}
"""Modules of the standard library for I/O, threads, clocks, randomness or processes."""


def files(folder: Path = PACKAGE) -> list[Path]:
    return [path for path in sorted(folder.rglob("*.py")) if path.parent.name != "pb"]


def imported(path: Path) -> Iterator[str]:
    """Yield the modules that a file imports, at any place in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            yield node.module or ""


@pytest.mark.parametrize("path", files(PACKAGE / "core"), ids=lambda path: path.stem)
def test_core_imports_only_the_standard_library_and_itself(path: Path) -> None:
    foreign = [
        name
        for name in imported(path)
        if name.partition(".")[0] not in sys.stdlib_module_names
        and not f"{name}.".startswith("tensorfusion_dra.core.")
    ]

    assert foreign == []


@pytest.mark.parametrize("path", files(PACKAGE / "core"), ids=lambda path: path.stem)
def test_core_has_no_io_clocks_or_threads(path: Path) -> None:
    assert OUTSIDE.isdisjoint(name.partition(".")[0] for name in imported(path))


def test_package_init_files_are_empty() -> None:
    written = [path for path in files() if path.name == "__init__.py" and path.stat().st_size]

    assert written == []


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
