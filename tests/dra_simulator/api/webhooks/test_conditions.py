"""Rules, selectors and conditions that decide if a webhook is called."""

import pytest

from tests.dra_simulator.api.client import PODS, Json
from tests.dra_simulator.api.webhooks.desk import (
    MUTATING,
    WebhookClient,
    WebhookStub,
    allow,
    labelled_pod,
)

NOT_DEFAULT = {
    "matchExpressions": [
        {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["default"]}
    ]
}


@pytest.mark.parametrize(
    ("fields", "is_called"),
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
def test_a_webhook_is_called_only_for_matching_requests(
    api: WebhookClient, stub: WebhookStub, fields: Json, *, is_called: bool
) -> None:
    stub.rules = {"/a": allow}
    api.register(MUTATING, "a", failurePolicy="Ignore", **fields)

    assert api.post(PODS, labelled_pod()).code == 201
    assert bool(stub.calls) is is_called


def test_a_condition_that_cannot_be_evaluated_fails_the_request(api: WebhookClient) -> None:
    expression = "object.metadata.nowhere == 1"
    api.register(MUTATING, "a", matchConditions=[{"name": "a", "expression": expression}])

    assert api.post(PODS, labelled_pod()).code == 500


def test_a_false_condition_outweighs_one_that_cannot_be_evaluated(
    api: WebhookClient,
) -> None:
    texts = ("object.metadata.nowhere == 1", "1 == 2")
    conditions = [{"name": f"n{n}", "expression": text} for n, text in enumerate(texts)]
    api.register(MUTATING, "a", matchConditions=conditions)

    assert api.post(PODS, labelled_pod()).code == 201
