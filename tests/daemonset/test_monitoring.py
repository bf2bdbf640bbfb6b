"""Rules, alerts and dashboard name only what exists, and promtool's tests of the rules pass."""

import functools
import itertools
import json
import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import pytest
import yaml

from tests.support import documented_metrics, helm, markdown, promql, yaml_text
from tests.support.helm import Document
from tests.support.promql import Labels, QueryError
from tests.support.waiting import PATIENCE_SECONDS

ROOT: Final = markdown.ROOT
FOLDER: Final = ROOT / "daemonset" / "chart" / "monitoring"
RULES: Final = FOLDER / "rules.yaml"
PAGE: Final = markdown.text(ROOT / "docs" / "monitoring.md")
SCALE: Final = markdown.text(ROOT / "docs" / "scale.md")

Rule = dict[str, Any]

ALL_RULES: Final[list[Rule]] = [
    rule
    for group in yaml_text.load(RULES.read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
]
RECORDS: Final = [rule for rule in ALL_RULES if "record" in rule]
ALERTS: Final = [rule for rule in ALL_RULES if "alert" in rule]
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
    "kube_pod_status_unschedulable": TARGET | {"namespace", "pod", "uid"},
}


def own_series() -> dict[str, Labels]:
    """Return the driver's series with their labels, as docs/monitoring.md lists them.

    The list is compared with the real answers of node plugin and webhook.
    """
    found: dict[str, Labels] = {}
    for process in (documented_metrics.NODE_PLUGIN, documented_metrics.WEBHOOK):
        for name, row in documented_metrics.listed(process).items():
            labels = TARGET | row.labels
            if row.kind == "histogram":
                found[f"{name}_bucket"] = labels | {"le"}
                found[f"{name}_count"] = found[f"{name}_sum"] = labels
            else:
                found[name] = labels
    return found


@functools.cache
def all_series() -> Mapping[str, Labels]:
    """Return every series that a query may name: ours, DCGM's and the recorded ones.

    Raises:
        QueryError: A recording rule has an error, or uses a series that is recorded after it.
    """
    known = {**OF_OTHERS, **own_series()}
    for rule in RECORDS:
        known[rule["record"]] = promql.labels(rule["expr"], known)
    return MappingProxyType(known)


LEVELS: Mapping[str, set[str]] = {
    "cluster": set(),
    "namespace": {"namespace"},
    "namespace_pool": {"namespace", "pool"},
    "namespace_uuid": {"node", "uuid", "namespace"},
    "node_pool": {"node", "pool"},
    "pool": {"pool"},
    "node": {"node"},
    "pod_uuid": {"node", "uuid", "namespace", "pod"},
    "uuid": {"node", "uuid"},
}
"""The labels of a recorded series, by the first part of its name."""

WITHOUT_NODE = {"uuid:dcgm_gpu_utilization:ratio", "uuid:dcgm_vram_used_bytes:max"}
"""DCGM does not name the node as we do."""

UNIT_TESTS = sorted((ROOT / "tests" / "daemonset").glob("*tests*.yaml"))
LABEL_OF_TEMPLATE = re.compile(r"\$labels\.(\w+)")
DOCUMENTED_ALERT = re.compile(r'<a id="(\w+)"></a>(\w+)')
"""The first cell of an alert: the anchor, to which its runbook_url leads, and the name."""


@pytest.mark.parametrize("rule", RECORDS, ids=lambda rule: rule["record"])
def test_labels_of_a_recorded_series_are_those_of_its_level(rule: Rule) -> None:
    level = LEVELS[rule["record"].partition(":")[0]]

    found = all_series()[rule["record"]]

    assert found == level - ({"node"} if rule["record"] in WITHOUT_NODE else set())


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_alert_names_only_what_exists_and_has_a_runbook(rule: Rule) -> None:
    annotations = rule["annotations"]
    in_texts = {name for text in annotations.values() for name in LABEL_OF_TEMPLATE.findall(text)}
    path, _, anchor = annotations["runbook_url"].partition("#")

    assert in_texts <= promql.labels(rule["expr"], all_series())
    assert annotations.keys() == {"summary", "description", "runbook_url"}
    assert rule["labels"]["severity"] in {"critical", "warning", "info"}
    assert anchor == rule["alert"].lower()
    assert anchor in markdown.anchors(markdown.text(ROOT / path))


def test_documented_alerts_are_those_of_the_rules() -> None:
    documented = [
        anchor_and_name
        for cell, _ in markdown.table(PAGE, "alerts")
        for anchor_and_name in DOCUMENTED_ALERT.findall(cell)
    ]

    assert documented == [(rule["alert"].lower(), rule["alert"]) for rule in ALERTS]


def test_documented_queries_name_only_what_exists() -> None:
    blocks = [*markdown.blocks(PAGE, "promql"), *markdown.blocks(SCALE, "promql")]
    blocks += re.findall(r"^ +query: (.*)$", SCALE, re.MULTILINE)
    queries = [line.partition("#")[0] for block in blocks for line in block.splitlines()]

    assert queries
    for query in queries:
        promql.labels(query, all_series())


def scrape_configuration() -> Document:
    """Return Prometheus' configuration that the page shows."""
    (found,) = (block for block in markdown.blocks(PAGE, "yaml") if "scrape_configs:" in block)
    document: Document = yaml_text.load(found)
    return document


@pytest.mark.process
def test_documented_scrape_configuration_gives_the_labels_of_the_pod_monitor() -> None:
    (job,) = scrape_configuration()["scrape_configs"]
    monitor = helm.one(helm.render({"monitoring": {"enabled": True}}), "PodMonitor")
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]

    given = {
        step["target_label"]: (step["source_labels"], step.get("replacement"))
        for step in job["relabel_configs"]
        if "target_label" in step
    }
    assert given == {
        # The operator adds these two itself.
        "namespace": (["__meta_kubernetes_namespace"], None),
        "pod": (["__meta_kubernetes_pod_name"], None),
        **{
            step["targetLabel"]: (step["sourceLabels"], step.get("replacement"))
            for step in endpoint["relabelings"]
        },
    }
    assert job["honor_labels"] == endpoint["honorLabels"] is True


@pytest.mark.process
@pytest.mark.parametrize(
    ("prices", "expr"),
    [
        ({}, "1 * max by (node, uuid) (tensorfusion_dra_card_info)"),
        (
            {"H100": 4, "A100": 2.5},
            '2.5 * max by (node, uuid) (tensorfusion_dra_card_info{model="A100"})'
            ' or 4 * max by (node, uuid) (tensorfusion_dra_card_info{model="H100"})',
        ),
    ],
)
def test_cards_cost_what_the_chart_says(prices: dict[str, float], expr: str) -> None:
    values = {"monitoring": {"enabled": True, "pricePerHour": prices}}

    rules = helm.one(helm.render(values), "PrometheusRule")["spec"]["groups"]

    (found,) = (
        rule["expr"]
        for group in rules
        for rule in group["rules"]
        if rule.get("record") == "uuid:tensorfusion_dra_card_cost_per_hour:max"
    )
    assert found.startswith(f"({expr}) * on (node, uuid) (")
    assert promql.labels(found, all_series()) == LEVELS["uuid"]


def test_every_alert_has_a_unit_test() -> None:
    tests = "".join(file.read_text() for file in UNIT_TESTS)

    fired = set(re.findall(r'alertname="(\w+)"', tests))

    assert fired == {rule["alert"] for rule in ALERTS}


Panel = dict[str, Any]

DASHBOARD: dict[str, Any] = json.loads((FOLDER / "dashboard.json").read_text(encoding="utf-8"))
PANELS: list[Panel] = DASHBOARD["panels"]
TARGETS = [(panel, target) for panel in PANELS for target in panel.get("targets", [])]
MACROS = {"$__rate_interval": "5m", "$node": ".*", "$namespace": ".*"}
KNOWN = {
    **all_series(),
    "ALERTS": frozenset({"alertname", "alertstate", "severity"}),
}
LABEL_OF_LEGEND = re.compile(r"\{\{(\w+)\}\}")
VALUES_QUERY = re.compile(r"^label_values\((\w+),(\w+)\)$")


def labels(query: str) -> promql.Labels:
    """Return the labels of the result, after Grafana has put values in for its variables."""
    for name, value in MACROS.items():
        query = query.replace(name, value)
    assert "$" not in query
    return promql.labels(query, KNOWN)


@pytest.mark.parametrize(
    ("panel", "target"),
    TARGETS,
    ids=[f"{panel['title']}-{target['refId']}" for panel, target in TARGETS],
)
def test_query_and_legend_name_only_what_exists(panel: Panel, target: dict[str, Any]) -> None:
    found = labels(target["expr"])

    legend = target.get("legendFormat", "")
    assert set(LABEL_OF_LEGEND.findall(legend)) <= found
    if panel["type"] == "timeseries" and found:
        assert legend, "a legend tells the series apart"


def test_costs_are_those_that_their_legends_name() -> None:
    costs = [each for panel, each in TARGETS if panel["title"].startswith("Cost per hour")]

    kinds = [re.findall(r":tensorfusion_dra_(\w+)_cost_", each["expr"]) for each in costs]
    legends = [each["legendFormat"].rpartition(" ")[2] for each in costs]
    assert kinds == [["requested"], ["idle"], ["requested"], ["limited"], ["used"]]
    assert [[each] for each in legends[1:]] == kinds[1:]


@pytest.mark.parametrize(
    "panel",
    [panel for panel in PANELS if panel["type"] == "table"],
    ids=lambda panel: str(panel["title"]),
)
def test_columns_of_a_table_are_labels_of_its_queries(panel: Panel) -> None:
    (options,) = [step["options"] for step in panel["transformations"] if step["id"] == "organize"]
    targets = panel["targets"]
    values = {f"Value #{target['refId']}" for target in targets} if targets[1:] else {"Value"}
    columns = {"Time", *values}.union(*(labels(target["expr"]) for target in targets))
    renamed = options["renameByName"]

    # A plain selector would also have a column __name__, and rows of several queries would not
    # find each other by it.
    assert columns == {*renamed, *options["excludeByName"]}
    shown = {renamed.get(name, name) for name in columns - options["excludeByName"].keys()}
    assert {each["displayName"] for each in panel["options"]["sortBy"]} <= shown
    for override in panel["fieldConfig"]["overrides"]:
        for pattern in alternatives(override["matcher"]):
            assert any(re.search(pattern, name) for name in shown), pattern


def alternatives(matcher: Mapping[str, str]) -> list[str]:
    """Return a pattern for each column, or each group of columns, that an override names."""
    if matcher["id"] == "byName":
        return [f"^{re.escape(matcher['options'])}$"]
    assert matcher["id"] == "byRegexp"
    return matcher["options"].strip("/").split("|")


def test_variables_select_data_source_node_and_namespace() -> None:
    source, *others = DASHBOARD["templating"]["list"]

    expected = {"name": "datasource", "type": "datasource", "query": "prometheus"}
    assert source.items() >= expected.items()
    assert [each["name"] for each in others] == ["node", "namespace"]
    for each in others:
        ((metric, label),) = VALUES_QUERY.findall(each["query"]["query"])
        assert label in own_series()[metric]
        # Without a regular expression in the matcher, several selected values would find nothing.
        assert (each["multi"], each["includeAll"], each["allValue"]) == (True, True, ".*")
    for _, target in TARGETS:
        assert not re.search(r'"\$\w+"', target["expr"].replace('=~"$', ""))


def test_every_query_asks_the_selected_data_source() -> None:
    wanted = {"type": "prometheus", "uid": "${datasource}"}

    for panel in PANELS:
        if panel["type"] != "row":
            assert panel["datasource"] == wanted
            # A query without a data source of its own asks that of its panel.
            assert not any("datasource" in target for target in panel["targets"])


def test_rows_and_panels_do_not_overlap() -> None:
    cells: Counter[tuple[int, int]] = Counter()
    for panel in PANELS:
        place = panel["gridPos"]
        columns = range(place["x"], place["x"] + place["w"])
        cells.update(itertools.product(columns, range(place["y"], place["y"] + place["h"])))

    assert set(cells.values()) == {1}
    assert max(column for column, _ in cells) < 24
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    assert len({panel["title"] for panel in PANELS}) == len(PANELS)


GIVEN = {
    "share": frozenset({"node", "gpu", "pod", "namespace"}),
    "card": frozenset({"node", "gpu", "model"}),
    "calls_total": frozenset({"node", "verb"}),
    "seconds_bucket": frozenset({"node", "verb", "le"}),
}


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ("sum by (node (share)", "unclosed left parenthesis"),
        ("rate(share)", "expected type matrix"),
        ("shares", "shares: no such metric"),
        ('share{card="a"}', r"expected also \['card'\]"),
        ("sum by (card) (share)", r"expected also \['card'\]"),
        ("share / card", r"expected on\(\)"),
        ("share / on (node, gpu) card", "several series for one match"),
        ("share / on (gpu) group_left card", "several series for one match"),
        ("share / on (node, uuid) group_left card", r"expected also \['uuid'\]"),
        ("card / on (node, gpu) group_left (pod) sum by (node, gpu) (share)", "group_left"),
        ("histogram_quantile(0.9, sum by (node) (seconds_bucket))", "histogram_quantile"),
        ('label_replace(share, "uuid", "$1", "UUID", "(.+)")', "label_replace"),
    ],
)
def test_error_names_what_is_wrong(query: str, error: str) -> None:
    with pytest.raises(QueryError, match=error):
        promql.labels(query, GIVEN)


def promtool(*arguments: str | Path) -> str:
    """Return what promtool prints; fail if it finds an error, and skip the test without it."""
    found = os.environ.get("PROMTOOL") or shutil.which("promtool")
    if not found:
        pytest.skip(
            "found no promtool on PATH and no variable PROMTOOL; no package of PyPI brings it "
            "(hack/promtool gets it from Debian's package prometheus)"
        )
    answer = subprocess.run(
        [Path(found).resolve(), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS * 5,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return answer.stdout


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    return Path(shutil.copy(RULES, tmp_path / "rules.yml"))


@pytest.mark.process
def test_rules_have_no_fault(rules: Path) -> None:
    printed = promtool("check", "rules", "--lint=all", "--lint-fatal", rules)

    assert f"{len(ALL_RULES)} rules found" in printed


@pytest.mark.process
@pytest.mark.parametrize("file", UNIT_TESTS, ids=lambda file: file.stem)
def test_unit_tests_of_the_rules(file: Path, rules: Path) -> None:
    shutil.copy(file, rules.parent)

    printed = promtool("test", "rules", rules.parent / file.name)

    assert "SUCCESS" in printed


@pytest.mark.process
def test_documented_scrape_configuration_is_valid(tmp_path: Path) -> None:
    found = scrape_configuration()
    # Debian builds promtool without the discovery of pods.
    (job,) = found["scrape_configs"]
    assert job.pop("kubernetes_sd_configs")[0]["role"] == "pod"
    job["static_configs"] = [{"targets": ["localhost:8081"]}]
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(found))

    assert "SUCCESS" in promtool("check", "config", "--syntax-only", tmp_path / "prometheus.yml")
