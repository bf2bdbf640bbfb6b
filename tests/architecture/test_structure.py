"""Rules for the code's structure: what core may import, and empty package files."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
PACKAGE: Final = ROOT / "tensorfusion_dra"
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

KNOWN_CIRCLES: Final = {
    *("tensorfusion_dra.app.webhook.command", "tensorfusion_dra.app.webhook.process"),
    "tensorfusion_dra.app.simulate.command",
    "tensorfusion_dra.app.simulate.manifest_file",
    "tensorfusion_dra.app.simulate.sequence",
}
"""Modules that still import each other. Nothing is to be added here."""


def files(folder: Path = PACKAGE) -> list[Path]:
    return [path for path in sorted(folder.rglob("*.py")) if path.parent.name != "pb"]


def imported(path: Path) -> Iterator[str]:
    """Yield the modules that a file imports, at any place in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            yield str(node.module)
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", files(PACKAGE / "core"), ids=lambda path: path.stem)
def test_core_imports_only_itself_and_modules_without_io_clocks_or_threads(path: Path) -> None:
    foreign = [
        name
        for name in imported(path)
        if name.partition(".")[0] not in sys.stdlib_module_names - OUTSIDE
        and not f"{name}.".startswith("tensorfusion_dra.core.")
    ]

    assert foreign == []


def test_no_modules_import_each_other_directly_or_through_others() -> None:
    """Imports inside functions and for types alone count too."""
    both = [*files(), *files(ROOT / "dra_simulator")]
    names = {".".join(file.relative_to(ROOT).with_suffix("").parts): file for file in both}
    reached = {name: set(imported(file)) & names.keys() for name, file in names.items()}
    for through in names:
        for name, others in reached.items():
            if through in others:
                reached[name] = others | reached[through]

    assert {name for name, others in reached.items() if name in others} - KNOWN_CIRCLES == set()


def test_package_init_files_are_empty() -> None:
    written = [path for path in files() if path.name == "__init__.py" and path.stat().st_size]

    assert written == []
