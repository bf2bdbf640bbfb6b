"""The check of queries finds what Prometheus itself would answer with nothing or with an error."""

import pytest

from tests.support import promql
from tests.support.promql import QueryError

KNOWN = {
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
        promql.labels(query, KNOWN)
