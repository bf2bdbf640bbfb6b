"""Commands and files of the pages, and in which ways of installing the driver a test runs them.

A block that a reader types or writes has a comment before it. It names the ways in which the test
on a real cluster runs the block, or says why it does not:

    <!-- e2e: helm, kubectl -->
    <!-- e2e: no, needs GPUs -->
"""

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.markdown import ROOT, Command

INSTALL: Final = ROOT / "docs" / "install.md"
USE: Final = ROOT / "docs" / "use.md"
PAGES: Final = (INSTALL, USE, ROOT / "docs" / "advanced.md")
WAYS: Final = ("helm", "kubectl")

_BLOCK: Final = re.compile(
    r"^(?:(?P<marker> *<!-- e2e: .*? -->)\n)?(?P<indent> *)```(?P<language>[a-z]+)\n"
    r"(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
_MARKER: Final = re.compile(r"<!-- e2e: (?:no, (?P<reason>.+)|(?P<ways>[a-z]+(?:, [a-z]+)*)) -->")
_FILE: Final = re.compile(r"# (?P<name>[\w.-]+\.yaml)\n")
_HEADING: Final = re.compile(r"^## (.+)$", re.MULTILINE)
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


def blocks(page: Path) -> Iterator[Block]:
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
            section=(_HEADING.findall(before) or [""])[-1],
            ways=frozenset((marker["ways"] or "").split(", ") if marker else ()) - {""},
            reason=(marker["reason"] or "") if marker else "",
            file=file["name"] if file else "",
            text=text,
        )
