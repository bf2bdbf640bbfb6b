"""Stub webhooks for the simulated API server, and the pods that they review."""

import base64
import json
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final

from tensorfusion_dra.runtime.http_server import Request, Response, Server
from tests.dra_simulator.api.client import Client, Json, Reply
from tests.support.https import HOST, Files

MUTATING: Final = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
VALIDATING: Final = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"

Rule = Callable[[Json], Json]


class WebhookStub:
    """A webhook server whose rules, one for each path, turn a request into a response."""

    def __init__(self) -> None:
        self.rules: dict[str, Rule] = {}
        self.calls: list[tuple[str, Json]] = []

    def respond(self, request: Request) -> Response:
        path = request.path
        review = json.loads(request.body)
        self.calls.append((path, review["request"]))
        response = {"uid": review["request"]["uid"], **self.rules[path](review["request"])}
        text = json.dumps({**review, "request": None, "response": response})
        return Response(status=HTTPStatus.OK, body=text.encode())

    @property
    def paths(self) -> list[str]:
        return [path for path, _ in self.calls]


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


class WebhookClient(Client):
    """A client that also registers webhooks."""

    def __init__(self, url: str, hooks: Server, files: Files) -> None:
        super().__init__(url)
        self._hooks = hooks
        self._bundle = base64.b64encode(files.authority.cert_pem.bytes()).decode()

    def register(self, where: str, *names: str, resources: str = "pods", **fields: Any) -> None:
        """Create a configuration with one webhook for each name, at the path of that name."""
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


def labelled_pod(**metadata: Any) -> Json:
    """A pod with a label; more metadata by name."""
    return {
        "metadata": {"name": "a", "labels": {"app": "a"}, **metadata},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    }


def labels(reply: Reply) -> Json:
    """Return the labels of the created or changed object."""
    assert reply.code in {200, 201}, reply.json
    found: Json = reply.json["metadata"]["labels"]
    return found
