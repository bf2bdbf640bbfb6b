"""docs/architecture.md: its paths exist, and its drawings are the import contracts."""

import re
import tomllib
from typing import Any, Final

import pytest

from tests.support import markdown
from tests.support.markdown import ROOT

PAGE: Final = markdown.text(ROOT / "docs" / "architecture.md")
PACKAGE: Final = ROOT / "tensorfusion_dra"
CODE: Final = re.compile(r"`([^`]+)`")
PATH: Final = re.compile(r"[a-z_]+(/[a-z0-9_]+)*(\.py|\.yaml|\.toml)?")
NOT_PATHS: Final = frozenset({"doctor", "top", "why"})
"""Verbs, which look like paths."""
HIDDEN: Final = frozenset({"__main__"})
"""Layers that the drawing leaves out."""


def mentioned() -> list[str]:
    """Return each piece of code in the page's prose and tables that reads as a path."""
    found = CODE.findall(markdown.prose(PAGE))
    return sorted({code for code in found if PATH.fullmatch(code)} - NOT_PATHS)


def exists(path: str) -> bool:
    """Return True for a path in the package, or at the top of the project."""
    return (PACKAGE / path).exists() or (ROOT / path).exists()


def contract(name: str) -> list[set[str]]:
    """Return the layers of an import contract, the highest first."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts: list[dict[str, Any]] = settings["tool"]["importlinter"]["contracts"]
    (found,) = [each for each in contracts if each["id"] == name]
    return [set(layer.split(" | ")) for layer in found["layers"]]


def drawing(marker: str) -> list[set[str]]:
    """Return the names in each line of a drawing, without the explanations at its right."""
    start = PAGE.index(f"<!-- {marker}:")
    (block,) = re.findall(r"```\n(.*?)```", PAGE[start : PAGE.index("<!-- end", start)], re.DOTALL)
    names = [re.split(r" {4,}(?=[a-zA-Z][^ ]* )", line)[0] for line in block.splitlines()]
    return [set(line.split()) for line in names]


@pytest.mark.parametrize("path", mentioned())
def test_every_path_exists(path: str) -> None:
    assert exists(path), f"{path}: found no such file or folder"


@pytest.mark.parametrize(("marker", "name"), [("layers", "arrows"), ("rooms", "rooms")])
def test_drawing_is_the_import_contract(marker: str, name: str) -> None:
    assert drawing(marker) == [layer for layer in contract(name) if layer - HIDDEN]


def test_every_layer_is_drawn_once() -> None:
    drawn = [name for layer in drawing("layers") for name in layer]
    packages = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}

    assert len(drawn) == len(set(drawn))
    assert packages <= set(drawn)
