"""docs/metrics.md names what the processes answer, and nothing else."""

import re

from tensorfusion_dra.core.devices.health import Kind, Sickness, Trouble
from tensorfusion_dra.core.devices.slices import WriteReason
from tests.metrics.scraped import scrape
from tests.support import documented_metrics
from tests.support.builders.node_views import NOW, card_view, node_view, share_view

SICK = Sickness(worst=Trouble(kind=Kind.XID, reason="xid-79", text="XID 79"), since=NOW)
FULL = node_view(cards=(card_view(sickness=SICK),), shares=(share_view(),))
"""A node that has a sample of each metric."""
CODE = re.compile(r"`([^`]+)`")


def words(heading: str) -> set[str]:
    """Return the first column of the tables in a section."""
    start = documented_metrics.PAGE.index(f"\n## {heading}\n")
    end = documented_metrics.PAGE.find("\n## ", start + 1)
    section = documented_metrics.PAGE[start : None if end < 0 else end]
    return set(re.findall(r"^\| `([a-z_]+)` \|", section, re.MULTILINE))


def test_node_plugin_answers_what_is_documented() -> None:
    rows = documented_metrics.table(documented_metrics.NODE_PLUGIN)

    found = scrape(FULL)

    assert found.kinds() == {name: row.kind for name, row in rows.items()}
    assert found.label_names() == {name: row.labels for name, row in rows.items()}


def test_an_empty_node_answers_the_same_metrics() -> None:
    rows = documented_metrics.table(documented_metrics.NODE_PLUGIN)

    assert scrape(node_view(cards=())).kinds() == {name: row.kind for name, row in rows.items()}


def test_every_name_has_the_prefix_and_a_meaning() -> None:
    rows = documented_metrics.table(documented_metrics.NODE_PLUGIN)

    assert [name for name in rows if not name.startswith("tensorfusion_dra_")] == []
    assert [name for name, row in rows.items() if not row.meaning] == []


def test_every_value_of_the_labels_is_explained() -> None:
    health = documented_metrics.PAGE[documented_metrics.PAGE.index("## Health of a card") :]

    assert words("Reasons of slice writes") == set(WriteReason)
    for kind in Kind:
        assert f"`{kind.name.lower()}`" in health
