"""The tables of docs/monitoring.md, and what they say of each metric."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tests.support import markdown

PAGE: Final = markdown.text(markdown.ROOT / "docs" / "monitoring.md")
NODE_PLUGIN: Final = "Metrics of the node plugin"
WEBHOOK: Final = "Metrics of the webhook"
_BOTH: Final = "Metrics of both"

_OF_SHARE: Final = frozenset({"namespace", "claim", "request", "uuid", "share_id"})
"""Labels for which the tables write "share"."""
_SHARE: Final = re.compile(r"\bshare\b")


@dataclass(frozen=True)
class Row:
    """One row of a table."""

    kind: str
    labels: frozenset[str]
    meaning: str


def table(process: str) -> Mapping[str, Row]:
    """Return the rows about the metrics of a process by name; a row may be about several names.

    Args:
        process: The heading of its section: NODE_PLUGIN or WEBHOOK.
    """
    found: dict[str, Row] = {}
    for names, kind, labels, meaning in (*_rows(process), *_rows(_BOTH)):
        more = _OF_SHARE if _SHARE.search(labels) else frozenset()
        for name in markdown.codes(names):
            assert name not in found
            found[name] = Row(kind, more.union(markdown.codes(labels)), meaning)
    return found


def _rows(heading: str) -> list[list[str]]:
    return markdown.table(PAGE[PAGE.index(f"\n## {heading}\n") :], "metrics")
