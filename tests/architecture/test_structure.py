"""Rules for the code's structure: what core may import, and empty package files."""

import ast
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
def test_core_imports_only_itself_and_modules_without_io_clocks_or_threads(path: Path) -> None:
    foreign = [
        name
        for name in imported(path)
        if name.partition(".")[0] not in sys.stdlib_module_names - OUTSIDE
        and not f"{name}.".startswith("tensorfusion_dra.core.")
    ]

    assert foreign == []


def test_package_init_files_are_empty() -> None:
    written = [path for path in files() if path.name == "__init__.py" and path.stat().st_size]

    assert written == []
