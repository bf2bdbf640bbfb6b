"""One-time reads of this driver's ResourceSlices, of all nodes."""

from collections.abc import Mapping, Sequence
from typing import Any

from tensorfusion_dra.cluster.resource_api import ResourceApi
from tensorfusion_dra.cluster.retries import RetriedReads
from tensorfusion_dra.core import names


class PublishedSlices:
    """Reader of published ResourceSlices; implements webhook.ports.PublishedSlices."""

    def __init__(self, resource_api: ResourceApi) -> None:
        self._resource_api = resource_api
        self._reads = RetriedReads()

    def published(self, *, wait_seconds: float) -> Sequence[Mapping[str, Any]]:
        return self._reads.with_retries(
            "ResourceSlices", self._list_once, wait_seconds=wait_seconds
        )

    def _list_once(self, wait_seconds: float) -> Sequence[Mapping[str, Any]]:
        listed = self._resource_api.api.call(
            "GET",
            self._resource_api.slices(),
            query={"fieldSelector": f"spec.driver={names.DRIVER}"},
            wait_seconds=wait_seconds,
        )
        return listed.get("items") or []
