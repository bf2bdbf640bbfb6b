"""Calls to admission webhooks, in the order and format of a real API server."""

import json

from tensorfusion_dra.runtime.http_server import Server
from tests.dra_simulator.api.client import APPLY, CLASSES, PODS, STRATEGIC, Client, Json
from tests.dra_simulator.api.webhooks.desk import (
    MUTATING,
    WebhookClient,
    WebhookStub,
    allow,
    labelled,
    labelled_pod,
    labels,
)


def test_mutating_webhooks_are_called_by_name_and_see_earlier_changes(
    api: WebhookClient, stub: WebhookStub
) -> None:
    stub.rules = {f"/{name}": labelled(name) for name in ("a1", "a2", "b1")}
    api.register(MUTATING, "b1")
    api.register(MUTATING, "a1", "a2")

    reply = api.post(PODS, labelled_pod())

    assert stub.paths == ["/a1", "/a2", "/b1"]
    assert list(labels(reply)) == ["app", "a1", "a2", "b1"]
    assert list(stub.calls[2][1]["object"]["metadata"]["labels"]) == ["app", "a1", "a2"]


def test_a_review_describes_the_request(api: WebhookClient, stub: WebhookStub) -> None:
    stub.rules = {"/a": allow}
    api.register(MUTATING, "a")
    nameless = labelled_pod(generateName="train-")
    del nameless["metadata"]["name"]

    api.post(PODS, nameless)

    ((_, request),) = stub.calls
    assert request["operation"] == "CREATE"
    assert request["kind"] == {"group": "", "version": "v1", "kind": "Pod"}
    assert request["namespace"] == request["object"]["metadata"]["namespace"] == "default"
    assert "name" not in request
    assert request["object"]["kind"] == "Pod"
    assert request["oldObject"] is None


def test_a_review_of_an_update_has_the_old_object(api: WebhookClient, stub: WebhookStub) -> None:
    stub.rules = {"/a": labelled("seen")}
    api.post(PODS, labelled_pod())
    api.register(MUTATING, "a")

    change = {"metadata": {"labels": {"new": "x"}}}
    reply = api.patch(f"{PODS}/a", change, STRATEGIC)

    assert labels(reply) == {"app": "a", "new": "x", "seen": "x"}
    ((_, request),) = stub.calls
    assert request["operation"] == "UPDATE"
    assert request["oldObject"]["metadata"]["labels"] == {"app": "a"}


def test_a_write_to_the_status_calls_no_webhook(api: WebhookClient, stub: WebhookStub) -> None:
    api.post(PODS, labelled_pod())
    api.register(MUTATING, "a")

    reply = api.patch(f"{PODS}/a/status", {"status": {"phase": "Running"}})

    assert reply.code == 200
    assert stub.calls == []


def test_a_webhook_is_called_again_if_a_later_one_changed_the_object(
    api: WebhookClient, stub: WebhookStub
) -> None:
    stub.rules = {"/a": labelled("a"), "/b": labelled("b")}
    api.register(MUTATING, "a", reinvocationPolicy="IfNeeded")
    api.register(MUTATING, "b", reinvocationPolicy="IfNeeded")

    api.post(PODS, labelled_pod())

    assert stub.paths == ["/a", "/b", "/a"]


def test_without_a_reinvocation_policy_a_webhook_is_called_once(
    api: WebhookClient, stub: WebhookStub
) -> None:
    stub.rules = {"/a": labelled("a"), "/b": labelled("b")}
    api.register(MUTATING, "a")
    api.register(MUTATING, "b")

    api.post(PODS, labelled_pod())

    assert stub.paths == ["/a", "/b"]


def test_an_apply_that_creates_an_object_calls_webhooks(
    api: WebhookClient, stub: WebhookStub
) -> None:
    stub.rules = {"/a": labelled("a")}
    api.register(MUTATING, "a", resources="deviceclasses")
    document = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "a", "labels": {"app": "a"}},
        "spec": {},
    }

    path = f"{CLASSES}/a?fieldManager=tests"
    reply = api.call("PATCH", path, json.dumps(document), kind=APPLY)

    assert labels(reply) == {"app": "a", "a": "x"}


def test_an_object_that_changes_during_a_call_is_admitted_again(
    api: WebhookClient, stub: WebhookStub, hooks: Server
) -> None:
    api.post(PODS, labelled_pod())
    api.register(MUTATING, "a")

    def meddle(request: Json) -> Json:
        if len(stub.calls) == 1:
            other = Client(f"http://{api.address}")
            other.patch(f"{PODS}/a/status", {"status": {"phase": "Running"}})
            other.close()
        return {"allowed": True}

    stub.rules = {"/a": meddle}
    reply = api.patch(f"{PODS}/a", {"metadata": {"labels": {"new": "x"}}})

    assert stub.paths == ["/a", "/a"]
    assert reply.json["status"]["phase"] == "Running"
    assert labels(reply)["new"] == "x"
