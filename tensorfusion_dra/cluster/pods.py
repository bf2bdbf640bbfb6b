"""Pods, read for the limits that their annotations ask for."""

from collections.abc import Mapping

from tensorfusion_dra.cluster.api import Api, StatusError, segment
from tensorfusion_dra.cluster.retries import answered
from tensorfusion_dra.core.claim import PodRef
from tensorfusion_dra.driver.ports import MissingRightError


class Pods:
    """See ports.Pods."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def annotations(self, pod: PodRef, *, wait_seconds: float) -> Mapping[str, str]:
        """See ports.Pods."""
        return answered(
            f"pod {pod}", lambda seconds: self._read_once(pod, seconds), wait_seconds=wait_seconds
        )

    def _read_once(self, pod: PodRef, wait_seconds: float) -> Mapping[str, str]:
        path = f"/api/v1/namespaces/{segment(pod.namespace)}/pods/{segment(pod.name)}"
        try:
            stored = self._api.call("GET", path, wait_seconds=wait_seconds)
        except StatusError as error:
            if error.status == 404:
                return {}
            if error.status == 403:
                raise MissingRightError(
                    f"expected the right to get pods, or --read-pods turned off: {error}",
                    "get on pods",
                ) from error
            raise
        metadata = stored.get("metadata") or {}
        if metadata.get("uid") != pod.uid:
            return {}
        return metadata.get("annotations") or {}
