"""The source files of this repository and what they import."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PACKAGE: Final = ROOT / "tensorfusion_dra"


def files(folder: Path = PACKAGE) -> list[Path]:
    return [path for path in sorted(folder.rglob("*.py")) if path.parent.name != "pb"]


def nodes(path: Path) -> Iterator[ast.AST]:
    """Yield each part of a file's syntax tree."""
    yield from ast.walk(ast.parse(path.read_text(encoding="utf-8")))


def strings(path: Path) -> Iterator[str]:
    """Yield what a file says to users and programs: no docstrings, no comments."""
    everything = list(nodes(path))
    prose = {id(node.value) for node in everything if isinstance(node, ast.Expr)}
    for node in everything:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield node.value


def imported(path: Path) -> Iterator[str]:
    """Yield the modules that a file imports, at any place in it."""
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            yield str(node.module)
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
