"""Rules for a reader who opens one file: names that have one meaning, and that exist."""

import ast
import re
from collections import defaultdict
from typing import Final

from tests.support.sources import PACKAGE, ROOT, files, imported, nodes

TEST_MODULE: Final = re.compile(r"tests\.(\w+\.)*test_")


def test_no_test_module_imports_another() -> None:
    """What several of them use is in tests/support."""
    found = {
        str(path.relative_to(ROOT)): others
        for path in files(ROOT / "tests")
        if (others := {name for name in imported(path) if TEST_MODULE.match(name)})
    }

    assert found == {}


def test_each_public_class_has_a_name_of_its_own() -> None:
    """Type aliases and type variables do not have the name of a class either."""
    classes, others = defaultdict(set), defaultdict(set)
    for path in files():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                classes[node.name].add(str(path.relative_to(PACKAGE)))
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                others[node.targets[0].id].add(str(path.relative_to(PACKAGE)))

    found = {name: {*paths, *others[name]} for name, paths in classes.items() if name[0] != "_"}

    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}


def test_no_module_is_imported_by_the_name_of_a_package() -> None:
    packages = {path.parent.name for path in files() if path.name == "__init__.py"}
    found = {
        f"{path.relative_to(ROOT)}: {alias.name} as {alias.asname}"
        for folder in ("tensorfusion_dra", "dra_simulator")
        for path in files(ROOT / folder)
        for node in nodes(path)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
        if alias.asname in packages
    }

    assert found == set()
