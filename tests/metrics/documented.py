"""The tables of docs/metrics.md, and what they say of each metric."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tests.support import markdown

PAGE: Final = markdown.text(markdown.ROOT / "docs" / "metrics.md")
SHARE: Final = frozenset({"namespace", "pod", "claim", "request", "uuid", "share_id"})
"""Labels for which the tables write "share"."""

_ROW: Final = re.compile(
    r"^\| `(?P<name>\w+)` \| (?P<kind>\w+) \| (?P<labels>[^|]*)\| (?P<meaning>[^|]*)\|$",
    re.MULTILINE,
)
_LABEL: Final = re.compile(r"`(\w+)`")
_SHARE: Final = re.compile(r"\bshare\b")


@dataclass(frozen=True)
class Row:
    """One row of a table."""

    kind: str
    labels: frozenset[str]
    meaning: str


def table(process: str) -> Mapping[str, Row]:
    """Return the rows about the metrics of a process by name.

    Args:
        process: The heading of its section.
    """
    section = PAGE[PAGE.index(f"\n## {process}\n") :]
    rows = section[section.index("<!-- metrics:") : section.index("<!-- end of metrics -->")]
    found = {row["name"]: _row(row) for row in _ROW.finditer(rows)}
    assert len(found) == sum(line.startswith("| `") for line in rows.splitlines())
    return found


def _row(row: re.Match[str]) -> Row:
    labels = frozenset(_LABEL.findall(row["labels"]))
    if _SHARE.search(row["labels"]):
        labels |= SHARE
    return Row(row["kind"], labels, row["meaning"].strip())
