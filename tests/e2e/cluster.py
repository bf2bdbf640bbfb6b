"""Client of a real cluster for tests: objects, logs and waits."""

import time
from collections.abc import Callable, Mapping
from http.client import HTTPException
from typing import Any, TypeVar

from tensorfusion_dra.cluster.api import APPLY, Api, segment
from tensorfusion_dra.core.errors import RetryableError, StatusError

Found = TypeVar("Found")
Json = dict[str, Any]
Slices = Callable[[], list[Json]]
"""Lists the slices of the node under test."""

RESOURCE = "resource.k8s.io/v1"
_POLL_SECONDS = 0.25
_READ_SECONDS = 20.0
_MERGE = "application/merge-patch+json"

# API version, plural and whether the kind is namespaced, by kind.
_KINDS: Mapping[str, tuple[str, str, bool]] = {
    "Namespace": ("v1", "namespaces", False),
    "Node": ("v1", "nodes", False),
    "Pod": ("v1", "pods", True),
    "Event": ("v1", "events", True),
    "ServiceAccount": ("v1", "serviceaccounts", True),
    "DaemonSet": ("apps/v1", "daemonsets", True),
    "StatefulSet": ("apps/v1", "statefulsets", True),
    "Job": ("batch/v1", "jobs", True),
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
    """Client of one API server.

    Every method may be called while the server is away for a moment.
    """

    def __init__(self, api: Api) -> None:
        self.api = api

    def version(self) -> str:
        """Return the version of the API server, such as v1.36.2."""
        return str(self.api.call("GET", "/version")["gitVersion"])

    def create(self, document: Json) -> Json:
        """Create an object and return it as stored."""
        return self.api.call(
            "POST",
            path_of(document["kind"], document["metadata"].get("namespace", "")),
            body=document,
        )

    def apply(self, document: Json) -> Json:
        """Apply an object (server-side apply) and return it as stored."""
        path = path_of(
            document["kind"],
            document["metadata"].get("namespace", ""),
            document["metadata"]["name"],
        )
        query = {"fieldManager": "tensorfusion-dra-e2e", "force": "true"}
        return self.api.call("PATCH", path, query=query, body=document, content_type=APPLY)

    def merge(self, kind: str, name: str, patch: Json, *, namespace: str = "") -> Json:
        """Apply a merge patch to an object and return it as stored."""
        path = path_of(kind, namespace, name)
        return self.api.call("PATCH", path, body=patch, content_type=_MERGE)

    def find(self, kind: str, name: str, *, namespace: str = "") -> Json | None:
        """Return an object; None if it does not exist."""
        try:
            return self.api.call("GET", path_of(kind, namespace, name), wait_seconds=_READ_SECONDS)
        except StatusError as error:
            if error.status == 404:
                return None
            raise

    def objects(self, kind: str, *, namespace: str = "", **selectors: str) -> list[Json]:
        """List the objects of one namespace or of all; selectors have the API's names."""
        listed = self.api.call(
            "GET", path_of(kind, namespace), query=selectors, wait_seconds=_READ_SECONDS
        )
        items: list[Json] = listed.get("items") or []
        return items

    def delete(
        self, kind: str, name: str, *, namespace: str = "", grace_seconds: int | None = None
    ) -> None:
        """Request the deletion of an object, if it exists."""
        body: Json = {"kind": "DeleteOptions", "apiVersion": "v1"}
        if grace_seconds is not None:
            body["gracePeriodSeconds"] = grace_seconds
        try:
            self.api.call("DELETE", path_of(kind, namespace, name), body=body)
        except StatusError as error:
            if error.status != 404:
                raise

    def log(self, pod: str, *, namespace: str, **query: str) -> str:
        """Return the log of a pod's container so far."""
        path = f"{path_of('Pod', namespace, pod)}/log"
        try:
            answer = self.api.send("GET", path, query=query, wait_seconds=_READ_SECONDS)
            return answer.body().decode(errors="replace")
        except (HTTPException, OSError) as error:
            raise RetryableError(f"GET {path}: {error}") from error

    def post(self, path: str, body: Json, **query: str) -> Json:
        """Send a POST and return the response; for subresources and dry runs."""
        return self.api.call("POST", path, query=query, body=body)

    def until(
        self,
        what: str,
        poll: Callable[[], Found | None],
        *,
        seconds: float,
        diagnose: Callable[[], str] = lambda: "",
    ) -> Found:
        """Call a function until its result is true, and return that result.

        A retryable error of the API server counts as a false result.

        Args:
            what: Text for "waited for ...".
            poll: Function to call repeatedly.
            seconds: Maximum time to wait.
            diagnose: Returns details for the error text; called only after the time is over.

        Raises:
            AssertionError: There was no true result within the time. The text has the details, and
                the error of the last call, if it failed.
        """
        started = time.monotonic()
        last_error = ""
        while True:
            try:
                found = poll()
            except RetryableError as error:
                found, last_error = None, f" (last: {error})"
            waited = time.monotonic() - started
            if found:
                print(f"waited {waited:5.1f} s for {what}")
                return found
            if waited > seconds:
                raise AssertionError(
                    f"waited {waited:.0f} s without success for {what}{last_error}\n{diagnose()}"
                )
            time.sleep(_POLL_SECONDS)


def results_of(claim: Json) -> list[Json]:
    """Return the allocation results of a claim, one for each device; empty if not allocated."""
    allocation = (claim.get("status") or {}).get("allocation") or {}
    found: list[Json] = allocation.get("devices", {}).get("results", [])
    return found


def path_of(kind: str, namespace: str = "", name: str = "") -> str:
    """Return the URL path of a collection or of an object."""
    version, plural, namespaced = _KINDS[kind]
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    within = f"/namespaces/{segment(namespace)}" if namespaced and namespace else ""
    return f"{root}{within}/{plural}" + (f"/{segment(name)}" if name else "")
