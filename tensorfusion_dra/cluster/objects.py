"""Objects at the API server: ResourceClaims and their status, Pods, the Node, and Events."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

import structlog

from tensorfusion_dra.cluster.api import (
    APPLY,
    CORE,
    MERGE_PATCH,
    RESOURCE_VERSION,
    Api,
    resource_path,
)
from tensorfusion_dra.cluster.watch import CACHED, TENSOR_FUSION, Watch
from tensorfusion_dra.core import names, printable
from tensorfusion_dra.core.claims import device_status
from tensorfusion_dra.core.claims.claim import ClaimRef, PodRef
from tensorfusion_dra.core.errors import (
    ClaimError,
    DriverError,
    MissingPermissionError,
    RetryableError,
    StatusError,
    UnreadableError,
)
from tensorfusion_dra.core.kubernetes import resource_claims
from tensorfusion_dra.core.kubernetes.projection import MAX_TEXT, Projection
from tensorfusion_dra.core.kubernetes.resource_claims import POD_CLAIM_ANNOTATION
from tensorfusion_dra.core.kubernetes.untyped_json import as_map, map_at
from tensorfusion_dra.runtime.loops import LogThrottle

log = structlog.get_logger()

_WAIT_SECONDS: Final = 10.0
_PERMISSION_DRIVER: Final = (
    f"associated-node:patch on resourceclaims/driver with resourceNames [{names.DRIVER}]"
)
_PERMISSION_TOKEN: Final = "a token bound to a pod on the one node that the claim is allocated for"  # noqa: S105 - says what is missing
_QUIET_SECONDS: Final = 600.0
_EVENT_WAIT_SECONDS: Final = 5.0
_MAX_NOTE_BYTES: Final = 1024
_MAX_INSTANCE_BYTES: Final = 128
_MAX_ANNOTATION: Final = 256
"""Characters. A quantity has at most 64, the name of a pod's entry for a claim 63."""


def _own(found: object) -> dict[str, str]:
    """Return the labels or annotations that concern this driver."""
    return {
        key: str(text)[:MAX_TEXT]
        for key, text in as_map(found).items()
        if key.startswith(names.ANNOTATION_PREFIX) or key == POD_CLAIM_ANNOTATION
    }


def _of_share(found: object) -> dict[str, str]:
    """Return the annotations of a claim that the driver reads, cut above the length of valid ones.

    A claim must stay readable whatever its tenant annotates. Otherwise a tenant could lower a
    limit, which the quota no longer charges, and keep the node from following.
    """
    return {
        key: str(text)[:_MAX_ANNOTATION]
        for key, text in as_map(found).items()
        if key in names.SHARE_ANNOTATIONS or key == POD_CLAIM_ANNOTATION
    }


def _parameters(found: object) -> object:
    """Return opaque parameters of this driver, and that others have some."""
    given = as_map(found)
    return given if given.get("driver") == names.DRIVER else {"driver": given.get("driver")}


_CLAIM: Final[Projection] = {
    "metadata!": {"uid!": str, "annotations": _of_share},
    "status": {
        "allocation": {
            "devices": {
                "results": [dict],
                "config": [{"source": str, "requests": [str], "opaque": _parameters}],
            }
        },
        "reservedFor": [dict],
    },
}
_CONTAINER: Final[Projection] = {
    "name": str,
    "restartPolicy": str,
    "resources": {"claims": [dict], "limits": dict},
}
_POD: Final[Projection] = {
    "metadata!": {
        "name!": str,
        "namespace!": str,
        "uid!": str,
        "labels": _own,
        "annotations": _own,
    },
    "spec!": {
        "hostPID": bool,
        "shareProcessNamespace": bool,
        "resourceClaims": [dict],
        "initContainers": [_CONTAINER],
        "containers": [_CONTAINER],
    },
    "status": {
        "phase": str,
        "resourceClaimStatuses": [dict],
        "extendedResourceClaimStatus": dict,
    },
}


class ApiClaims:
    """Reader of ResourceClaims; implements the port ClaimSource and the webhook's ClaimReader."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def fetch(self, ref: ClaimRef, *, wait_seconds: float) -> Mapping[str, Any]:
        found = self._api.read(
            f"claim {ref}",
            resource_path("resourceclaims", namespace=ref.namespace, name=ref.name),
            _CLAIM,
            wait_seconds=wait_seconds,
        )
        if not found:
            raise ClaimError(f"claim {ref}: found none at the API server")
        return found

    def listed(self, keep: Projection) -> Sequence[Mapping[str, Any]]:
        return self._api.listed(
            resource_path("resourceclaims"),
            keep,
            permission="list resourceclaims or, in a node plugin, --enforcer-wait-seconds=0",
        ).items

    def watch(
        self,
        labels: str,
        keep: Projection,
        on_list: Callable[[Sequence[Mapping[str, Any]]], None],
        on_event: Callable[[str, Mapping[str, Any]], None],
    ) -> Watch:
        """Return a watch of the claims with these labels, for a thread of its own."""
        return Watch(
            self._api,
            resource_path("resourceclaims"),
            keep,
            selector="",
            labels=labels,
            on_list=on_list,
            on_event=on_event,
        )

    def of_namespace(
        self, name: str, keep: Projection, *, wait_seconds: float
    ) -> Sequence[Mapping[str, Any]]:
        listed = self._api.read_list(
            f"claims of namespace {name}",
            resource_path("resourceclaims", namespace=name),
            keep,
            wait_seconds=wait_seconds,
        )
        for each in listed.passed_over:
            raise UnreadableError(
                f"claim {name}/{each.get('name')}: found more than is read of a claim, so what it "
                "has is not known, expected that it is deleted"
            )
        return listed.items


class Quotas:
    """Reader and marker of a namespace's GPUResourceQuotas; implements the webhook's QuotaStore."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def of_namespace(self, name: str, *, wait_seconds: float) -> Sequence[Mapping[str, Any]]:
        return self._api.read_list(
            f"quotas of namespace {name}",
            resource_path(names.GPU_RESOURCE_QUOTAS, namespace=name, root=TENSOR_FUSION),
            CACHED,
            wait_seconds=wait_seconds,
        ).items

    def annotate(self, quota: Mapping[str, Any], text: str, *, wait_seconds: float) -> bool:
        about = quota["metadata"]
        path = resource_path(
            names.GPU_RESOURCE_QUOTAS,
            namespace=about["namespace"],
            name=about["name"],
            root=TENSOR_FUSION,
        )
        change = {
            "resourceVersion": about["resourceVersion"],
            "annotations": {names.QUOTA_ADMITTED: text},
        }
        try:
            self._api.change(
                "PATCH",
                path,
                query={"fieldManager": names.FIELD_MANAGER},
                body={"metadata": change},
                content_type=MERGE_PATCH,
                wait_seconds=wait_seconds,
                permission="patch gpuresourcequotas",
            )
        except StatusError as error:
            if error.status in {404, 409}:
                return False
            raise
        return True


class ApiClaimStatus:
    """Writer of device status into ResourceClaims; implements the port ClaimStatus."""

    def __init__(self, api: Api, *, manager: str = names.FIELD_MANAGER) -> None:
        self._api = api
        self._manager = manager

    def write(self, ref: ClaimRef, devices: Sequence[Mapping[str, Any]]) -> bool:
        """Apply the device entries to the claim's status; see ports.ClaimStatus.

        The field manager is this driver's own, so the apply keeps the entries of other drivers, the
        allocation and reservedFor, none of which belong to this driver.
        """
        body = {
            "apiVersion": RESOURCE_VERSION,
            "kind": "ResourceClaim",
            # With the UID, the server rejects the write if a new claim has taken the name.
            "metadata": {"name": ref.name, "namespace": ref.namespace, "uid": ref.uid},
            "status": {"devices": list(devices)},
        }
        path = resource_path("resourceclaims", namespace=ref.namespace, name=ref.name)
        try:
            self._api.change(
                "PATCH",
                f"{path}/status",
                query={"fieldManager": self._manager, "force": "true"},
                body=body,
                content_type=APPLY,
                wait_seconds=_WAIT_SECONDS,
            )
        except StatusError as error:
            permission = "patch on resourceclaims/status" if error.status == 403 else ""
            # API servers from 1.36 on refuse a missing permission with a 422
            # (registry/resource/utils.go). Its text names the resource, and that of associated
            # nodes only if the claim's node is the node of the token.
            if error.status == 422 and "resourceclaims/driver" in str(error):
                is_of_node = "associated-node:" in str(error)
                permission = _PERMISSION_DRIVER if is_of_node else _PERMISSION_TOKEN
            if permission:
                raise MissingPermissionError(f"claim {ref}: {error}", permission) from error
            if error.status == 404:
                return False
            if error.status in {409, 422}:
                # The write means nothing once the claim with this UID, or a device of it, is gone.
                stored = self._api.find(path, wait_seconds=_WAIT_SECONDS) or {}
                allocated = set(map(device_status.key, resource_claims.results(stored)))
                written = set(map(device_status.key, devices))
                if map_at(stored, "metadata").get("uid") != ref.uid or not written <= allocated:
                    return False
            raise StatusError(
                f"claim {ref}: {error}", error.status, after_seconds=error.after_seconds
            ) from error
        return True


class ApiPods:
    """Reader of Pods; implements the port Pods."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def find(self, pod: PodRef, *, wait_seconds: float) -> Mapping[str, Any] | None:
        found = self._api.read(
            f"pod {pod}",
            resource_path("pods", namespace=pod.namespace, name=pod.name, root=CORE),
            _POD,
            wait_seconds=wait_seconds,
            permission="get pods or, in a node plugin, --read-pods turned off",
        )
        return found if found.get("metadata", {}).get("uid") == pod.uid else None


def has_priority_class(api: Api, name: str, wait_seconds: float) -> bool:
    """Return True if there is a PriorityClass of this name.

    Raises:
        RetryableError: The API server answered with an error, or not within the time.
    """
    path = resource_path("priorityclasses", name=name, root=f"/apis/{names.SCHEDULING_GROUP}/v1")
    return api.find(path, wait_seconds=wait_seconds) is not None


class ApiWorkerPods:
    """Reader and marker of a node's workers; implements the port WorkerPods."""

    def __init__(self, api: Api, *, node_name: str) -> None:
        self._api = api
        self._of_node = f"spec.nodeName={node_name}"
        self._unfinished = f"{self._of_node},status.phase!=Succeeded,status.phase!=Failed"

    def of_node(self, keep: Projection, *, wait_seconds: float) -> Sequence[Mapping[str, Any]]:
        ends = time.monotonic() + wait_seconds
        listed = self._api.read_list(
            "workers of the node",
            resource_path("pods", root=CORE),
            keep,
            query={"fieldSelector": self._unfinished, "labelSelector": names.TENSOR_FUSION_WORKER},
            wait_seconds=wait_seconds,
            permission="list pods",
        )
        # Also a worker that is too large may name cards, which others must not get.
        return listed.items + [
            self._api.annotations(
                resource_path(
                    "pods",
                    namespace=each.get("namespace", ""),
                    name=each.get("name", ""),
                    root=CORE,
                ),
                keep,
                wait_seconds=ends - time.monotonic(),
                permission="get pods",
            )
            for each in listed.passed_over
        ]

    def watch(
        self,
        keep: Projection,
        on_list: Callable[[Sequence[Mapping[str, Any]]], None],
        on_event: Callable[[str, Mapping[str, Any]], None],
    ) -> Watch:
        """Return a watch of the node's workers, to be run by a thread of its own."""
        return Watch(
            self._api,
            resource_path("pods", root=CORE),
            keep,
            selector=self._of_node,
            labels=names.TENSOR_FUSION_WORKER,
            on_list=on_list,
            on_event=on_event,
        )

    def mark(
        self,
        pod: PodRef,
        *,
        labels: Mapping[str, str | None],
        annotations: Mapping[str, str | None],
        wait_seconds: float,
    ) -> None:
        # With the UID, the server refuses the patch if a new pod has taken the name.
        changed = {"uid": pod.uid, "labels": {**labels}, "annotations": {**annotations}}
        try:
            self._api.change(
                "PATCH",
                resource_path("pods", namespace=pod.namespace, name=pod.name, root=CORE),
                query={"fieldManager": names.FIELD_MANAGER},
                body={"metadata": changed},
                content_type=MERGE_PATCH,
                wait_seconds=wait_seconds,
                permission="patch pods of this node",
            )
        except StatusError as error:
            raise RetryableError(
                f"pod {pod}: {error}", after_seconds=error.after_seconds
            ) from error


class ApiNodes:
    """Reader of one Node; implements the port Nodes."""

    def __init__(self, api: Api, *, node_name: str) -> None:
        self._api = api
        self._node_name = node_name

    def uid(self) -> str:
        # From the API server's memory, without asking etcd. An outdated UID does no lasting harm:
        # Kubernetes' garbage collector removes what an earlier Node of this name owns.
        uid = map_at(self._fetch({"resourceVersion": "0"}), "metadata").get("uid")
        if not uid:
            raise RetryableError(f"node {self._node_name}: found no UID")
        return str(uid)

    def annotations(self) -> Mapping[str, Any]:
        """Return the Node's annotations.

        Raises:
            RetryableError: The API server did not answer, or permission is missing.
        """
        return map_at(self._fetch({"resourceVersion": "0"}), "metadata", "annotations")

    def is_ready(self) -> bool:
        conditions = (self._fetch({}).get("status") or {}).get("conditions") or []
        return any(
            condition.get("type") == "Ready" and condition.get("status") == "True"
            for condition in conditions
        )

    def _fetch(self, query: Mapping[str, str]) -> dict[str, Any]:
        return self._api.call(
            "GET", resource_path("nodes", name=self._node_name, root=CORE), query=query
        )


class ApiEvents:
    """Writer of Events; implements the port Events. Use it from one thread."""

    def __init__(
        self,
        api: Api,
        nodes: ApiNodes,
        *,
        node_name: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args:
        clock: In seconds. It measures the time in which an event is not repeated.
        """
        self._api = api
        self._nodes = nodes
        self._node_name = node_name
        self._clock = clock
        self._written: dict[tuple[str, str, PodRef | None], float] = {}
        self._paused_until = -math.inf
        self._may_name_pods = True
        self._throttle = LogThrottle(clock=clock)

    def warn(self, reason: str, message: str, *, pod: PodRef | None = None) -> bool:
        return self._write("Warning", reason, message, pod)

    def note(self, reason: str, message: str, *, pod: PodRef | None = None) -> bool:
        return self._write("Normal", reason, message, pod)

    def _write(self, kind: str, reason: str, message: str, pod: PodRef | None) -> bool:
        now = self._clock()
        self._written = {
            event: at for event, at in self._written.items() if now - at < _QUIET_SECONDS
        }
        if (reason, message, pod) in self._written:
            return True
        if now < self._paused_until:
            return False
        try:
            self._send(kind, reason, message, pod)
        except DriverError as error:
            if isinstance(error, RetryableError):
                self._paused_until = self._clock() + error.after_seconds
            if self._throttle.is_new(str(error)):
                log.warning("event_write_failed", reason=reason, error=str(error))
            return False
        self._throttle.over()
        self._written[reason, message, pod] = now
        return True

    def _send(self, kind: str, reason: str, message: str, pod: PodRef | None) -> None:
        """Create the Event; about the Node if this driver may not write any about pods."""
        create = partial(create_event, self._api, instance=self._node_name)
        if pod is not None and self._may_name_pods:
            try:
                create(
                    pod.namespace,
                    kind,
                    reason=reason,
                    message=message,
                    regarding=pod.as_reference(),
                )
            except StatusError as error:
                if error.status == 404 or "being terminated" in str(error):
                    return  # the namespace goes, and the pod with it
                if error.status != 403:
                    raise
                self._may_name_pods = False
                log.warning(
                    "pod_events_forbidden",
                    error=f"expected create on events in all namespaces: {error}",
                )
            else:
                return
        create(
            "default",  # as for all objects without a namespace
            kind,
            reason=reason,
            message=message if pod is None else f"pod {pod}: {message}",
            regarding={
                "apiVersion": "v1",
                "kind": "Node",
                "name": self._node_name,
                "uid": self._nodes.uid(),
            },
        )


def create_event(
    api: Api,
    namespace: str,
    kind: str,
    *,
    reason: str,
    message: str,
    regarding: Mapping[str, str],
    instance: str,
    name: str = "",
) -> None:
    """Create an Event.

    Args:
        kind: Normal or Warning.
        name: Name of the Event, which is created only once; "" for a name of its own.
        instance: Who reports it.

    Raises:
        DriverError: The API server refuses it, or did not answer.
    """
    note = printable.one_line(message).encode()[:_MAX_NOTE_BYTES]
    api.change(
        "POST",
        f"/apis/events.k8s.io/v1/namespaces/{namespace}/events",
        body={
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {
                **({"name": name} if name else {"generateName": f"{names.DRIVER}-"}),
                "namespace": namespace,
            },
            "eventTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "reportingController": names.DRIVER,
            "reportingInstance": instance[:_MAX_INSTANCE_BYTES],
            "action": "ServeGPUs",  # what this driver does with objects; the reason is the outcome
            "reason": reason,
            "type": kind,
            "regarding": regarding,
            "note": note.decode(errors="ignore"),
        },
        wait_seconds=_EVENT_WAIT_SECONDS,
    )
