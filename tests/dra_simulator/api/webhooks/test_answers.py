"""Outcome of a request after a valid, an invalid and a missing answer of a webhook."""

import pytest

from tensorfusion_dra.runtime.http_server import Server
from tests.dra_simulator.api.client import PODS, Json
from tests.dra_simulator.api.webhooks.desk import (
    MUTATING,
    VALIDATING,
    Rule,
    WebhookClient,
    WebhookStub,
    labelled,
    labelled_pod,
    patch,
)
from tests.support.https import HOST


def test_validating_webhooks_see_the_mutated_object_and_can_deny_it(
    api: WebhookClient, stub: WebhookStub
) -> None:
    status = {"code": 422, "reason": "Invalid", "message": "no", "details": {"name": "a"}}
    stub.rules = {"/a": labelled("a"), "/v": lambda _: {"allowed": False, "status": status}}
    api.register(MUTATING, "a")
    api.register(VALIDATING, "v")

    reply = api.post(PODS, labelled_pod())

    assert reply.code == 422
    assert reply.message == 'admission webhook "v.example.com" denied the request: no'
    assert (reply.json["reason"], reply.json["details"]) == ("Invalid", {"name": "a"})
    assert "a" in stub.calls[1][1]["object"]["metadata"]["labels"]
    assert api.get(f"{PODS}/a").code == 404


def test_a_denial_without_a_reason_is_a_bad_request(api: WebhookClient, stub: WebhookStub) -> None:
    stub.rules = {"/a": lambda _: {"allowed": False}}
    api.register(MUTATING, "a")

    reply = api.post(PODS, labelled_pod())

    assert reply.code == 400
    assert reply.message.endswith("denied the request without explanation")


def test_warnings_of_a_webhook_are_returned_to_the_client(
    api: WebhookClient, stub: WebhookStub
) -> None:
    stub.rules = {"/a": lambda _: {"allowed": True, "warnings": ["careful"]}}
    api.register(MUTATING, "a")

    assert api.post(PODS, labelled_pod()).headers["warning"] == ['299 - "careful"']


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (lambda _: {"uid": "another", "allowed": True}, "expected response.uid="),
        (lambda _: {"allowed": True, "patch": "W10="}, "patch and patchType do not match"),
        (lambda _: {"allowed": True, "patchType": "JSONPatch"}, "do not match"),
        (lambda _: {"response": 1 / 0}, "ZeroDivisionError"),
    ],
)
def test_an_invalid_answer_fails_the_request_unless_the_failure_policy_ignores_it(
    api: WebhookClient, stub: WebhookStub, rule: Rule, text: str
) -> None:
    stub.rules = {"/a": rule, "/b": rule}
    api.register(MUTATING, "a", failurePolicy="Ignore")
    ignored = api.post(PODS, labelled_pod())
    api.register(MUTATING, "b", failurePolicy="Fail")
    failed = api.post(PODS, labelled_pod(name="b"))

    assert ignored.code == 201
    assert failed.code == 500
    assert failed.message.startswith(
        'Internal error occurred: failed calling webhook "b.example.com": '
    )
    assert text in failed.message


def test_an_unreachable_webhook_fails_the_request(api: WebhookClient, hooks: Server) -> None:
    api.register(MUTATING, "a")
    hooks.stop(grace_seconds=1)

    reply = api.post(PODS, labelled_pod())

    assert reply.code == 500
    assert f'Post "https://{HOST}:{hooks.port}/a": ' in reply.message


@pytest.mark.parametrize(
    ("operations", "text"),
    [
        ([{"op": "remove", "path": "/nowhere"}], "the server rejected our request"),
        ([{"op": "add", "path": "/spec/containers/0/resources", "value": {"x": 1}}], "unknown"),
        ([{"op": "add", "path": "/metadata/labels", "value": 7}], "cannot unmarshal number"),
    ],
)
def test_a_patch_that_does_not_fit_fails_the_request(
    api: WebhookClient, stub: WebhookStub, operations: list[Json], text: str
) -> None:
    stub.rules = {"/a": patch(*operations)}
    api.register(MUTATING, "a", failurePolicy="Ignore")

    reply = api.post(PODS, labelled_pod())

    assert reply.code == 500
    assert text in reply.message


def test_the_mutated_object_is_validated(api: WebhookClient, stub: WebhookStub) -> None:
    claims = {"claims": [{"name": "gone"}]}
    stub.rules = {
        "/a": patch({"op": "add", "path": "/spec/containers/0/resources", "value": claims})
    }
    api.register(MUTATING, "a")

    reply = api.post(PODS, labelled_pod())

    assert reply.causes == [("spec.containers[0].resources.claims[0]", "FieldValueNotFound")]
