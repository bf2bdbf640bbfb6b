"""The dashboard's queries name only what exists, and its layout is one that Grafana accepts."""

import itertools
import re
from typing import Any

import pytest

from tests.support import monitoring, promql

Panel = dict[str, Any]

DASHBOARD = monitoring.dashboard()
PANELS: list[Panel] = DASHBOARD["panels"]
ROWS = ["Cluster", "Cards and tenants", "Prepares", "Health", "API server and slices", "Webhook"]
TYPES = {"heatmap", "row", "stat", "state-timeline", "table", "timeseries"}
MACROS = {"$__rate_interval": "5m", "$node": ".*", "$namespace": ".*"}
QUERIES = [
    pytest.param(panel, target, id=f"{panel['title']}-{target['refId']}")
    for panel in PANELS
    for target in panel.get("targets", [])
]
KNOWN = {
    **monitoring.all_series(),
    "ALERTS": frozenset({"alertname", "alertstate", "severity"}),
}
LABEL_OF_LEGEND = re.compile(r"\{\{(\w+)\}\}")
VALUES_QUERY = re.compile(r"label_values\((?P<metric>\w+),(?P<label>\w+)\)")


def labels(query: str) -> promql.Labels:
    """Return the labels of the result, after Grafana has put values in for its variables."""
    for name, value in MACROS.items():
        query = query.replace(name, value)
    assert "$" not in query
    return promql.labels(query, KNOWN)


@pytest.mark.parametrize(("panel", "target"), QUERIES)
def test_query_and_legend_name_only_what_exists(panel: Panel, target: dict[str, Any]) -> None:
    found = labels(target["expr"])

    assert set(LABEL_OF_LEGEND.findall(target["legendFormat"])) <= found
    if panel["type"] == "timeseries" and found:
        assert target["legendFormat"], "a legend tells the series apart"


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
    named = {each["matcher"]["options"] for each in panel["fieldConfig"]["overrides"]}
    assert named | {each["displayName"] for each in panel["options"]["sortBy"]} <= shown


def test_variables_select_data_source_node_and_namespace() -> None:
    source, *others = DASHBOARD["templating"]["list"]

    assert (source["name"], source["type"], source["query"]) == (
        "datasource",
        "datasource",
        "prometheus",
    )
    assert [each["name"] for each in others] == ["node", "namespace"]
    for each in others:
        match = VALUES_QUERY.fullmatch(each["query"]["query"])
        assert match is not None
        assert match["label"] in monitoring.own_series()[match["metric"]]
        # Without a regular expression in the matcher, several selected values would find nothing.
        assert (each["multi"], each["includeAll"], each["allValue"]) == (True, True, ".*")
    for panel in PANELS:
        for target in panel.get("targets", []):
            assert not re.search(r'"\$\w+"', target["expr"].replace('=~"$', ""))


def test_every_query_asks_the_selected_data_source() -> None:
    wanted = {"type": "prometheus", "uid": "${datasource}"}

    for panel in PANELS:
        if panel["type"] != "row":
            assert panel["datasource"] == wanted
            assert all(target["datasource"] == wanted for target in panel["targets"])


def test_rows_and_panels_do_not_overlap() -> None:
    cells: set[tuple[int, int]] = set()
    for panel in PANELS:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        own = set(
            itertools.product(
                range(place["x"], place["x"] + place["w"]),
                range(place["y"], place["y"] + place["h"]),
            )
        )
        assert not own & cells, panel["title"]
        cells |= own

    assert [panel["title"] for panel in PANELS if panel["type"] == "row"] == ROWS
    assert {panel["type"] for panel in PANELS} == TYPES
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    assert len({panel["title"] for panel in PANELS}) == len(PANELS)
