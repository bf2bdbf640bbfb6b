"""The documents' links work, and their tables, paths and commands agree with the project."""

import ast
import itertools
import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from tensorfusion_dra.core import names, observed
from tensorfusion_dra.core.admission import dialects
from tensorfusion_dra.core.admission.pod_admission import KNOWN_ANNOTATIONS
from tensorfusion_dra.core.claims import resize
from tensorfusion_dra.core.claims.operation import Result, Stage
from tensorfusion_dra.core.devices.capacity import Oversubscription
from tensorfusion_dra.core.devices.device import Version
from tensorfusion_dra.core.devices.gpu import Isolation
from tensorfusion_dra.core.kubernetes import releases
from tensorfusion_dra.discovery import gpu_models
from tensorfusion_dra.discovery.simulated import simulated_discovery
from tensorfusion_dra.enforcers import registered
from tensorfusion_dra.enforcers.mps.declaration import MPS
from tests.support import helm, markdown, yaml_text
from tests.support.builders.devices import NODE, published_devices
from tests.support.builders.gpus import gpus
from tests.support.markdown import INSTALL, MAINTAIN, PAGES, ROOT, USE, WAYS
from tests.support.status_scenes import scenes

READMES = (ROOT / "README.md", ROOT / "README.zh-CN.md")
DOCUMENTS = (
    *READMES,
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "daemonset").rglob("*.md")),
    *sorted(ROOT.glob("C*.md")),
    ROOT / "MAINTAINERS.md",
    ROOT / "SECURITY.md",
)
API_TYPES = {str: "string", int: "int", bool: "bool", Version: "version"}
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


def test_both_readmes_have_the_same_headings_and_commands_and_link_every_page() -> None:
    english, chinese = map(markdown.text, READMES)

    links = markdown.links(english)
    assert {f"docs/{file.name}" for file in (ROOT / "docs").glob("*.md")} <= set(links)
    assert markdown.headings(chinese) == markdown.headings(english)
    other = {"README.md": "README.zh-CN.md"}
    assert [other.get(each, each) for each in markdown.links(chinese)] == links
    assert list(markdown.commands(chinese)) == list(markdown.commands(english))


def test_attribute_table_matches_a_device() -> None:
    rows = markdown.table(markdown.text(ROOT / "docs" / "concepts.md"), "attributes")
    (device,) = published_devices(*gpus(1), node=NODE)
    types = {
        name: API_TYPES[type(value)]
        for name, value in device.attributes.items()
        if name not in OPTIONAL_ATTRIBUTES
    }

    assert {name: row[1] for row in rows for name in markdown.codes(row[0])} == types


def test_documented_room_for_packages_is_what_the_driver_leaves() -> None:
    ratios = Oversubscription(tflops_percent=150, host_memory_percent=0, host_disk_percent=0)
    (device,) = published_devices(*gpus(1), node=replace(NODE, oversubscription=ratios))

    text = markdown.text(ROOT / "docs" / "extend.md")
    found = re.findall(
        r"at most (\d+) attributes and capacities.* to (\d+), .* leaves (\d+) ", text
    )
    used = len(device.attributes) + len(device.capacity)
    assert [tuple(map(int, each)) for each in found] == [(32, used, 32 - used)]


def test_compute_table_is_that_of_the_driver() -> None:
    rows = markdown.table(markdown.text(ROOT / "docs" / "use.md"), "compute")
    known = {name: tflops for _, name, tflops in gpu_models.PACKAGED}

    for cards, whole, quarter in rows:
        assert {known[card] for card in cards.split(", ")} == {float(whole)}
        assert float(quarter) * 4 == float(whole)


@pytest.mark.process
def test_what_a_webhook_that_is_down_prevents_is_what_the_chart_has_it_prevent() -> None:
    rows = markdown.table(TROUBLE, "webhook down")
    documents = helm.render({"webhook": {"enabled": True, "dialects": ["hami"]}})

    assert {
        (name, "Ignore" if then.startswith("created unchecked") else "Fail")
        for what, then in rows
        for name in markdown.codes(re.sub(r"\[.*?\]\(.*?\)", "", what))
    } == {
        (each["name"].removesuffix(".dra.tensor-fusion.ai"), each["failurePolicy"])
        for document in documents
        for each in document.get("webhooks", ())
    }


def test_table_of_answers_to_changed_limits_has_each_one() -> None:
    rows = markdown.table(markdown.text(ROOT / "docs" / "use.md"), "answers")

    found = {markdown.codes(name)[0]: code for name, code, _ in rows}
    assert found == {resize.GRANTED: "0", resize.IN_PART: "1", resize.REFUSED: "1"}


def test_table_of_releases_matches_the_rules_and_their_gates() -> None:
    body = ast.parse(Path(releases.__file__).read_text(encoding="utf-8")).body
    rules = [
        (
            each.target.id,
            f"1.{ast.literal_eval(each.value)}",
            re.findall(r"DRA\w+", after.value.value),
        )
        for each, after in itertools.pairwise(body)
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
        if isinstance(each.value, ast.Constant)
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        if isinstance(after.value.value, str)
    ]

    rows = markdown.table(markdown.text(ROOT / "docs" / "simulator.md"), "releases")

    known = [each for each in rules if each[0] not in {"NEWEST", "SIMULATED"}]
    assert [(since, re.findall(r"DRA\w+", gate)) for since, _, gate in rows] == [
        (since, gates) for _, since, gates in known
    ]
    for gate, first in releases.GATES.items():
        assert f"1.{first}" == min(since for since, _, cell in rows if cell.startswith(f"`{gate}`"))


def test_table_of_limits_that_change_matches_the_facts_of_the_enforcers() -> None:
    rows = markdown.table(markdown.text(ROOT / "docs" / "limits.md"), "changes")

    found = set()
    for name, memory, compute in rows:
        enforcer, *modes = markdown.codes(name)
        facts = registered.facts(enforcer)
        for mode in map(Isolation, modes or ("soft", "hard")):
            of_compute = "fixed" if mode in facts.fixed_compute else "yes"
            is_limited = facts.enforces_compute or enforcer == MPS.name
            assert memory == ("fixed" if mode in facts.fixed_memory else "yes")
            assert compute == (of_compute if is_limited else "not limited")
            found.add((enforcer, mode))
    both = (Isolation.SOFT, Isolation.HARD)
    assert found == {(name, mode) for name in registered.IN_AUTO for mode in both}


def test_annotation_table_matches_the_webhook() -> None:
    rows = markdown.table(markdown.text(ROOT / "docs" / "use.md"), "annotations")

    documented = [
        f"{names.ANNOTATION_PREFIX}{code.partition(':')[0]}"
        for row in rows
        for code in markdown.codes(row[0])
    ]
    assert sorted(documented) == sorted(KNOWN_ANNOTATIONS)


def test_dialect_table_matches_the_words() -> None:
    rows = markdown.table(markdown.text(ROOT / "docs" / "advanced.md"), "dialects")

    assert {
        (markdown.codes(dialect)[0], word, "".join(markdown.codes(becomes)))
        for dialect, words, becomes in rows
        for word in markdown.codes(words)
    } == {
        (str(dialect), word.name, word.becomes.removeprefix(names.ANNOTATION_PREFIX))
        for dialect, words in dialects.WORDS.items()
        for word in words
    }


def test_profile_table_matches_the_profile_fields() -> None:
    rows = markdown.table(markdown.text(ROOT / "docs" / "extend.md"), "profile")

    of_card, of_node = (markdown.codes(fields) for _, fields in rows)
    assert sorted(of_card) == sorted(simulated_discovery.GPU_FIELDS)
    assert sorted(of_node) == sorted(simulated_discovery.NODE_FIELDS)


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


def test_index_lists_every_decision_with_its_date_and_status() -> None:
    index = markdown.text(FOLDER / "README.md")
    line = "- [{number}. {title}]({file}) ({date}, {status})"

    assert re.findall("^- .*", index, re.MULTILINE) == [
        line.format(file=file.name, **head(file)) for file in DECISIONS
    ]


@pytest.mark.parametrize("file", DECISIONS, ids=lambda file: file.name[:4])
def test_number_is_that_of_the_file_and_a_status_names_another_decision(file: Path) -> None:
    about = head(file)

    others = {each.name[:4] for each in DECISIONS if each != file}
    assert about["number"].zfill(4) == file.name[:4]
    assert not about["other"] or about["other"].zfill(4) in others


LAYOUT: Final = markdown.text(ROOT / "docs" / "architecture.md")
PACKAGE: Final = ROOT / "tensorfusion_dra"
CODE: Final = re.compile(r"`([^`]+)`")
PATH: Final = re.compile(r"[a-z_]+(/[a-z0-9_]+)*(\.py|\.yaml|\.toml)?")
NOT_PATHS: Final = frozenset({"doctor", "top", "why"})
"""Verbs, which look like paths."""
HIDDEN: Final = frozenset({"__main__"})
"""Layers that the drawing leaves out."""


def mentioned() -> list[str]:
    """Return each piece of code in the page's prose and tables that reads as a path.

    The tables of test_page_of_the_code.py are compared with the code there.
    """
    rest = LAYOUT
    for table in ("threads", "locks", "tests", "glossary"):
        rest = rest.replace(markdown.marked(LAYOUT, table), "")
    found = CODE.findall(markdown.prose(rest))
    return sorted({code for code in found if PATH.fullmatch(code)} - NOT_PATHS)


def contract(name: str) -> list[set[str]]:
    """Return the layers of an import contract, the highest first."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    (layers,) = (each["layers"] for each in contracts if each["id"] == name)
    return [set(layer.split(" | ")) for layer in layers]


def drawing(marker: str) -> list[set[str]]:
    """Return the names in each line of a drawing, without the explanations at its right."""
    start = LAYOUT.index(f"<!-- {marker}:")
    (block,) = re.findall(
        r"```\n(.*?)```", LAYOUT[start : LAYOUT.index("<!-- end", start)], re.DOTALL
    )
    names = [re.split(r" {4,}(?=[a-zA-Z][^ ]* )", line)[0] for line in block.splitlines()]
    return [set(line.split()) for line in names]


@pytest.mark.parametrize("path", mentioned())
def test_every_path_exists_in_the_package_or_at_the_top(path: str) -> None:
    assert (PACKAGE / path).exists() or (ROOT / path).exists()


@pytest.mark.parametrize(("marker", "name"), [("layers", "arrows"), ("rooms", "rooms")])
def test_drawing_is_the_import_contract(marker: str, name: str) -> None:
    assert drawing(marker) == [layer for layer in contract(name) if layer - HIDDEN]


def test_example_of_the_simulators_page_needs_the_packages_alone() -> None:
    (example,) = (
        target
        for target in markdown.links(markdown.text(ROOT / "docs" / "simulator.md"))
        if target.endswith(".py")
    )
    tree = ast.parse((ROOT / "docs" / example).read_text(encoding="utf-8"))

    modules = {
        name.partition(".")[0]
        for each in ast.walk(tree)
        for name in (
            [found.name for found in each.names]
            if isinstance(each, ast.Import)
            else [each.module or ""]
            if isinstance(each, ast.ImportFrom)
            else []
        )
    }
    assert modules <= {
        *sys.stdlib_module_names,
        "dra_simulator",
        "grpc",
        "tensorfusion_dra",
        "yaml",
    }


WITH_COMMANDS = (*sorted((ROOT / "docs").glob("*.md")), *sorted(ROOT.glob("*.md")))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_is_run_on_a_cluster_or_says_why_not(page: Path) -> None:
    for block in markdown.typed_blocks(page):
        assert block.ways or block.reason, block.place
        assert block.ways <= set(WAYS), block.place


@pytest.mark.parametrize("page", [INSTALL, USE, MAINTAIN], ids=lambda page: page.name)
def test_commands_of_a_page_are_run_in_both_ways(page: Path) -> None:
    ways = (block.ways for block in markdown.typed_blocks(page))

    assert set().union(*ways) == set(WAYS)


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=lambda page: page.name)
def test_upgrades_keep_the_values_and_packages_are_of_the_checkout_until_a_release(
    page: Path,
) -> None:
    text = page.read_text(encoding="utf-8")
    is_released = "(unreleased)" not in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")

    assert re.findall(r"\$ helm upgrade (?!.*--values values.yaml).*", text) == []
    assert is_released or not re.findall(r"^\$ pip install '?tensorfusion.*", text, re.MULTILINE)


TROUBLE: Final = (ROOT / "docs" / "troubleshoot.md").read_text()


def test_documented_events_are_in_the_code_that_logs() -> None:
    documented = [
        each for row in markdown.table(TROUBLE, "events") for each in markdown.codes(row[0])
    ]
    sources = (file.read_text() for file in PACKAGE.rglob("*.py"))
    logging = "".join(source for source in sources if "structlog" in source)

    assert len(documented) == len(set(documented)) > 0
    assert [event for event in documented if f'"{event}"' not in logging] == []


@pytest.mark.parametrize(("name", "values"), [("stages", Stage), ("results", Result)])
def test_stages_and_results_are_documented_in_their_order(
    name: str, values: type[Stage | Result]
) -> None:
    assert markdown.codes(markdown.marked(TROUBLE, name)) == [each.value for each in values]


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


def test_page_has_every_field_and_no_other() -> None:
    (shape,) = markdown.blocks(STATUS, "yaml")
    documented = set(fields(yaml_text.load(shape)))

    written = {
        field
        for scene in (scenes.typical, scenes.broken)
        for field in fields(observed.as_json(scene()))
    }

    nullable = {
        *("enforcer", "cards[].foreign"),
        *(f"shares[].{each}" for each in ("enforcement", "limitChanged", "used")),
    }
    assert documented | nullable == written
