"""The manifests for Prometheus and Grafana, and the series that their queries may name."""

import functools
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from os import environ
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import pytest

from tests.support import documented_metrics, markdown, promql, yaml_text
from tests.support.promql import Labels

FOLDER: Final = markdown.ROOT / "daemonset" / "chart" / "monitoring"
RULES: Final = FOLDER / "rules.yaml"
DASHBOARD: Final = FOLDER / "dashboard.json"

TARGET: Final = frozenset({"job", "instance", "namespace", "pod", "container", "endpoint", "node"})
"""Labels that a scrape by the PodMonitor gives every series."""

DCGM: Final = frozenset(
    {"gpu", "UUID", "pci_bus_id", "device", "modelName", "Hostname", "uuid", "hostname"}
)
"""Labels of dcgm-exporter's metrics of cards. `uuid` replaces `UUID` with --use-old-namespace."""

OF_OTHERS: Final[Mapping[str, Labels]] = {
    "up": TARGET,
    "DCGM_FI_DEV_GPU_UTIL": DCGM | TARGET,
    "DCGM_FI_DEV_FB_USED": DCGM | TARGET,
}
_OF_HISTOGRAM: Final[Mapping[str, Labels]] = {
    "_bucket": frozenset({"le"}),
    "_count": frozenset(),
    "_sum": frozenset(),
}
_OF_SINGLE_SERIES: Final[Mapping[str, Labels]] = {"": frozenset()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A recording rule, which has the series' name, or an alert, which has the other fields."""

    record: str = ""
    alert: str = ""
    expr: str
    wait: str = ""
    severity: str = ""
    annotations: Mapping[str, str]


def rules() -> list[Rule]:
    """Return all rules in the order of the file."""
    groups = yaml_text.load(RULES.read_text(encoding="utf-8"))["spec"]["groups"]
    return [
        Rule(
            record=rule.get("record", ""),
            alert=rule.get("alert", ""),
            expr=rule["expr"],
            wait=rule.get("for", ""),
            severity=rule.get("labels", {}).get("severity", ""),
            annotations=rule.get("annotations", {}),
        )
        for group in groups
        for rule in group["rules"]
    ]


def alerts() -> list[Rule]:
    return [rule for rule in rules() if rule.alert]


def plain_rules() -> str:
    """Return the rules as a file for Prometheus without the operator, as docs/install.md makes it.

    That is everything from the line `groups:` on, with two blanks less before each line.
    """
    text = RULES.read_text(encoding="utf-8")
    return "".join(
        line.removeprefix("  ")
        for line in text[text.index("  groups:\n") :].splitlines(keepends=True)
    )


def dashboard() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    return loaded


def own_series() -> dict[str, Labels]:
    """Return the driver's series with their labels, as docs/metrics.md lists them.

    The table is compared with the real answers of node plugin and webhook.
    """
    found: dict[str, Labels] = {}
    for process in (documented_metrics.NODE_PLUGIN, documented_metrics.WEBHOOK):
        for name, row in documented_metrics.table(process).items():
            suffixes = _OF_HISTOGRAM if row.kind == "histogram" else _OF_SINGLE_SERIES
            for suffix, labels in suffixes.items():
                found[f"{name}{suffix}"] = TARGET | row.labels | labels
    return found


@functools.cache
def all_series() -> Mapping[str, Labels]:
    """Return every series that a query may name: ours, DCGM's and the recorded ones.

    Raises:
        QueryError: A recording rule has an error, or uses a series that is recorded after it.
    """
    known = {**OF_OTHERS, **own_series()}
    for rule in rules():
        if rule.record:
            known[rule.record] = promql.labels(rule.expr, known)
    return MappingProxyType(known)


def promtool() -> str:
    """Return the path of promtool; skip the test on a machine without it."""
    found = environ.get("PROMTOOL") or shutil.which("promtool")
    if not found:
        pytest.skip(
            "found no promtool on PATH and no variable PROMTOOL; no package of PyPI brings it "
            "(hack/promtool gets it from Debian's package prometheus)"
        )
    return str(Path(found).resolve())
