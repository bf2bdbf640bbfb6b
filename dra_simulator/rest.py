"""Small client of the Kubernetes API over plain HTTP, for the simulated components."""

import contextlib
import http.client
import json
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

from tensorfusion_dra.core.errors import RetryableError

Json = dict[str, Any]

JSON_TYPE: Final = "application/json"
_MERGE_PATCH: Final = "application/merge-patch+json"

_TIMEOUT_SECONDS: Final = 10.0
_WATCH_SECONDS: Final = 60


class RestError(RetryableError):
    """A request to the API server failed."""


class UnreachableError(RestError):
    """The API server sent no complete response."""


class ApiError(RestError):
    """The API server rejected a request.

    Attributes:
        status: HTTP status code, for example 409.
        reason: Reason of the returned Status object, for example ``Conflict``.
        message: Message of the returned Status object.
    """

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message


class Watch:
    """Event stream of one watch request; another thread may close it."""

    def __init__(
        self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse
    ) -> None:
        self._connection: Final = connection
        self._response: Final = response

    def __iter__(self) -> Iterator[Json]:
        """Yield each event as the API encodes it, with type and object.

        Raises:
            ApiError: The server ended the watch with an error, such as 410 Expired.
            UnreachableError: The connection broke.
        """
        try:
            while line := self._response.readline():
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise _refusal(event["object"])
                yield event
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise UnreachableError(f"watch broke off: {error}") from error

    def close(self) -> None:
        """End the watch, and with it an iteration that waits in another thread."""
        if self._connection.sock is not None:
            with contextlib.suppress(OSError):
                self._connection.sock.shutdown(socket.SHUT_RDWR)

    def release(self) -> None:
        """Free the connection; the iterating thread calls this after its iteration has ended."""
        self._response.close()
        self._connection.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """One resource of the API.

    Attributes:
        api_version: Version with the group, for example ``v1`` or ``resource.k8s.io/v1``.
    """

    api_version: str
    plural: str
    kind: str
    namespaced: bool = True

    def path(self, namespace: str | None, *parts: str) -> str:
        """Return the URL path of the collection, or of one object or subresource."""
        prefix = "/apis/" if "/" in self.api_version else "/api/"
        within = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        return prefix + self.api_version + within + "/".join(["", self.plural, *parts])


RESOURCE_V1: Final = "resource.k8s.io/v1"
PODS: Final = Resource(api_version="v1", plural="pods", kind="Pod")
EVENTS: Final = Resource(api_version="v1", plural="events", kind="Event")
EVENTS_V1: Final = Resource(api_version="events.k8s.io/v1", plural="events", kind="Event")
NAMESPACES: Final = Resource(
    api_version="v1", plural="namespaces", kind="Namespace", namespaced=False
)
NODES: Final = Resource(api_version="v1", plural="nodes", kind="Node", namespaced=False)
CLAIMS: Final = Resource(api_version=RESOURCE_V1, plural="resourceclaims", kind="ResourceClaim")
TEMPLATES: Final = Resource(
    api_version=RESOURCE_V1, plural="resourceclaimtemplates", kind="ResourceClaimTemplate"
)
CLASSES: Final = Resource(
    api_version=RESOURCE_V1, plural="deviceclasses", kind="DeviceClass", namespaced=False
)
TAINT_RULES: Final = Resource(
    api_version=RESOURCE_V1, plural="devicetaintrules", kind="DeviceTaintRule", namespaced=False
)
SLICES: Final = Resource(
    api_version=RESOURCE_V1, plural="resourceslices", kind="ResourceSlice", namespaced=False
)
GPUPOOLS: Final = Resource(
    api_version="tensor-fusion.ai/v1", plural="gpupools", kind="GPUPool", namespaced=False
)
SCHEDULING_CONFIG_TEMPLATES: Final = Resource(
    api_version="tensor-fusion.ai/v1",
    plural="schedulingconfigtemplates",
    kind="SchedulingConfigTemplate",
    namespaced=False,
)
QUOTAS: Final = Resource(
    api_version="tensor-fusion.ai/v1", plural="gpuresourcequotas", kind="GPUResourceQuota"
)
MUTATING_WEBHOOKS: Final = Resource(
    api_version="admissionregistration.k8s.io/v1",
    plural="mutatingwebhookconfigurations",
    kind="MutatingWebhookConfiguration",
    namespaced=False,
)
VALIDATING_WEBHOOKS: Final = Resource(
    api_version="admissionregistration.k8s.io/v1",
    plural="validatingwebhookconfigurations",
    kind="ValidatingWebhookConfiguration",
    namespaced=False,
)


@dataclass(frozen=True, slots=True)
class Listing:
    """List of objects, and the resourceVersion at which it was read."""

    items: list[Json]
    resource_version: str


class Client:
    """Client with one connection for each call, so that threads may share it.

    Every method raises ApiError if the server rejects the request, and UnreachableError if it does
    not answer.
    """

    def __init__(self, url: str, timeout_seconds: float = _TIMEOUT_SECONDS) -> None:
        parts = urlsplit(url)
        self._host: Final = parts.hostname or "127.0.0.1"
        self._port: Final = parts.port or 80
        self._timeout_seconds: Final = timeout_seconds

    def get(self, resource: Resource, name: str, namespace: str | None = None) -> Json:
        """Return one object."""
        return self._call("GET", resource.path(namespace, name))

    def find(self, resource: Resource, name: str, namespace: str | None = None) -> Json | None:
        """Return one object; None if it does not exist."""
        try:
            return self.get(resource, name, namespace)
        except ApiError as error:
            if error.status == http.client.NOT_FOUND:
                return None
            raise

    def list(
        self, resource: Resource, *, namespace: str | None = None, field_selector: str = ""
    ) -> Listing:
        """List the objects of one namespace, or of all."""
        query = _query(fieldSelector=field_selector)
        found = self._call("GET", resource.path(namespace) + query)
        # As in client-go: the items of a list carry no apiVersion and kind, only the list does.
        marks = {"apiVersion": resource.api_version, "kind": resource.kind}
        items = [{**marks, **item} for item in found["items"]]
        return Listing(items, found["metadata"]["resourceVersion"])

    def create(self, resource: Resource, body: Mapping[str, Any]) -> Json:
        """Create an object and return it as stored."""
        return self._call("POST", resource.path(_namespace(body)) + _STRICT, body=body)

    def replace(self, resource: Resource, body: Mapping[str, Any], subresource: str = "") -> Json:
        """Replace an object and return it as stored.

        The server answers with a conflict if the resourceVersion of the body is not the latest.
        """
        parts = [body["metadata"]["name"], *filter(None, [subresource])]
        return self._call("PUT", resource.path(_namespace(body), *parts) + _STRICT, body=body)

    def replace_status(self, resource: Resource, body: Mapping[str, Any]) -> Json:
        """Replace the status of an object and return the object as stored."""
        return self.replace(resource, body, "status")

    def patch(
        self, resource: Resource, target: Mapping[str, Any], patch: Json, *, subresource: str = ""
    ) -> Json:
        """Apply a JSON merge patch to the target and return the object as stored.

        The patch contains the target's UID, so that a new object of the same name is not changed.
        """
        metadata = {"uid": target["metadata"]["uid"], **patch.get("metadata", {})}
        parts = [target["metadata"]["name"], *filter(None, [subresource])]
        path = resource.path(_namespace(target), *parts) + _STRICT
        whole = {**patch, "metadata": metadata}
        return self._call("PATCH", path, body=whole, content_type=_MERGE_PATCH)

    def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        *,
        uid: str | None = None,
        grace_seconds: int | None = None,
    ) -> Json:
        """Delete an object and return its last state.

        Args:
            uid: Precondition on the object; None for none.
            grace_seconds: Grace period of a pod; None for the one in the pod's spec.
        """
        options = {
            **({"preconditions": {"uid": uid}} if uid is not None else {}),
            **({"gracePeriodSeconds": grace_seconds} if grace_seconds is not None else {}),
        }
        return self._call("DELETE", resource.path(namespace, name), body=options)

    def delete_all(self, resource: Resource, *, field_selector: str) -> Json:
        """Delete the selected objects of a cluster-scoped resource and return their list."""
        path = resource.path(None) + _query(fieldSelector=field_selector)
        return self._call("DELETE", path)

    def bind(self, pod: Mapping[str, Any], node_name: str) -> None:
        """Bind a pod to a node."""
        metadata = {name: pod["metadata"][name] for name in ("name", "namespace", "uid")}
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": metadata,
            "target": {"apiVersion": "v1", "kind": "Node", "name": node_name},
        }
        self._call("POST", PODS.path(metadata["namespace"], metadata["name"], "binding"), body=body)

    def watch(self, resource: Resource, since: str, *, field_selector: str = "") -> Watch:
        """Watch changes after a resourceVersion, until the server or the caller ends the watch."""
        query = _query(
            watch="true",
            resourceVersion=since,
            fieldSelector=field_selector,
            allowWatchBookmarks="true",
            timeoutSeconds=str(_WATCH_SECONDS),
        )
        connection = self._connection(_WATCH_SECONDS + self._timeout_seconds)
        try:
            response = _response(connection, "GET", resource.path(None) + query)
            return Watch(connection, response)
        except BaseException:
            connection.close()
            raise

    def _connection(self, timeout_seconds: float) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self._host, self._port, timeout=timeout_seconds)

    def _call(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        content_type: str = JSON_TYPE,
    ) -> Json:
        text = None if body is None else json.dumps(body).encode()
        with contextlib.closing(self._connection(self._timeout_seconds)) as connection:
            headers = {"Content-Type": content_type} if text else {}
            response = _response(connection, method, path, body=text, headers=headers)
            return _document(response)


_STRICT: Final = "?fieldValidation=Strict"


def _query(**parameters: str) -> str:
    return "?" + urlencode({name: value for name, value in parameters.items() if value})


def _namespace(body: Mapping[str, Any]) -> str | None:
    found: str | None = body["metadata"].get("namespace")
    return found


def _response(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    *,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
) -> http.client.HTTPResponse:
    """Send a request and return the response.

    Raises:
        ApiError: The server answered with status 400 or above.
        UnreachableError: The server sent no response.
    """
    try:
        connection.request(
            method, path, body=body, headers={"Accept": JSON_TYPE, **(headers or {})}
        )
        response = connection.getresponse()
    except (OSError, http.client.HTTPException) as error:
        raise UnreachableError(f"{method} {path}: {error}") from error
    if response.status >= http.client.BAD_REQUEST:
        try:
            raise _refusal({"code": response.status, **_document(response)})
        finally:
            response.close()
    return response


def _document(response: http.client.HTTPResponse) -> Json:
    """Return the JSON object in a response; any other text becomes its ``message``.

    Raises:
        UnreachableError: The connection broke before the end of the body.
    """
    try:
        text = response.read()
    except (OSError, http.client.HTTPException) as error:
        response.close()  # http.client's connection forgets a response that ends with it
        raise UnreachableError(f"response broke off: {error}") from error
    try:
        found = json.loads(text)
    except ValueError:
        found = {"message": text.decode(errors="replace").strip()}
    return found if isinstance(found, dict) else {}


def _refusal(status: Mapping[str, Any]) -> ApiError:
    """Return the error that a Status object describes."""
    return ApiError(status.get("code", 500), status.get("reason", ""), status.get("message", ""))
