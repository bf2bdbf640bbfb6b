"""Rules and alerts name only what exists, and every alert has a runbook."""

import re
import subprocess
from collections.abc import Mapping

import pytest

from tests.support import helm, markdown, monitoring, promql, yaml_text
from tests.support.monitoring import Rule

ROOT = markdown.ROOT
LEVELS: Mapping[str, set[str]] = {
    "cluster": set(),
    "namespace": {"namespace"},
    "node": {"node"},
    "pod_uuid": {"node", "uuid", "namespace", "pod"},
    "uuid": {"node", "uuid"},
}
"""The labels of a recorded series, by the first part of its name."""

WITHOUT_NODE = {"uuid:dcgm_gpu_utilization:ratio", "uuid:dcgm_vram_used_bytes:max"}
"""DCGM does not name the node as we do."""

RECORDS = [rule for rule in monitoring.rules() if rule.record]
ALERTS = monitoring.alerts()
UNIT_TESTS = sorted((ROOT / "tests" / "daemonset").glob("*tests*.yaml"))
LABEL_OF_TEMPLATE = re.compile(r"\$labels\.(\w+)")
DOCUMENTED_ALERT = re.compile(r"^### (\w+)\n\n\*\*(\w+), (\w+):\*\* ", re.MULTILINE)
"""The heading of a runbook, and the start of its first line."""


@pytest.mark.parametrize("rule", RECORDS, ids=lambda rule: rule.record)
def test_labels_of_a_recorded_series_are_those_of_its_level(rule: Rule) -> None:
    level = LEVELS[rule.record.partition(":")[0]]

    found = monitoring.all_series()[rule.record]

    assert found == level - ({"node"} if rule.record in WITHOUT_NODE else set())


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule.alert)
def test_alert_names_only_what_exists(rule: Rule) -> None:
    found = promql.labels(rule.expr, monitoring.all_series())

    in_texts = {name for text in rule.annotations.values() for name in labels_of_template(text)}
    assert in_texts <= found
    assert set(rule.annotations) == {"summary", "description", "runbook"}
    assert rule.severity in {"critical", "warning", "info"}


def labels_of_template(text: str) -> list[str]:
    return LABEL_OF_TEMPLATE.findall(text)


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule.alert)
def test_alert_has_a_runbook(rule: Rule) -> None:
    path, _, anchor = rule.annotations["runbook"].partition("#")

    assert anchor == rule.alert.lower()
    assert anchor in markdown.anchors(markdown.text(ROOT / path))


def test_every_rule_has_a_name_of_its_own() -> None:
    names = [rule.record or rule.alert for rule in monitoring.rules()]

    assert len(set(names)) == len(names)


def test_documented_alerts_are_those_of_the_rules() -> None:
    documented = DOCUMENTED_ALERT.findall(markdown.text(ROOT / "docs" / "alerts.md"))

    assert sorted(documented) == sorted((rule.alert, rule.severity, rule.wait) for rule in ALERTS)


def test_documented_recording_rules_are_those_of_the_rules() -> None:
    rows = markdown.table(markdown.text(ROOT / "docs" / "metrics.md"), "recorded")

    documented = [name for row in rows for name in markdown.codes(row[0])]

    assert documented == [rule.record for rule in RECORDS]


@pytest.mark.parametrize("name", ["metrics.md", "alerts.md"])
def test_documented_queries_name_only_what_exists(name: str) -> None:
    blocks = markdown.blocks(markdown.text(ROOT / "docs" / name), "promql")
    queries = [line.partition("#")[0] for block in blocks for line in block.splitlines()]

    assert queries
    for query in queries:
        promql.labels(query, monitoring.all_series())


def test_documented_command_prints_the_rules_without_the_operators_object() -> None:
    commands = markdown.commands(markdown.text(ROOT / "docs" / "install.md"))
    (line,) = [command.line for command in commands if command.line.startswith("sed -n")]
    command, _, _ = line.partition(">")

    answer = subprocess.run(
        ["sh", "-c", command], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert answer.stdout == monitoring.plain_rules()
    assert len(yaml_text.load(answer.stdout)["groups"]) > 1


def test_documented_scrape_configuration_gives_the_labels_of_the_pod_monitor() -> None:
    (wanted,) = [
        yaml_text.load(block)["scrape_configs"]
        for block in markdown.blocks(markdown.text(ROOT / "docs" / "install.md"), "yaml")
        if "scrape_configs:" in block
    ]
    (job,) = wanted
    objects = helm.render({"monitoring": {"enabled": True}})
    (monitor,) = [item for item in objects if item["kind"] == "PodMonitor"]
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]

    given = {
        step["target_label"]: (step["source_labels"], step.get("replacement"))
        for step in job["relabel_configs"]
        if "target_label" in step
    }
    # The operator adds these two itself.
    assert given.pop("namespace") == (["__meta_kubernetes_namespace"], None)
    assert given.pop("pod") == (["__meta_kubernetes_pod_name"], None)
    assert given == {
        step["targetLabel"]: (step["sourceLabels"], step.get("replacement"))
        for step in endpoint["relabelings"]
    }
    assert job["honor_labels"] == endpoint["honorLabels"] is True


def test_every_alert_has_a_unit_test() -> None:
    tests = "".join(file.read_text() for file in UNIT_TESTS)

    fired = set(re.findall(r'alertname="(\w+)"', tests))

    assert fired == {rule.alert for rule in ALERTS}
