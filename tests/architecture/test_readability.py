"""Rules for a reader who opens one file: names that have one meaning, and that exist."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from tests.support.sources import PACKAGE, ROOT, files, imported, nodes, strings

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


OF_OTHERS: Final = {
    *("double", "asApproximateFloat", "Quantity.Value", "test_conforms"),
    # Kubernetes: types and constants of its API, and plugins and events of its scheduler.
    *("AdmissionRequest", "AllocatedDeviceStatus", "AllocationResultsMaxSize", "PodGroup"),
    *("CapacityRequestPolicy", "DeviceAttributes", "DeviceCapacity", "DeviceTaint", "PodStatus"),
    *("DeviceMaxAttributesAndCapacities", "FirstAvailableDeviceRequestMaxSize", "ResourceQuota"),
    *("LabelSelector", "NodeAffinity", "NodeSelector", "NodeUnschedulable", "TaintToleration"),
    # Tensor Fusion.
    *("ComposeAllocationRequest", "IndexKeyLength", "IndexModLength", "SchedulingConfigTemplate"),
    *("CamelCase", "KubeVirt", "OpenMetrics", "OptOptimize"),
}
"""Names in docstrings that are others': of functions, classes and constants."""
CAMEL_CASE: Final = re.compile(r"(?<![\w./\"`'-])([A-Z][a-z0-9]+(?:[A-Z][a-z0-9]+)+)\b(?![\w-])")


def docstrings(path: Path) -> Iterator[str]:
    """Yield the docstrings of a file, those of constants included."""
    for node in nodes(path):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield str(node.value.value)


def members() -> Mapping[str, set[str]]:
    """Return what modules and classes of the package define, by their names."""
    found = defaultdict[str, set[str]](set)
    for path in files():
        for owner in nodes(path):
            if isinstance(owner, ast.Module | ast.ClassDef):
                name = owner.name if isinstance(owner, ast.ClassDef) else path.stem
                for node in ast.walk(owner):
                    if isinstance(node, ast.ClassDef | ast.FunctionDef):
                        found[name].add(node.name)
                    elif isinstance(node, ast.Name | ast.Attribute):
                        found[name].add(node.id if isinstance(node, ast.Name) else node.attr)
    return found


def test_docstrings_name_files_classes_and_functions_that_exist() -> None:
    """A name of several words may also be one that the code writes or reads, such as a kind."""
    defined, paths = members(), [f"/{path.relative_to(ROOT)}" for path in files(ROOT)]
    every, wrong = set[str]().union(*defined.values()), set[str]()
    known = every | {
        word for path in files() for text in strings(path) for word in re.findall(r"[A-Z]\w+", text)
    }
    for path in files():
        for text in docstrings(path):
            named = {
                name: any(each.endswith(f"/{name}") for each in paths)
                for name in re.findall(r"[\w/]+\.py\b", text)
            }
            named |= {name: name in every for name in re.findall(r"(?<![\w.])(\w+)\(\)", text)}
            named |= {
                name: name in every for name in re.findall(r"implements (?:the \S+ )?(\w+)", text)
            }
            named |= {
                f"{owner}.{name}": name in defined[owner]
                for owner, name in re.findall(r"\b(\w+)\.([A-Z]\w*|\w+(?=\(\)))", text)
                if owner in defined
            }
            named |= {
                name: bool(known & {name, name.removesuffix("s"), name.removesuffix("es")})
                for name in CAMEL_CASE.findall(text)
            }
            missing = {name for name, exists in named.items() if not exists} - OF_OTHERS
            wrong |= {f"{path.relative_to(ROOT)}: {name}" for name in missing}

    assert wrong == set()
