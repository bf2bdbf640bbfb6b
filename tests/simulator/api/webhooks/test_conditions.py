"""Which requests a webhook is asked about: its rules, selectors and conditions."""

import pytest

from tests.simulator.api.client import PODS, Json
from tests.simulator.api.webhooks.desk import MUTATING, Desk, Hooked, allow, pod

NOT_DEFAULT = {
    "matchExpressions": [
        {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["default"]}
    ]
}


@pytest.mark.parametrize(
    ("fields", "is_asked"),
    [
        ({}, True),
        ({"resources": "nodes"}, False),
        ({"namespaceSelector": NOT_DEFAULT}, False),
        ({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "default"}}}, True),
        ({"objectSelector": {"matchLabels": {"app": "a"}}}, True),
        ({"objectSelector": {"matchLabels": {"app": "b"}}}, False),
        (
            {"objectSelector": {"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}},
            False,
        ),
        (
            {"matchConditions": [{"name": "a", "expression": 'object.metadata.name == "a"'}]},
            True,
        ),
        (
            {"matchConditions": [{"name": "a", "expression": "object.metadata.nowhere == 1"}]},
            False,
        ),
    ],
)
def test_a_webhook_is_asked_about_what_it_wants_to_see(
    api: Hooked, desk: Desk, fields: Json, *, is_asked: bool
) -> None:
    desk.rules = {"/a": allow}
    api.register(MUTATING, "a", failurePolicy="Ignore", **fields)

    assert api.post(PODS, pod()).code == 201
    assert bool(desk.asked) is is_asked


def test_a_condition_that_cannot_be_evaluated_fails_the_request(api: Hooked) -> None:
    expression = "object.metadata.nowhere == 1"
    api.register(MUTATING, "a", matchConditions=[{"name": "a", "expression": expression}])

    assert api.post(PODS, pod()).code == 500


def test_a_condition_that_is_false_matters_more_than_one_that_cannot_be_evaluated(
    api: Hooked,
) -> None:
    texts = ("object.metadata.nowhere == 1", "1 == 2")
    conditions = [{"name": f"n{n}", "expression": text} for n, text in enumerate(texts)]
    api.register(MUTATING, "a", matchConditions=conditions)

    assert api.post(PODS, pod()).code == 201
