"""An API server in memory for releases of helm: it stores any object, and runs nothing."""

import json
import os
import subprocess
import uuid
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from dra_simulator.api.kinds import Served
from tests.support import helm
from tests.support.servers import answering, serving, url, write_kubeconfig
from tests.support.waiting import PATIENCE_SECONDS

Json = dict[str, Any]
Kind = tuple[str, str, bool]
"""API version, kind, and whether it is namespaced."""

RELEASES: Final[tuple[Kind, ...]] = (
    ("v1", "Secret", True),
    ("v1", "Namespace", False),
    ("v1", "Node", False),
    ("node.k8s.io/v1", "RuntimeClass", False),
    ("apiextensions.k8s.io/v1", "CustomResourceDefinition", False),
    ("resource.k8s.io/v1", "ResourceClaimTemplate", True),
)
"""What helm stores releases in, and what the chart looks up."""


SCHEMAS: Final = Served({"": ("v1",), "resource.k8s.io": ("v1",)})
"""By which helm sees that the server checks fields itself, before it makes an object of a hook."""


def root(api: str) -> str:
    """Return the path of an API version."""
    return f"/{'apis' if '/' in api else 'api'}/{api}"


def plural(kind: str) -> str:
    """Return the name that discovery has for a kind."""
    return f"{kind.lower()}{'es' if kind.endswith('s') else 's'}"


def discovery(kinds: Iterable[Kind]) -> dict[str, Any]:
    """Return an API server's answers on its kinds."""
    resources: dict[str, list[Json]] = {}
    for api, kind, namespaced in kinds:
        resources.setdefault(api, []).append(
            {"name": plural(kind), "kind": kind, "namespaced": namespaced, "verbs": ["get", "list"]}
        )
    groups = [
        {"name": api.partition("/")[0], "versions": [{"groupVersion": api, "version": "v1"}]}
        for api in resources
        if "/" in api
    ]
    return {
        "/version": {"major": "1", "minor": "36", "gitVersion": "v1.36.0"},
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": {"kind": "APIGroupList", "groups": groups},
    } | {
        root(api): {"kind": "APIResourceList", "groupVersion": api, "resources": found}
        for api, found in resources.items()
    }


class RefusedError(Exception):
    """The API server refuses a request; its arguments are code, reason and message."""


class HelmCluster:
    """A cluster with the namespaces that helm needs, and the programs that act on it.

    Attributes:
        stored: The objects by their path.
    """

    def __init__(self, folder: Path, values: Mapping[str, Any]) -> None:
        kinds = {*RELEASES} | {
            (item["apiVersion"], item["kind"], "namespace" in item["metadata"])
            for item in helm.render(values)
        }
        self.folder, self.values = folder, values
        self.answers = discovery(sorted(kinds))
        self.kinds = {f"{root(api)}/{plural(kind)}": (api, kind) for api, kind, _ in kinds}
        self.stored: dict[str, Json] = {}
        for name in ("kube-system", helm.NAMESPACE):
            self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})

    def path(self, item: Json, namespace: str = "") -> str:
        """Return the path of an object."""
        within = f"/namespaces/{namespace}" if namespace else ""
        found = f"{root(item['apiVersion'])}{within}/{plural(item['kind'])}"
        return f"{found}/{item['metadata']['name']}"

    def apply(self, item: Json, namespace: str = "") -> str:
        """Store an object as `kubectl apply --namespace` does; return its path."""
        path = self.path(item, namespace)
        metadata = {**item["metadata"], "uid": str(uuid.uuid4()), "resourceVersion": "1"}
        self.stored[path] = {**item, "metadata": {**metadata, "namespace": namespace}}
        return path

    def helm(self, verb: str, chart: Path | None = None, **values: Any) -> str:
        """Run a verb of helm on the one release; return what it prints.

        Hooks that need a cluster which runs pods are left out: those of an uninstallation.

        Raises:
            RefusedValuesError: It failed.
        """
        folders = {f"HELM_{name}_HOME": str(self.folder) for name in ("CACHE", "CONFIG", "DATA")}
        of_chart = [str(chart), "--disable-openapi-validation", "--values", "-"] if chart else []
        of_chart += ["--no-hooks"] if verb == "uninstall" else []
        ended = subprocess.run(
            [helm.program(), verb, "tensorfusion-dra", *of_chart, "--namespace", helm.NAMESPACE],
            input=json.dumps({**self.values, **values}),
            env={**os.environ, **folders, "KUBECONFIG": str(self.folder / "kubeconfig")},
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        if ended.returncode:
            raise helm.RefusedValuesError(ended.stderr.strip())
        return ended.stdout

    def answer(self, method: str, target: str, body: Any) -> tuple[int, Any]:
        """Return the status and document that answer a request."""
        path = urlsplit(target).path
        try:
            if method == "GET":
                query = {key: each for key, (each,) in parse_qs(urlsplit(target).query).items()}
                return 200, self.read(path, query)
            return 200, self.written(method, path, body)
        except KeyError:
            code, reason, message = 404, "NotFound", f"{path} not found"
        except RefusedError as error:
            code, reason, message = error.args
        about = {"status": "Failure", "code": code, "reason": reason, "message": message}
        return code, {"apiVersion": "v1", "kind": "Status", **about}

    def read(self, path: str, query: Mapping[str, str]) -> Any:
        """Return the document at a path.

        Raises:
            KeyError: There is none.
        """
        if "sendInitialEvents" in query:
            raise RefusedError(422, "Invalid", "found sendInitialEvents, expected a list first")
        found = self.answers.get(path) or SCHEMAS.discovery(path)
        if found is None and (kind := self.kinds.get(self.of_any_namespace(path))):
            found = self.listed(path, *kind, query)
        return found or self.stored[path]

    def written(self, method: str, path: str, body: Any) -> Json:
        """Carry out a request that writes an object; return the object.

        Raises:
            KeyError: There is none.
            RefusedError: It exists already, or the change is not allowed.
        """
        if method == "POST":
            path += f"/{body['metadata']['name']}"
            if path in self.stored:
                raise RefusedError(409, "AlreadyExists", f"{path} already exists")
            body["metadata"] |= {"uid": str(uuid.uuid4()), "resourceVersion": "1"}
        elif method == "DELETE":
            return self.stored.pop(path)
        else:
            body = merged(self.stored[path], body) if method == "PATCH" else body
            is_template = body["kind"] == "ResourceClaimTemplate"
            if is_template and body["spec"] != self.stored[path]["spec"]:
                raise RefusedError(422, "Invalid", f"{path}: spec: field is immutable")
        self.stored[path] = body
        return self.stored[path]

    @staticmethod
    def of_any_namespace(path: str) -> str:
        before, within, after = path.partition("/namespaces/")
        return before + "/" + after.partition("/")[2] if within and "/" in after else path

    def listed(self, path: str, api: str, kind: str, query: Mapping[str, str]) -> Json:
        wanted = [each.split("=") for each in query.get("labelSelector", "").split(",") if each]
        items = [
            item
            for key, item in self.stored.items()
            if key.rpartition("/")[0] == path
            and all(item["metadata"].get("labels", {}).get(name) == text for name, text in wanted)
        ]
        metadata = {"resourceVersion": "1"}
        return {"apiVersion": api, "kind": f"{kind}List", "metadata": metadata, "items": items}


def merged(item: Any, patch: Any) -> Any:
    """Return the item with a JSON merge patch."""
    if not isinstance(item, dict) or not isinstance(patch, dict):
        return patch
    found = {**item, **{key: merged(item.get(key), each) for key, each in patch.items()}}
    return {key: each for key, each in found.items() if each is not None}


PROTOBUF: Final = b"k8s\0"
"""Begin of an object that is not JSON: client-go writes Secrets so."""


def secret(content: bytes) -> Json:
    """Return a Secret that is written as protobuf (k8s.io/api/core/v1/generated.proto)."""
    (item,) = fields(content.removeprefix(PROTOBUF))[2]
    metadata = fields(fields(item)[1][0])
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": metadata[1][0].decode(),
            "namespace": metadata[3][0].decode(),
            "labels": {name: text.decode() for name, text in pairs(metadata.get(11, []))},
        },
        "data": {name: b64encode(text).decode() for name, text in pairs(fields(item)[2])},
        "type": fields(item)[3][0].decode(),
    }


def pairs(entries: Iterable[bytes]) -> Iterator[tuple[str, bytes]]:
    """Yield keys and values of a map."""
    for entry in map(fields, entries):
        yield entry[1][0].decode(), entry[2][0]


def fields(message: bytes) -> dict[int, list[bytes]]:
    """Return the fields of a message that have a length, by number."""
    found: dict[int, list[bytes]] = {}
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        key = number()
        length = number()
        if key & 7 == 2:
            found.setdefault(key >> 3, []).append(message[at : at + length])
            at += length
    return found


@contextmanager
def cluster(folder: Path, values: Mapping[str, Any]) -> Iterator[HelmCluster]:
    """Run a cluster on loopback during the block.

    Args:
        folder: Gets its kubeconfig, and helm's files.
        values: Of the chart, in all releases.
    """
    found = HelmCluster(folder, values)

    def answer(method: str, target: str, content: bytes) -> tuple[int, Any]:
        body = None
        if method not in {"GET", "DELETE"}:
            body = secret(content) if content.startswith(PROTOBUF) else json.loads(content)
        status, document = found.answer(method, target, body)
        return status, None if "watch=" in target else document

    server = answering(answer)
    write_kubeconfig(folder / "kubeconfig", server=url(server))
    with serving(server):
        yield found
