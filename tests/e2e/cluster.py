"""A real cluster, as the tests see it: objects, logs, and waiting until something holds."""

import json
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import urlencode

from tensorfusion_dra.cluster.api import APPLY, Api, StatusError, segment
from tensorfusion_dra.core.errors import RetryableError

Found = TypeVar("Found")
Json = dict[str, Any]

RESOURCE = "resource.k8s.io/v1"
_POLL_SECONDS = 0.25
_READ_SECONDS = 20.0
_MERGE = "application/merge-patch+json"

# API version and plural by kind, and whether its objects lie in namespaces.
_KINDS: Mapping[str, tuple[str, str, bool]] = {
    "Namespace": ("v1", "namespaces", False),
    "Node": ("v1", "nodes", False),
    "Pod": ("v1", "pods", True),
    "Event": ("v1", "events", True),
    "ServiceAccount": ("v1", "serviceaccounts", True),
    "DaemonSet": ("apps/v1", "daemonsets", True),
    "Role": ("rbac.authorization.k8s.io/v1", "roles", True),
    "RoleBinding": ("rbac.authorization.k8s.io/v1", "rolebindings", True),
    "ClusterRole": ("rbac.authorization.k8s.io/v1", "clusterroles", False),
    "ClusterRoleBinding": ("rbac.authorization.k8s.io/v1", "clusterrolebindings", False),
    "ValidatingAdmissionPolicy": (
        "admissionregistration.k8s.io/v1",
        "validatingadmissionpolicies",
        False,
    ),
    "ValidatingAdmissionPolicyBinding": (
        "admissionregistration.k8s.io/v1",
        "validatingadmissionpolicybindings",
        False,
    ),
    "MutatingWebhookConfiguration": (
        "admissionregistration.k8s.io/v1",
        "mutatingwebhookconfigurations",
        False,
    ),
    "ValidatingWebhookConfiguration": (
        "admissionregistration.k8s.io/v1",
        "validatingwebhookconfigurations",
        False,
    ),
    "DeviceClass": (RESOURCE, "deviceclasses", False),
    "ResourceClaim": (RESOURCE, "resourceclaims", True),
    "ResourceClaimTemplate": (RESOURCE, "resourceclaimtemplates", True),
    "ResourceSlice": (RESOURCE, "resourceslices", False),
}


class Cluster:
    """One API server; every method may be called while it is away for a moment."""

    def __init__(self, api: Api) -> None:
        self.api = api

    def version(self) -> str:
        """Such as v1.36.2."""
        return str(self.api.call("GET", "/version")["gitVersion"])

    def create(self, document: Json) -> Json:
        """The object as it was stored."""
        return self.api.call("POST", _path(document["kind"], _namespace(document)), body=document)

    def apply(self, document: Json) -> Json:
        """The object after a server-side apply."""
        path = _path(document["kind"], _namespace(document), document["metadata"]["name"])
        query = {"fieldManager": "tensorfusion-dra-e2e", "force": "true"}
        return self.api.call("PATCH", path, query=query, body=document, content_type=APPLY)

    def merge(self, kind: str, name: str, patch: Json, *, namespace: str = "") -> Json:
        """The object after a merge patch."""
        path = _path(kind, namespace, name)
        return self.api.call("PATCH", path, body=patch, content_type=_MERGE)

    def find(self, kind: str, name: str, *, namespace: str = "") -> Json | None:
        """The object, or None."""
        try:
            return self.api.call("GET", _path(kind, namespace, name), wait_seconds=_READ_SECONDS)
        except StatusError as error:
            if error.status == 404:
                return None
            raise

    def objects(self, kind: str, *, namespace: str = "", **selectors: str) -> list[Json]:
        """The objects of a namespace or of all; selectors as the API names them."""
        listed = self.api.call(
            "GET", _path(kind, namespace), query=selectors, wait_seconds=_READ_SECONDS
        )
        items: list[Json] = listed.get("items") or []
        return items

    def allocated(self) -> list[Json]:
        """What the scheduler gave to all claims of the cluster, device by device."""
        claims = self.objects("ResourceClaim")
        return [result for claim in claims for result in results_of(claim)]

    def delete(
        self, kind: str, name: str, *, namespace: str = "", grace_seconds: int | None = None
    ) -> None:
        """Asks for an object's end; fine if there is none."""
        body: Json = {"kind": "DeleteOptions", "apiVersion": "v1"}
        if grace_seconds is not None:
            body["gracePeriodSeconds"] = grace_seconds
        try:
            self.api.call("DELETE", _path(kind, namespace, name), body=body)
        except StatusError as error:
            if error.status != 404:
                raise

    def log(self, pod: str, *, namespace: str, **query: str) -> str:
        """What a pod's container has printed so far."""
        path = f"{_path('Pod', namespace, pod)}/log"
        return self._text(path, query)

    def post(self, path: str, body: Json, **query: str) -> Json:
        """The answer to a POST, for subresources and writes on trial."""
        return self.api.call("POST", path, query=query, body=body)

    def until(
        self,
        what: str,
        look: Callable[[], Found | None],
        *,
        seconds: float,
        why: Callable[[], str] = lambda: "",
    ) -> Found:
        """What look() found, once it found something.

        What an API server that is away says is taken for nothing found.

        Args:
            what: As in "waited for".
            look: Asked again and again.
            seconds: How long, at most.
            why: Asked once it was in vain.

        Raises:
            AssertionError: It found nothing within the time; the text has why, if that is known,
                and what the API server last said.
        """
        started = time.monotonic()
        said = ""
        while True:
            try:
                found = look()
            except RetryableError as error:
                found, said = None, f" (last: {error})"
            waited = time.monotonic() - started
            if found:
                print(f"waited {waited:5.1f} s for {what}")
                return found
            if waited > seconds:
                raise AssertionError(f"waited {waited:.0f} s in vain for {what}{said}\n{why()}")
            time.sleep(_POLL_SECONDS)

    def _text(self, path: str, query: Mapping[str, str]) -> str:
        client = self.api.connect()
        target = f"{path}?{urlencode(query)}" if query else path
        serialized = client.param_serialize("GET", target, auth_settings=["BearerToken"])
        response = client.call_api(*serialized, _request_timeout=(3.0, _READ_SECONDS))
        text = bytes(response.response.data).decode(errors="replace")
        if response.status >= 400:
            raise RetryableError(f"GET {path}: {response.status}: {text[:200]}")
        return text


def results_of(claim: Json) -> list[Json]:
    """What the scheduler gave to a claim, device by device; nothing before it did."""
    allocation = (claim.get("status") or {}).get("allocation") or {}
    found: list[Json] = allocation.get("devices", {}).get("results", [])
    return found


def path_of(kind: str, namespace: str = "", name: str = "") -> str:
    """The path of a collection, or of an object."""
    return _path(kind, namespace, name)


def shown(document: object) -> str:
    """A document for evidence."""
    return json.dumps(document, indent=2, sort_keys=True)


def _path(kind: str, namespace: str = "", name: str = "") -> str:
    version, plural, namespaced = _KINDS[kind]
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    within = f"/namespaces/{segment(namespace)}" if namespaced and namespace else ""
    return f"{root}{within}/{plural}" + (f"/{segment(name)}" if name else "")


def _namespace(document: Json) -> str:
    return str(document["metadata"].get("namespace", ""))
