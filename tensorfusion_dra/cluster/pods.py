"""Reads of single Pods."""

from collections.abc import Mapping
from typing import Any

from tensorfusion_dra.cluster.api import Api, StatusError, segment
from tensorfusion_dra.cluster.retries import RetriedReads
from tensorfusion_dra.core.claims.claim import PodRef
from tensorfusion_dra.driver.ports.cluster import MissingRightError


class Pods:
    """Reader of Pods; implements ports.cluster.Pods and webhook.ports.PodReader."""

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
