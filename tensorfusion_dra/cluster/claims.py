"""Reads of single ResourceClaims, on behalf of the kubelet's calls."""

import time
from collections.abc import Mapping
from typing import Any

from tensorfusion_dra.cluster.api import StatusError
from tensorfusion_dra.cluster.resource_api import ResourceApi
from tensorfusion_dra.cluster.retries import RetriedReads
from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.errors import ClaimError


class Claims:
    """Reader of ResourceClaims; implements ports.cluster.Claims."""

    def __init__(self, resource_api: ResourceApi, *, reads: RetriedReads | None = None) -> None:
        """Store the arguments; nothing is read yet.

        Args:
            reads: The bound on concurrent reads, shared by all reads that the kubelet's calls wait
                for. None creates a bound for this reader alone.
        """
        self._resource_api = resource_api
        self._reads = reads or RetriedReads()

    def fetch(self, ref: ClaimRef, *, wait_seconds: float) -> Mapping[str, Any]:
        return self._reads.with_retries(
            f"claim {ref}",
            lambda seconds: self._fetch_once(ref, seconds),
            wait_seconds=wait_seconds,
        )

    def _fetch_once(self, ref: ClaimRef, wait_seconds: float) -> Mapping[str, Any]:
        ends = time.monotonic() + wait_seconds
        self._resource_api.version(wait_seconds=wait_seconds)
        path = self._resource_api.claim(ref.namespace, ref.name)
        try:
            left = ends - time.monotonic()
            return self._resource_api.api.call("GET", path, wait_seconds=left)
        except StatusError as error:
            # Only a 404 with these details means that the claim does not exist. One without them
            # comes from a server that does not know the path, or from a proxy.
            missing = (error.details.get("kind"), error.details.get("name"))
            if error.status == 404 and missing == ("resourceclaims", ref.name):
                raise ClaimError(f"claim {ref}: found none at the API server") from error
            raise
