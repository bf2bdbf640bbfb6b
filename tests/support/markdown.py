"""Parser of the project's documents for tests: headings, links, console blocks, tables.

A block that a reader types or writes has a comment before it. It names the ways of installing the
driver in which the test on a real cluster runs the block, or says why it does not:

    <!-- e2e: helm, kubectl -->
    <!-- e2e: no, needs GPUs -->
"""

import re
import textwrap
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]

_FENCE: Final = re.compile(
    r"^```(?P<language>[a-z]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
_HEADING: Final = re.compile(r"^(?P<level>#{1,6}) (?P<text>.+)$", re.MULTILINE)
_LINK: Final = re.compile(r"!?\[[^\]]*\]\((?P<target>[^)\s]+)\)")
_INLINE: Final = re.compile(r"!?\[(?P<text>[^\]]*)\]\([^)]*\)")
_NO_ANCHOR: Final = re.compile(r"[^\w\- ]")
_SET_ANCHOR: Final = re.compile(r'<a id="([^"]+)">')
_CELL_CODE: Final = re.compile(r"`([^`]+)`")
ELIDED: Final = "..."


@dataclass(frozen=True, slots=True)
class Command:
    """A command of a console block, with the output shown for it."""

    line: str
    output: tuple[str, ...]


def text(file: Path) -> str:
    """Return a document's text."""
    return file.read_text(encoding="utf-8")


def prose(document: str) -> str:
    """Return a document without its fenced blocks."""
    return _FENCE.sub("", document)


def blocks(document: str, language: str) -> list[str]:
    """Return the fenced blocks of a language."""
    return [each["text"] for each in _FENCE.finditer(document) if each["language"] == language]


def commands(document: str) -> Iterator[Command]:
    """Yield every command of the console blocks, with its output."""
    for block in blocks(document, "console"):
        found: list[list[str]] = []
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append([line[2:]])
            else:
                found[-1].append(line)
        for first, *output in found:
            yield Command(first, tuple(output))


def headings(document: str) -> list[str]:
    """Return the levels of the headings, in order, as ``#`` signs."""
    return [each["level"] for each in _HEADING.finditer(prose(document))]


def anchors(document: str) -> set[str]:
    """Return the anchors that the document sets, and those that GitHub gives the headings.

    The latter are in lower case, without punctuation, blanks as dashes; repeated ones are numbered.
    """
    seen: Counter[str] = Counter()
    found = set(_SET_ANCHOR.findall(prose(document)))
    for heading in _HEADING.finditer(prose(document)):
        plain = _INLINE.sub(lambda link: link["text"], heading["text"])
        anchor = _NO_ANCHOR.sub("", plain.strip().lower()).replace(" ", "-")
        found.add(f"{anchor}-{seen[anchor]}" if seen[anchor] else anchor)
        seen[anchor] += 1
    return found


def links(document: str) -> list[str]:
    """Return the targets of all links and pictures, in order."""
    return [each["target"] for each in _LINK.finditer(prose(document))]


def marked(document: str, name: str) -> str:
    """Return the text between the comments ``name: ...`` and ``end of name``."""
    _, _, rest = document.partition(f"<!-- {name}: ")
    inside, end, _ = rest.partition(f"<!-- end of {name} -->")
    assert end, f"found no comments {name}"
    return inside


def table(document: str, name: str) -> list[list[str]]:
    """Return the cells of the table in marked()."""
    rows = [line for line in marked(document, name).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]]


def codes(cell: str) -> list[str]:
    """Return the texts of a cell that are in back quotes."""
    return _CELL_CODE.findall(cell)


def is_shown(shown: tuple[str, ...], printed: list[str]) -> bool:
    """Return True if the shown lines match the printed ones; ``...`` stands for any lines."""
    pattern = "".join(
        r"(?:.*\n)*?" if line == ELIDED else re.escape(line) + r"\n" for line in shown
    )
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in printed)) is not None


INSTALL: Final = ROOT / "docs" / "install.md"
USE: Final = ROOT / "docs" / "use.md"
MAINTAIN: Final = ROOT / "docs" / "maintain.md"
PAGES: Final = (INSTALL, USE, MAINTAIN, ROOT / "docs" / "migrate.md", ROOT / "docs" / "advanced.md")
WAYS: Final = ("helm", "kubectl")

_BLOCK: Final = re.compile(
    r"^(?:(?P<marker> *<!-- e2e: .*? -->)\n)?(?P<indent> *)```(?P<language>[a-z]+)\n"
    r"(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
_MARKER: Final = re.compile(r"<!-- e2e: (?:no, (?P<reason>.+)|(?P<ways>[a-z]+(?:, [a-z]+)*)) -->")
_FILE: Final = re.compile(r"# (?P<name>[\w.-]+\.yaml)\n")
_SECTION: Final = re.compile(r"^## (.+)$", re.MULTILINE)
_GOES_ON: Final = ("\\", "|", "&&")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A block that a reader types, or writes to a file.

    Attributes:
        place: The page and the line.
        section: The heading above it.
        ways: The ways of installing in which the test runs it.
        reason: Why the test does not run it; empty if it does, or if the page does not say.
        file: The file to write; empty for commands.
    """

    place: str
    section: str
    ways: frozenset[str]
    reason: str
    file: str
    text: str

    def commands(self) -> Iterator[Command]:
        """Yield the commands, each with the output shown for it."""
        found: list[tuple[list[str], list[str]]] = []
        for line in self.text.splitlines():
            if line.startswith("$ "):
                found.append(([line[2:]], []))
            elif not found[-1][1] and found[-1][0][-1].endswith(_GOES_ON):
                found[-1][0].append(line)
            else:
                found[-1][1].append(line)
        for typed, output in found:
            yield Command("\n".join(typed), tuple(output))


def typed_blocks(page: Path) -> Iterator[Block]:
    """Yield every console block of a page, and every file that the page has the reader write."""
    document = page.read_text(encoding="utf-8")
    for each in _BLOCK.finditer(document):
        text = textwrap.dedent(each["text"])
        file = _FILE.match(text) if each["language"] == "yaml" else None
        if each["language"] != "console" and file is None:
            continue
        before = document[: each.start("language")]
        marker = _MARKER.fullmatch((each["marker"] or "").strip())
        yield Block(
            place=f"{page.relative_to(ROOT)}:{before.count(chr(10)) + 1}",
            section=(_SECTION.findall(before) or [""])[-1],
            ways=frozenset((marker["ways"] or "").split(", ") if marker else ()) - {""},
            reason=(marker["reason"] or "") if marker else "",
            file=file["name"] if file else "",
            text=text,
        )
