"""Rules for the code's structure: imports of core, length of files and functions, names."""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
PACKAGE: Final = ROOT / "tensorfusion_dra"
MOST_LINES_OF_A_FILE: Final = 300
MOST_LINES_OF_A_FUNCTION: Final = 40
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


def scripts() -> list[Path]:
    """Return the Python scripts in hack/, most of which have no suffix."""
    found = (path for path in sorted((ROOT / "hack").rglob("*")) if path.is_file())
    return [
        path
        for path in found
        if path.suffix == ".py" or re.match(rb"#!.*python", path.read_bytes())
    ]


def functions(text: str) -> Iterator[tuple[str, int]]:
    """Yield each function of a module with its number of lines, without its docstring."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            has_docstring = ast.get_docstring(node) is not None
            yield node.name, line_count(node) - (line_count(node.body[0]) if has_docstring else 0)


def line_count(node: ast.stmt) -> int:
    assert node.end_lineno is not None
    return node.end_lineno - node.lineno + 1


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


@pytest.mark.parametrize(
    "paths",
    [files(), files(ROOT / "tests"), scripts()],
    ids=["tensorfusion_dra", "tests", "hack"],
)
def test_no_file_is_too_long(paths: list[Path]) -> None:
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines())
        for path in paths
    }

    assert lengths
    assert {name: n for name, n in lengths.items() if n > MOST_LINES_OF_A_FILE} == {}


def test_no_function_is_too_long() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {name}: {length}"
        for path in files()
        for name, length in functions(path.read_text(encoding="utf-8"))
        if length > MOST_LINES_OF_A_FUNCTION
    ]

    assert found == []


def test_length_of_a_function_leaves_out_its_docstring() -> None:
    text = 'def f(\n    a: int,\n) -> int:\n    """Two\n    lines."""\n    return a\n'

    assert list(functions(text)) == [("f", 4)]


def test_package_init_files_are_empty() -> None:
    written = [path for path in files() if path.name == "__init__.py" and path.stat().st_size]

    assert written == []


def test_no_module_is_a_catch_all() -> None:
    catch_alls = {"util", "utils", "common", "helper", "helpers", "misc"}

    assert [path for path in files() if catch_alls & {path.stem, path.parent.name}] == []
