"""Single Pods, and the pods that Tensor Fusion's hypervisor sees as workers."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from tensorfusion_dra.cluster.api import Api, RetriedReads, StatusError, segment
from tensorfusion_dra.cluster.watch import Watch
from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims.claim import PodRef
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.driver.ports import MissingRightError

_PODS: Final = "/api/v1/pods"
_MERGE: Final = "application/merge-patch+json"


class Pods:
    """Reader of Pods; implements ports.Pods and webhook.admission.PodReader."""

    def __init__(self, api: Api, *, reads: RetriedReads | None = None) -> None:
        """Store the arguments; nothing is read yet.

        Args:
            reads: The bound on concurrent reads; see Claims.
        """
        self._api = api
        self._reads = reads or RetriedReads()

    def find(self, pod: PodRef, *, wait_seconds: float) -> Mapping[str, Any] | None:
        return self._reads.with_retries(
            f"pod {pod}", lambda seconds: self._read_once(pod, seconds), wait_seconds=wait_seconds
        )

    def _read_once(self, pod: PodRef, wait_seconds: float) -> Mapping[str, Any] | None:
        path = f"/api/v1/namespaces/{segment(pod.namespace)}/pods/{segment(pod.name)}"
        try:
            stored = self._api.call("GET", path, wait_seconds=wait_seconds)
        except StatusError as error:
            if error.status == 404:
                return None
            if error.status == 403:
                raise MissingRightError(
                    "expected the right to get pods or, in a node plugin, --read-pods turned off: "
                    f"{error}",
                    "get on pods",
                ) from error
            raise
        return stored if (stored.get("metadata") or {}).get("uid") == pod.uid else None


class WorkerPods:
    """Reader and marker of a node's workers; implements ports.WorkerPods."""

    def __init__(self, api: Api, *, node_name: str, reads: RetriedReads | None = None) -> None:
        """Store the arguments; nothing is read yet.

        Args:
            reads: The bound on concurrent reads; see Claims.
        """
        self._api = api
        self._of_node = f"spec.nodeName={node_name}"
        self._reads = reads or RetriedReads()

    def of_node(self, *, wait_seconds: float) -> Sequence[Mapping[str, Any]]:
        return self._reads.with_retries(
            "workers of the node", self._list, wait_seconds=wait_seconds
        )

    def watch(
        self,
        on_list: Callable[[Sequence[Mapping[str, Any]]], None],
        on_event: Callable[[str, Mapping[str, Any]], None],
    ) -> Watch:
        """Return a watch of the node's workers, to be run by a thread of its own."""
        return Watch(
            self._api,
            lambda: _PODS,
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
        metadata = {"uid": pod.uid, "labels": {**labels}, "annotations": {**annotations}}
        try:
            self._api.call(
                "PATCH",
                f"/api/v1/namespaces/{segment(pod.namespace)}/pods/{segment(pod.name)}",
                query={"fieldManager": names.FIELD_MANAGER},
                body={"metadata": metadata},
                content_type=_MERGE,
                wait_seconds=wait_seconds,
            )
        except StatusError as error:
            if error.status == 403:
                raise MissingRightError(
                    f"pod {pod}: expected the right to patch pods of this node: {error}",
                    "patch on pods",
                ) from error
            raise RetryableError(
                f"pod {pod}: {error}", after_seconds=error.after_seconds
            ) from error

    def _list(self, wait_seconds: float) -> Sequence[Mapping[str, Any]]:
        query = {
            "fieldSelector": self._of_node,
            "labelSelector": names.TENSOR_FUSION_WORKER,
        }
        try:
            found = self._api.call("GET", _PODS, query=query, wait_seconds=wait_seconds)
        except StatusError as error:
            if error.status == 403:
                raise MissingRightError(
                    f"expected the right to list pods: {error}", "list on pods"
                ) from error
            raise
        return found.get("items") or ()
