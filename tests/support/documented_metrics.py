"""The tables of docs/monitoring.md: type and labels of each metric."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tests.support import markdown

PAGE: Final = markdown.text(markdown.ROOT / "docs" / "monitoring.md")
NODE_PLUGIN: Final = "node plugin metrics"
WEBHOOK: Final = "webhook metrics"
_BOTH: Final = "common metrics"

_KINDS: Final = {"_total": "counter", "_duration_seconds": "histogram", "_info": "info"}
"""Types by the end of a name; all other metrics are gauges, as the page says."""

OF_SHARE: Final = frozenset({"namespace", "claim", "request", "uuid", "share_id"})
"""Labels for which the tables write "share"."""
_SHARE: Final = re.compile(r"\bshare\b")


@dataclass(frozen=True)
class Row:
    """What the page says of one metric."""

    kind: str
    labels: frozenset[str]


def table(process: str) -> Mapping[str, Row]:
    """Return the rows about the metrics of a process by name; a row may be about several names.

    Args:
        process: The name of its table: NODE_PLUGIN or WEBHOOK.
    """
    found: dict[str, Row] = {}
    for names, labels in (*markdown.table(PAGE, process), *markdown.table(PAGE, _BOTH)):
        more = OF_SHARE if _SHARE.search(labels) else frozenset()
        for name in markdown.codes(names):
            assert name not in found
            kind = next((kind for end, kind in _KINDS.items() if name.endswith(end)), "gauge")
            found[name] = Row(kind, more.union(markdown.codes(labels)))
    return found
