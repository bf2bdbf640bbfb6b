"""The simulated API server asks admission webhooks, as a real one does."""

import base64
import json
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from tensorfusion_dra.simulator import match_conditions
from tensorfusion_dra.simulator.apiserver import ApiServer
from tensorfusion_dra.webhook.server import Request, Response, Server
from tests.simulator.api.client import APPLY, CLASSES, PODS, STRATEGIC, Client, Json, Reply
from tests.support.https import HOST, Files, serving

MUTATING = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
VALIDATING = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"

Rule = Callable[[Json], Json]


class Desk:
    """A webhook server on which each path has a rule: from a review's request to its response."""

    def __init__(self) -> None:
        self.rules: dict[str, Rule] = {}
        self.asked: list[tuple[str, Json]] = []

    def respond(self, request: Request) -> Response:
        path = request.target.partition("?")[0]
        review = json.loads(request.body)
        self.asked.append((path, review["request"]))
        response = {"uid": review["request"]["uid"], **self.rules[path](review["request"])}
        text = json.dumps({**review, "request": None, "response": response})
        return Response(status=HTTPStatus.OK, body=text.encode())

    @property
    def paths(self) -> list[str]:
        return [path for path, _ in self.asked]


def allow(_: Json) -> Json:
    return {"allowed": True}


def patch(*operations: Json) -> Rule:
    text = base64.b64encode(json.dumps(operations).encode()).decode()
    return lambda _: {"allowed": True, "patchType": "JSONPatch", "patch": text}


def labelled(name: str) -> Rule:
    """Adds a label to whatever has labels."""
    return patch({"op": "add", "path": f"/metadata/labels/{name}", "value": "x"})


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def hooks(desk: Desk, files: Files) -> Iterator[Server]:
    with serving(desk.respond, files) as server:
        yield server


@pytest.fixture
def api(hooks: Server, files: Files) -> Iterator["Hooked"]:
    with ApiServer(condition_holds=match_conditions.holds) as server:
        client = Hooked(server.url, hooks, files)
        yield client
        client.close()


class Hooked(Client):
    """A client that also registers webhooks."""

    def __init__(self, url: str, hooks: Server, files: Files) -> None:
        super().__init__(url)
        self._hooks = hooks
        self._bundle = base64.b64encode(files.authority.cert_pem.bytes()).decode()

    def register(self, where: str, *names: str, resources: str = "pods", **fields: Any) -> None:
        """A configuration with one webhook for each name, at the path of that name."""
        kind = "MutatingWebhookConfiguration" if where == MUTATING else "Validating"
        kind = kind if where == MUTATING else "ValidatingWebhookConfiguration"
        entries = [
            {
                "name": f"{name}.example.com",
                "clientConfig": {
                    "url": f"https://{HOST}:{self._hooks.port}/{name}",
                    "caBundle": self._bundle,
                },
                "rules": [
                    {
                        "apiGroups": ["*"],
                        "apiVersions": ["*"],
                        "resources": [resources],
                        "operations": ["CREATE", "UPDATE"],
                    }
                ],
                "sideEffects": "None",
                "admissionReviewVersions": ["v1"],
                **fields,
            }
            for name in names
        ]
        api_version = "admissionregistration.k8s.io/v1"
        document = {"apiVersion": api_version, "kind": kind, "webhooks": entries}
        reply = self.post(where, {**document, "metadata": {"name": names[0]}})
        assert reply.code == 201, reply.json


def pod(**metadata: Any) -> Json:
    return {
        "metadata": {"name": "a", "labels": {"app": "a"}, **metadata},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    }


def labels(reply: Reply) -> Json:
    assert reply.code in {200, 201}, reply.json
    found: Json = reply.json["metadata"]["labels"]
    return found


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


def test_validating_webhooks_see_what_the_mutating_ones_made_and_may_refuse_it(
    api: Hooked, desk: Desk
) -> None:
    status = {"code": 422, "reason": "Invalid", "message": "no", "details": {"name": "a"}}
    desk.rules = {"/a": labelled("a"), "/v": lambda _: {"allowed": False, "status": status}}
    api.register(MUTATING, "a")
    api.register(VALIDATING, "v")

    reply = api.post(PODS, pod())

    assert reply.code == 422
    assert reply.message == 'admission webhook "v.example.com" denied the request: no'
    assert (reply.json["reason"], reply.json["details"]) == ("Invalid", {"name": "a"})
    assert "a" in desk.asked[1][1]["object"]["metadata"]["labels"]
    assert api.get(f"{PODS}/a").code == 404


def test_a_refusal_without_a_reason_is_a_bad_request(api: Hooked, desk: Desk) -> None:
    desk.rules = {"/a": lambda _: {"allowed": False}}
    api.register(MUTATING, "a")

    reply = api.post(PODS, pod())

    assert reply.code == 400
    assert reply.message.endswith("denied the request without explanation")


def test_warnings_come_back_with_the_answer(api: Hooked, desk: Desk) -> None:
    desk.rules = {"/a": lambda _: {"allowed": True, "warnings": ["careful"]}}
    api.register(MUTATING, "a")

    assert api.post(PODS, pod()).headers["warning"] == ['299 - "careful"']


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (lambda _: {"uid": "another", "allowed": True}, "expected response.uid="),
        (lambda _: {"allowed": True, "patch": "W10="}, "patch and patchType do not match"),
        (lambda _: {"allowed": True, "patchType": "JSONPatch"}, "do not match"),
        (lambda _: {"response": 1 / 0}, "ZeroDivisionError"),
    ],
)
def test_a_webhook_that_gives_no_good_answer_fails_the_request_or_is_passed_by(
    api: Hooked, desk: Desk, rule: Rule, text: str
) -> None:
    desk.rules = {"/a": rule, "/b": rule}
    api.register(MUTATING, "a", failurePolicy="Ignore")
    ignored = api.post(PODS, pod())
    api.register(MUTATING, "b", failurePolicy="Fail")
    failed = api.post(PODS, pod(name="b"))

    assert ignored.code == 201
    assert failed.code == 500
    assert failed.message.startswith(
        'Internal error occurred: failed calling webhook "b.example.com": '
    )
    assert text in failed.message


def test_a_webhook_that_is_not_there_fails_the_request(api: Hooked, hooks: Server) -> None:
    api.register(MUTATING, "a")
    hooks.stop(grace_seconds=1)

    reply = api.post(PODS, pod())

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
    api: Hooked, desk: Desk, operations: list[Json], text: str
) -> None:
    desk.rules = {"/a": patch(*operations)}
    api.register(MUTATING, "a", failurePolicy="Ignore")

    reply = api.post(PODS, pod())

    assert reply.code == 500
    assert text in reply.message


def test_what_a_webhook_makes_has_to_keep_the_rules(api: Hooked, desk: Desk) -> None:
    claims = {"claims": [{"name": "gone"}]}
    desk.rules = {
        "/a": patch({"op": "add", "path": "/spec/containers/0/resources", "value": claims})
    }
    api.register(MUTATING, "a")

    reply = api.post(PODS, pod())

    assert reply.causes == [("spec.containers[0].resources.claims[0]", "FieldValueNotFound")]


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
