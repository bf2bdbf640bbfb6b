"""Admission webhooks: which are called, in which order, and what follows from their answers."""

import base64
import json
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import pytest

from dra_simulator import match_conditions
from dra_simulator.apiserver import ApiServer
from tensorfusion_dra.runtime.http_server import Request, Response
from tensorfusion_dra.webhook.server import ReviewServer
from tests.dra_simulator.api.client import (
    APPLY,
    CLASSES,
    PODS,
    STRATEGIC,
    Client,
    Json,
    Reply,
    with_metadata,
)
from tests.support.builders.documents import class_document
from tests.support.https import HOST, Files, serving

MUTATING: Final = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
VALIDATING: Final = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"

Rule = Callable[[Json], Json]


class WebhookClient(Client):
    """A client of an API server, and webhooks, which it registers.

    Attributes:
        rules: What turns a request into a webhook's response, by the webhook's path.
        calls: Path and request of each call so far.
        hooks: The server of the webhooks.
    """

    hooks: ReviewServer

    def __init__(self, url: str, files: Files) -> None:
        super().__init__(url)
        self.rules: dict[str, Rule] = {}
        self.calls: list[tuple[str, Json]] = []
        self._bundle = base64.b64encode(files.authority.cert_pem.bytes()).decode()

    def respond(self, request: Request) -> Response:
        review = json.loads(request.body)
        self.calls.append((request.path, review["request"]))
        answer = self.rules[request.path](review["request"])
        response = {"uid": review["request"]["uid"], **answer}
        text = json.dumps({**review, "request": None, "response": response})
        return Response(status=HTTPStatus.OK, body=text.encode())

    def register(self, where: str, *names: str, resources: str = "pods", **fields: Any) -> None:
        """Create a configuration with one webhook for each name, at the path of that name."""
        kind = "Mutating" if where == MUTATING else "Validating"
        rule = {"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["CREATE", "UPDATE"]}
        entries = [
            {
                "name": f"{name}.example.com",
                "clientConfig": {
                    "url": f"https://{HOST}:{self.hooks.port}/{name}",
                    "caBundle": self._bundle,
                },
                "rules": [{**rule, "resources": [resources]}],
                "sideEffects": "None",
                "admissionReviewVersions": ["v1"],
                **fields,
            }
            for name in names
        ]
        document = {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": f"{kind}WebhookConfiguration",
            "metadata": {"name": names[0]},
            "webhooks": entries,
        }
        assert self.post(where, document).code == 201


@pytest.fixture
def api(tmp_path: Path) -> Iterator[WebhookClient]:
    files = Files(tmp_path)
    with (
        ApiServer(condition_holds=match_conditions.holds) as server,
        closing(WebhookClient(server.url, files)) as client,
        serving(client.respond, files) as client.hooks,
    ):
        yield client


def allow(_: Json) -> Json:
    """Allow the request."""
    return {"allowed": True}


def patch(*operations: Json) -> Rule:
    """Allow the request with these operations of a JSON Patch."""
    text = base64.b64encode(json.dumps(operations).encode()).decode()
    return lambda _: {"allowed": True, "patchType": "JSONPatch", "patch": text}


def labelled(name: str) -> Rule:
    """Add a label to an object that has labels."""
    return patch({"op": "add", "path": f"/metadata/labels/{name}", "value": "x"})


def labelled_pod(**metadata: Any) -> Json:
    """A pod with a label; more metadata by name."""
    return {
        "metadata": {"name": "a", "labels": {"app": "a"}, **metadata},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    }


def labels(reply: Reply) -> Json:
    """Return the labels of the created or changed object."""
    return dict(reply.json["metadata"]["labels"])


def test_mutating_webhooks_are_called_by_name_and_see_earlier_changes(api: WebhookClient) -> None:
    api.rules = {f"/{name}": labelled(name) for name in ("a1", "a2", "b1")}
    api.register(MUTATING, "b1")
    api.register(MUTATING, "a1", "a2")

    reply = api.post(PODS, labelled_pod())

    assert [(path, [*request["object"]["metadata"]["labels"]]) for path, request in api.calls] == [
        ("/a1", ["app"]),
        ("/a2", ["app", "a1"]),
        ("/b1", ["app", "a1", "a2"]),
    ]
    assert [*labels(reply)] == ["app", "a1", "a2", "b1"]


def test_a_review_describes_the_request(api: WebhookClient) -> None:
    api.rules = {"/a": allow}
    api.register(MUTATING, "a")
    nameless = labelled_pod(generateName="train-")
    del nameless["metadata"]["name"]

    api.post(PODS, nameless)

    ((_, request),) = api.calls
    assert request == request | {
        "operation": "CREATE",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "namespace": "default",
        "oldObject": None,
    }
    assert "name" not in request
    reviewed = request["object"]
    assert (reviewed["kind"], reviewed["metadata"]["namespace"]) == ("Pod", "default")


def test_a_review_of_an_update_has_the_old_object(api: WebhookClient) -> None:
    api.rules = {"/a": labelled("seen")}
    api.post(PODS, labelled_pod())
    api.register(MUTATING, "a")

    reply = api.patch(f"{PODS}/a", {"metadata": {"labels": {"new": "x"}}}, STRATEGIC)

    assert labels(reply) == {"app": "a", "new": "x", "seen": "x"}
    ((_, request),) = api.calls
    assert request["operation"] == "UPDATE"
    assert request["oldObject"]["metadata"]["labels"] == {"app": "a"}


def test_a_write_to_the_status_calls_no_webhook(api: WebhookClient) -> None:
    api.post(PODS, labelled_pod())
    api.register(MUTATING, "a")

    reply = api.patch(f"{PODS}/a/status", {"status": {"phase": "Running"}})

    assert (reply.code, api.calls) == (200, [])


def test_an_apply_that_creates_an_object_calls_webhooks(api: WebhookClient) -> None:
    api.rules = {"/a": labelled("a")}
    api.register(MUTATING, "a", resources="deviceclasses")
    document = with_metadata(class_document("a"), labels={"app": "a"})

    reply = api.patch(f"{CLASSES}/a?fieldManager=tests", document, APPLY)

    assert labels(reply) == {"app": "a", "a": "x"}


def test_an_object_that_changes_during_a_call_is_a_conflict(api: WebhookClient) -> None:
    def meddle(_: Json) -> Json:
        with closing(Client(f"http://{api.address}")) as other:
            other.patch(f"{PODS}/a/status", {"status": {"phase": "Running"}})
        return {"allowed": True}

    api.post(PODS, labelled_pod())
    api.register(MUTATING, "a")
    api.rules = {"/a": meddle}

    reply = api.patch(f"{PODS}/a", {"metadata": {"labels": {"new": "x"}}})

    assert (reply.code, reply.json["reason"]) == (409, "Conflict")


def test_validating_webhooks_see_the_mutated_object_and_can_deny_it(api: WebhookClient) -> None:
    status = {"code": 422, "reason": "Invalid", "message": "no", "details": {"name": "a"}}
    api.rules = {"/a": labelled("a"), "/v": lambda _: {"allowed": False, "status": status}}
    api.register(MUTATING, "a")
    api.register(VALIDATING, "v")

    reply = api.post(PODS, labelled_pod())

    text = 'admission webhook "v.example.com" denied the request: no'
    assert (reply.code, reply.json) == (422, reply.json | status | {"message": text})
    assert "a" in api.calls[1][1]["object"]["metadata"]["labels"]
    assert api.get(f"{PODS}/a").code == 404


def test_warnings_of_a_webhook_are_returned_to_the_client(api: WebhookClient) -> None:
    api.rules = {"/a": lambda _: {"allowed": True, "warnings": ["careful"]}}
    api.register(MUTATING, "a")

    assert api.post(PODS, labelled_pod()).warnings == ['299 - "careful"']


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
    api: WebhookClient, rule: Rule, text: str
) -> None:
    api.rules = {"/a": rule, "/b": rule}
    api.register(MUTATING, "a", failurePolicy="Ignore")
    assert api.post(PODS, labelled_pod()).code == 201

    api.register(MUTATING, "b", failurePolicy="Fail")
    failed = api.post(PODS, labelled_pod(name="b"))

    assert failed.code == 500
    beginning = 'Internal error occurred: failed calling webhook "b.example.com": '
    assert re.match(f"{beginning}.*{text}", failed.message)


def test_an_unreachable_webhook_fails_the_request(api: WebhookClient) -> None:
    api.register(MUTATING, "a")
    api.hooks.stop(grace_seconds=1)

    reply = api.post(PODS, labelled_pod())

    assert reply.code == 500
    assert f'Post "https://{HOST}:{api.hooks.port}/a": ' in reply.message


def given(value: object) -> Rule:
    """Allow the request, with this value for the resources of its container."""
    return patch({"op": "add", "path": "/spec/containers/0/resources", "value": value})


@pytest.mark.parametrize(
    ("rule", "code", "text"),
    [
        (lambda _: {"allowed": False}, 400, "denied the request without explanation"),
        (patch({"op": "remove", "path": "/nowhere"}), 500, "the server rejected our request"),
        (given({"x": 1}), 500, 'unknown field "spec.containers[0].resources.x"'),
        (given(7), 500, "cannot unmarshal number"),
        (given({"claims": [{"name": "gone"}]}), 422, 'resources.claims[0]: Not found: "gone"'),
    ],
)
def test_a_denial_or_a_patch_that_does_not_fit_fails_the_request(
    api: WebhookClient, rule: Rule, code: int, text: str
) -> None:
    api.rules = {"/a": rule}
    api.register(MUTATING, "a", failurePolicy="Ignore")

    reply = api.post(PODS, labelled_pod())

    assert reply.code == code
    assert text in reply.message


NOT_DEFAULT = {
    "matchExpressions": [
        {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["default"]}
    ]
}

NOWHERE = {"name": "a", "expression": "object.metadata.nowhere == 1"}


@pytest.mark.parametrize(
    ("fields", "is_called"),
    [
        ({}, True),
        ({"resources": "nodes"}, False),
        # A condition that cannot be evaluated
        ({"failurePolicy": "Fail", "matchConditions": [NOWHERE]}, None),
        ({"matchConditions": [NOWHERE]}, False),
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
    ],
)
def test_a_webhook_is_called_only_for_matching_requests(
    api: WebhookClient, fields: Json, *, is_called: bool | None
) -> None:
    api.rules = {"/a": allow}
    api.register(MUTATING, "a", **{"failurePolicy": "Ignore", **fields})

    assert api.post(PODS, labelled_pod()).code == (500 if is_called is None else 201)
    assert bool(api.calls) is bool(is_called)
