"""The simulated API server asks admission webhooks, in the order and the words of a real one."""

import json

from tensorfusion_dra.webhook.server import Server
from tests.simulator.api.client import APPLY, CLASSES, PODS, STRATEGIC, Client, Json
from tests.simulator.api.webhooks.desk import MUTATING, Desk, Hooked, allow, labelled, labels, pod


def test_mutating_webhooks_come_by_name_and_each_sees_what_the_ones_before_it_made(
    api: Hooked, desk: Desk
) -> None:
    desk.rules = {f"/{name}": labelled(name) for name in ("a1", "a2", "b1")}
    api.register(MUTATING, "b1")
    api.register(MUTATING, "a1", "a2")

    reply = api.post(PODS, pod())

    assert desk.paths == ["/a1", "/a2", "/b1"]
    assert list(labels(reply)) == ["app", "a1", "a2", "b1"]
    assert list(desk.asked[2][1]["object"]["metadata"]["labels"]) == ["app", "a1", "a2"]


def test_what_a_webhook_is_told(api: Hooked, desk: Desk) -> None:
    desk.rules = {"/a": allow}
    api.register(MUTATING, "a")
    nameless = pod(generateName="train-")
    del nameless["metadata"]["name"]

    api.post(PODS, nameless)

    ((_, request),) = desk.asked
    assert request["operation"] == "CREATE"
    assert request["kind"] == {"group": "", "version": "v1", "kind": "Pod"}
    assert request["namespace"] == request["object"]["metadata"]["namespace"] == "default"
    assert "name" not in request
    assert request["object"]["kind"] == "Pod"
    assert request["oldObject"] is None


def test_an_update_brings_the_old_object(api: Hooked, desk: Desk) -> None:
    desk.rules = {"/a": labelled("seen")}
    api.post(PODS, pod())
    api.register(MUTATING, "a")

    change = {"metadata": {"labels": {"new": "x"}}}
    reply = api.patch(f"{PODS}/a", change, STRATEGIC)

    assert labels(reply) == {"app": "a", "new": "x", "seen": "x"}
    ((_, request),) = desk.asked
    assert request["operation"] == "UPDATE"
    assert request["oldObject"]["metadata"]["labels"] == {"app": "a"}


def test_a_status_is_nobodys_business(api: Hooked, desk: Desk) -> None:
    api.post(PODS, pod())
    api.register(MUTATING, "a")

    reply = api.patch(f"{PODS}/a/status", {"status": {"phase": "Running"}})

    assert reply.code == 200
    assert desk.asked == []


def test_a_webhook_is_asked_again_if_others_changed_something_after_it(
    api: Hooked, desk: Desk
) -> None:
    desk.rules = {"/a": labelled("a"), "/b": labelled("b")}
    api.register(MUTATING, "a", reinvocationPolicy="IfNeeded")
    api.register(MUTATING, "b", reinvocationPolicy="IfNeeded")

    api.post(PODS, pod())

    assert desk.paths == ["/a", "/b", "/a"]


def test_a_webhook_that_wants_it_so_is_asked_once(api: Hooked, desk: Desk) -> None:
    desk.rules = {"/a": labelled("a"), "/b": labelled("b")}
    api.register(MUTATING, "a")
    api.register(MUTATING, "b")

    api.post(PODS, pod())

    assert desk.paths == ["/a", "/b"]


def test_an_apply_that_makes_an_object_is_asked_about(api: Hooked, desk: Desk) -> None:
    desk.rules = {"/a": labelled("a")}
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


def test_an_object_that_changes_while_a_webhook_is_asked_is_admitted_again(
    api: Hooked, desk: Desk, hooks: Server
) -> None:
    api.post(PODS, pod())
    api.register(MUTATING, "a")

    def meddle(request: Json) -> Json:
        if len(desk.asked) == 1:
            other = Client(f"http://{api.address}")
            other.patch(f"{PODS}/a/status", {"status": {"phase": "Running"}})
            other.close()
        return {"allowed": True}

    desk.rules = {"/a": meddle}
    reply = api.patch(f"{PODS}/a", {"metadata": {"labels": {"new": "x"}}})

    assert desk.paths == ["/a", "/a"]
    assert reply.json["status"]["phase"] == "Running"
    assert labels(reply)["new"] == "x"
