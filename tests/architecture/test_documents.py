"""The documents' links work, and their tables, paths and commands agree with the project."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tensorfusion_dra.core import names
from tensorfusion_dra.core.admission.pod_admission import KNOWN_ANNOTATIONS
from tensorfusion_dra.core.claims.operation import Result, Stage
from tensorfusion_dra.core.devices.device import Version
from tensorfusion_dra.core.observed import document
from tensorfusion_dra.discovery.simulated import simulated_discovery
from tests.support import documented_commands, markdown
from tests.support.builders.devices import NODE, published_devices
from tests.support.builders.gpus import gpus
from tests.support.documented_commands import PAGES, WAYS
from tests.support.markdown import ROOT
from tests.support.status_scenes import scenes

READMES = (ROOT / "README.md", ROOT / "README.zh-CN.md")
DOCUMENTS = (
    *READMES,
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "daemonset").rglob("*.md")),
    *sorted(ROOT.glob("C*.md")),
    *sorted(ROOT.glob("SECURITY.md")),
)
API_TYPES = {str: "string", int: "int", Version: "version"}
OPTIONAL_ATTRIBUTES = {names.ATTR_PCI_BUS_ID, names.ATTR_PCIE_ROOT, names.ATTR_NUMA_NODE}


def broken_reason(file: Path, target: str) -> str:
    """Return the reason why a link of a document is broken_reason; empty if it is not."""
    if target.startswith(("https://", "mailto:")):
        return ""
    path, _, anchor = target.partition("#")
    found = (file.parent / path).resolve() if path else file
    if not found.exists():
        return f"{target}: no such file"
    if not found.is_relative_to(ROOT):
        return f"{target}: outside the repository"
    if anchor and anchor not in markdown.anchors(markdown.text(found)):
        return f"{target}: no such heading"
    return ""


@pytest.mark.parametrize("file", DOCUMENTS, ids=lambda file: str(file.relative_to(ROOT)))
def test_every_link_and_anchor_has_a_target(file: Path) -> None:
    targets = markdown.links(markdown.text(file))

    assert [reason for target in targets if (reason := broken_reason(file, target))] == []


def test_both_readmes_have_the_same_headings_links_and_commands() -> None:
    english, chinese = map(markdown.text, READMES)

    assert markdown.headings(chinese) == markdown.headings(english)
    other = {"README.md": "README.zh-CN.md"}
    assert [other.get(each, each) for each in markdown.links(chinese)] == markdown.links(english)
    assert list(markdown.commands(chinese)) == list(markdown.commands(english))


def test_every_document_of_the_folder_is_linked_from_the_readme() -> None:
    linked = set(markdown.links(markdown.text(READMES[0])))

    documents = {f"docs/{file.name}" for file in (ROOT / "docs").glob("*.md")}
    assert documents - linked == set()


def test_attribute_table_matches_a_device() -> None:
    rows = markdown.table(markdown.text(ROOT / "docs" / "concepts.md"), "attributes")
    (device,) = published_devices(*gpus(1), node=NODE)
    types = {
        name: API_TYPES[type(value)]
        for name, value in device.attributes.items()
        if name not in OPTIONAL_ATTRIBUTES
    }

    assert {markdown.codes(row[0])[0]: row[1] for row in rows} == types


def test_annotation_table_matches_the_webhook() -> None:
    rows = markdown.table(markdown.text(ROOT / "docs" / "use.md"), "annotations")

    documented = [f"{names.ANNOTATION_PREFIX}{markdown.codes(row[0])[0]}" for row in rows]
    assert sorted(documented) == sorted(KNOWN_ANNOTATIONS)


def test_profile_table_matches_the_profile_fields() -> None:
    rows = markdown.table(markdown.text(ROOT / "docs" / "extend.md"), "profile")

    documented = [code for row in rows for code in markdown.codes(row[0])]
    assert sorted(documented) == sorted(
        (*simulated_discovery.NODE_FIELDS, *simulated_discovery.GPU_FIELDS)
    )


def test_documents_name_only_existing_settings() -> None:
    settings = {
        markdown.codes(line)[0]
        for line in markdown.text(ROOT / "docs" / "settings.md").splitlines()
        if line.startswith("| `")
    }
    health = (ROOT / "docs" / "concepts.md").read_text().partition("## Health")[2]
    rows = [line for line in health.partition("## What holds")[0].splitlines() if line[:3] == "| `"]

    documented = {code for row in rows for code in markdown.codes(row.split("|")[1])}
    assert documented
    assert documented <= settings


FOLDER: Final = ROOT / "docs" / "adr"
DECISIONS: Final = sorted(FOLDER.glob("[0-9]*.md"))
HEAD: Final = re.compile(
    r"# (?P<number>\d+)\. (?P<title>.+)\n\n"
    r"Date: (?P<date>\d{4}-\d\d-\d\d)\n"
    r"Status: (?P<status>accepted|(?:overtaken by|merged into) (?P<other>\d+))\n\n"
)


def head(file: Path) -> dict[str, str]:
    """Return number, title, date, status and, if it names one, the other decision of a file."""
    found = HEAD.match(markdown.text(file))
    assert found, f"{file.name}: expected a title, a date and a known status in its first lines"
    return found.groupdict(default="")


def line(file: Path) -> str:
    """Return the index's line about a file."""
    about = head(file)
    place = f"[{about['number']}. {about['title']}]({file.name})"
    return f"- {place} ({about['date']}, {about['status']})"


def test_index_lists_every_decision_with_its_date_and_status() -> None:
    index = markdown.text(FOLDER / "README.md").splitlines()

    assert [each for each in index if each.startswith("- ")] == [line(file) for file in DECISIONS]


@pytest.mark.parametrize("file", DECISIONS, ids=lambda file: file.name[:4])
def test_number_is_that_of_the_file_and_a_status_names_another_decision(file: Path) -> None:
    about = head(file)

    others = {int(each.name[:4]) for each in DECISIONS if each != file}
    assert int(about["number"]) == int(file.name[:4])
    assert not about["other"] or int(about["other"]) in others


LAYOUT: Final = markdown.text(ROOT / "docs" / "architecture.md")
PACKAGE: Final = ROOT / "tensorfusion_dra"
CODE: Final = re.compile(r"`([^`]+)`")
PATH: Final = re.compile(r"[a-z_]+(/[a-z0-9_]+)*(\.py|\.yaml|\.toml)?")
NOT_PATHS: Final = frozenset({"doctor", "top", "why"})
"""Verbs, which look like paths."""
HIDDEN: Final = frozenset({"__main__"})
"""Layers that the drawing leaves out."""


def mentioned() -> list[str]:
    """Return each piece of code in the page's prose and tables that reads as a path."""
    found = CODE.findall(markdown.prose(LAYOUT))
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
    start = LAYOUT.index(f"<!-- {marker}:")
    (block,) = re.findall(
        r"```\n(.*?)```", LAYOUT[start : LAYOUT.index("<!-- end", start)], re.DOTALL
    )
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


WITH_COMMANDS = (*sorted((ROOT / "docs").glob("*.md")), *sorted(ROOT.glob("*.md")))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_is_run_on_a_cluster_or_says_why_not(page: Path) -> None:
    found = list(documented_commands.blocks(page))

    assert [each.place for each in found if not each.ways and not each.reason] == []
    assert [each.place for each in found if not each.ways <= set(WAYS)] == []
    assert set().union(*(each.ways for each in found)) == set(WAYS)


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=lambda page: page.name)
def test_every_upgrade_keeps_the_values(page: Path) -> None:
    upgrades = re.findall(r"\$ helm upgrade .*", page.read_text(encoding="utf-8"))

    assert [line for line in upgrades if "--values values.yaml" not in line] == []


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=lambda page: page.name)
def test_packages_are_installed_from_the_checkout_until_there_is_a_release(
    page: Path,
) -> None:
    is_released = "(unreleased)" not in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    by_name = re.findall(r"^\$ pip install '?tensorfusion.*", page.read_text(), re.MULTILINE)

    assert is_released or not by_name


SOURCES: Final = [
    file
    for file in (ROOT / "tensorfusion_dra").rglob("*.py")
    # Its lines are of a simulated API server and kubelet.
    if not {"simulate", "pb"} & set(file.parts)
]
LEVELS: Final = ("info", "warning", "error", "exception", "critical")
TROUBLE: Final = (ROOT / "docs" / "troubleshoot.md").read_text()
WORD: Final = re.compile(r"[a-z]+(_[a-z]+)+")


def logged(source: str) -> set[str]:
    """Return the events that a module logs from info on.

    An event that is not written in the call itself, such as ``log.warning(event, ...)``, may be
    any of the words that the module assigns, has in a table, or passes to a method ``_log_...``.
    """
    tree = ast.parse(source)
    found: set[str] = set()
    is_open = False
    for call in (each for each in ast.walk(tree) if isinstance(each, ast.Call)):
        match call:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="log"), attr=level), args=[event, *_]
            ) if level in LEVELS:
                words = set(constants(event))
                is_open = is_open or not words
                found |= words
    return found | set(assigned(tree)) if is_open else found


def constants(event: ast.expr) -> Iterator[str]:
    parts = [event.body, event.orelse] if isinstance(event, ast.IfExp) else [event]
    for part in parts:
        if isinstance(part, ast.Constant):
            yield str(part.value)


def assigned(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        values: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Dict):
            values = node.value.values
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            values = node.args[:1] if node.func.attr.startswith("_log_") else []
        for value in values:
            word = value.value if isinstance(value, ast.Constant) else None
            if isinstance(word, str) and WORD.fullmatch(word):
                yield word


def test_documented_events_are_logged() -> None:
    documented = [
        each for row in markdown.table(TROUBLE, "events") for each in markdown.codes(row[0])
    ]

    assert len(documented) == len(set(documented)) > 0
    assert set(documented) <= set().union(*(logged(file.read_text()) for file in SOURCES))


def test_stages_and_results_are_documented_in_their_order() -> None:
    assert first_column("stages") == [each.value for each in Stage]
    assert first_column("results") == [each.value for each in Result]


def first_column(table: str) -> list[str]:
    return [row[0].strip("`") for row in markdown.table(TROUBLE, table)]


STATUS: Final = (ROOT / "docs" / "status-page.md").read_text(encoding="utf-8")


def fields(value: Any, path: str = "") -> Iterator[str]:
    """Yield the path of each value, such as ``cards[].health.since``."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from fields(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for inner in value:
            inner_path = path if path.endswith("Gates") else f"{path}[]"
            yield from fields(inner, inner_path)
    else:
        yield path


def test_table_has_every_field_and_no_other() -> None:
    start, end = STATUS.index("<!-- fields:"), STATUS.index("<!-- end of fields")
    first_cells = [row.split("|")[1] for row in STATUS[start:end].splitlines() if row[:3] == "| `"]
    documented = [name for cell in first_cells for name in re.findall(r"`([^`]+)`", cell)]

    written = {
        field
        for scene in (scenes.typical, scenes.broken)
        for field in fields(document.as_json(scene()))
    }

    assert set(documented) | {"enforcer", "shares[].enforcement"} == written
    assert len(documented) == len(set(documented))
