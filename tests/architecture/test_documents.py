"""The documents' links work, their tables agree with the code, and decisions are indexed."""

import re
from pathlib import Path
from typing import Final

import pytest

from tensorfusion_dra.core import names
from tensorfusion_dra.core.admission.pod_warnings import KNOWN_ANNOTATIONS
from tensorfusion_dra.core.devices.device import Version
from tensorfusion_dra.discovery.simulated import profile
from tests.support import markdown
from tests.support.builders.devices import NODE, published_devices
from tests.support.builders.gpus import gpus
from tests.support.markdown import ROOT

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
    assert sorted(documented) == sorted((*profile.NODE_FIELDS, *profile.GPU_FIELDS))


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
