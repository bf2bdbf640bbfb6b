"""A plain HTTP client for the simulated API server."""

import http.client
import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partialmethod
from typing import Any, Final
from urllib.parse import urlsplit

from dra_simulator.apiserver import ApiServer
from tests.support.waiting import PATIENCE_SECONDS

Json = dict[str, Any]

RESOURCE: Final = "/apis/resource.k8s.io/v1"
SLICES: Final = f"{RESOURCE}/resourceslices"
CLASSES: Final = f"{RESOURCE}/deviceclasses"
CLAIMS: Final = f"{RESOURCE}/namespaces/default/resourceclaims"
TEMPLATES: Final = f"{RESOURCE}/namespaces/default/resourceclaimtemplates"
PODS: Final = "/api/v1/namespaces/default/pods"
NODES: Final = "/api/v1/nodes"
EVENTS: Final = "/api/v1/namespaces/default/events"
EVENTS_V1: Final = "/apis/events.k8s.io/v1/namespaces/default/events"
GPUPOOLS: Final = "/apis/tensor-fusion.ai/v1/gpupools"

MERGE: Final = "application/merge-patch+json"
STRATEGIC: Final = "application/strategic-merge-patch+json"
JSON_PATCH: Final = "application/json-patch+json"
APPLY: Final = "application/apply-patch+yaml"

TABLE: Final = (
    "application/json;as=Table;v=v1;g=meta.k8s.io,"
    "application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json"
)
"""The Accept header of `kubectl get`, release 1.36."""


def with_metadata(document: Json, **metadata: object) -> Json:
    """Return the document with more metadata."""
    return {**document, "metadata": {**document["metadata"], **metadata}}


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer: its code, its JSON and its warnings."""

    code: int
    json: Json
    warnings: list[str]

    @property
    def message(self) -> str:
        """The message of a Status; the text of an answer that is not JSON."""
        return str(self.json.get("message") or self.json["text"])

    @property
    def causes(self) -> list[tuple[str, str]]:
        """The invalid fields with their reasons."""
        return [(cause["field"], cause["reason"]) for cause in self.json["details"]["causes"]]

    @property
    def names(self) -> list[str]:
        """The names of the objects in a list."""
        return [item["metadata"]["name"] for item in self.json["items"]]


class Client:
    """A client with one persistent connection."""

    def __init__(self, url: str) -> None:
        self.address: Final = urlsplit(url).netloc
        self._connection = http.client.HTTPConnection(self.address, timeout=PATIENCE_SECONDS)

    def call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        kind: str = "application/json",
        accept: str = "application/json",
    ) -> Reply:
        text = body if isinstance(body, str) or body is None else json.dumps(body)
        headers = {"Content-Type": kind, "User-Agent": "tests/1", "Accept": accept}
        self._connection.request(method, path, body=text, headers=headers)
        answer = self._connection.getresponse()
        raw = answer.read()
        is_json = answer.headers.get_content_type() == "application/json"
        document = json.loads(raw) if is_json else {"text": raw.decode()}
        return Reply(answer.status, document, answer.headers.get_all("warning", []))

    post = partialmethod(call, "POST")
    put = partialmethod(call, "PUT")
    delete = partialmethod(call, "DELETE")

    def get(self, path: str, accept: str = "application/json") -> Reply:
        return self.call("GET", path, accept=accept)

    def patch(self, path: str, body: object, kind: str = MERGE) -> Reply:
        return self.call("PATCH", path, body, kind=kind)

    def watch(self, path: str, accept: str = "application/json") -> "WatchLines":
        """Start a watch on its own connection."""
        return WatchLines(self.address, path, accept)

    def close(self) -> None:
        self._connection.close()


@contextmanager
def served(**options: Any) -> Iterator[Client]:
    """Run a server with these options for the block; yield a client of it."""
    with ApiServer(**options) as server, closing(Client(server.url)) as client:
        yield client


class WatchLines:
    """The events of one watch, as they arrive."""

    def __init__(self, address: str, path: str, accept: str) -> None:
        self._connection = http.client.HTTPConnection(address, timeout=PATIENCE_SECONDS)
        separator = "&" if "?" in path else "?"
        path = f"{path}{separator}watch=true"
        self._connection.request("GET", path, headers={"Accept": accept})
        self._answer = self._connection.getresponse()
        self.code = self._answer.status

    def __enter__(self) -> "WatchLines":
        return self

    def __exit__(self, *_: object) -> None:
        self._answer.close()
        self._connection.close()

    def __iter__(self) -> Iterator[Json]:
        while line := self._answer.readline():
            yield json.loads(line)

    def next(self) -> tuple[str, str, Json]:
        """Return the next event: its type, its object's name and the object."""
        event = next(iter(self))
        return event["type"], event["object"]["metadata"].get("name", ""), event["object"]
