"""The lists of docs/monitoring.md: type and labels of each metric."""

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
"""Labels for which the lists write "share"."""
_METRIC: Final = re.compile(r"^(?P<name>[a-z_]+)(?:\{(?P<labels>[a-z_, ]+)\})?$", re.MULTILINE)
_LABEL: Final = re.compile(r"[a-z_]+")


@dataclass(frozen=True)
class Row:
    """What the page says of one metric."""

    kind: str
    labels: frozenset[str]


def listed(process: str) -> Mapping[str, Row]:
    """Return what the page says of the metrics of a process, by name.

    Args:
        process: The name of its list: NODE_PLUGIN or WEBHOOK.
    """
    found: dict[str, Row] = {}
    lists = "".join(markdown.marked(PAGE, name) for name in (process, _BOTH))
    for line in _METRIC.finditer(lists):
        name, labels = line["name"], set(_LABEL.findall(line["labels"] or ""))
        if "share" in labels:
            labels = labels - {"share"} | OF_SHARE
        kind = next((kind for end, kind in _KINDS.items() if name.endswith(end)), "gauge")
        assert name not in found
        found[name] = Row(kind, frozenset(labels))
    return found
