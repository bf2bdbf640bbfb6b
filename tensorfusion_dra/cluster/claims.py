"""Single ResourceClaims: reads on behalf of the kubelet's calls, and writes of their status."""

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tensorfusion_dra.cluster.api import APPLY, ResourceApi, RetriedReads, StatusError
from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.errors import ClaimError, RetryableError
from tensorfusion_dra.driver.ports import MissingRightError

_WAIT_SECONDS: Final = 10.0
_RIGHT_STATUS: Final = "patch on resourceclaims/status"
_RIGHT_DRIVER: Final = (
    f"associated-node:patch on resourceclaims/driver with resourceNames [{names.DRIVER}]"
)
_RIGHT_TOKEN: Final = "a token bound to a pod on the one node that the claim is allocated for"  # noqa: S105 - says what is missing
# API servers from 1.36 on refuse a missing right with a 422 (registry/resource/utils.go). Its text
# always contains the first string; it contains the second one only if the claim's node is the node
# of the token.
_DRIVER_RESOURCE: Final = "resourceclaims/driver"
_ASSOCIATED: Final = "associated-node:"


class Claims:
    """Reader of ResourceClaims; implements ports.Claims."""

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


class ClaimStatus:
    """Writer of device status into ResourceClaims; implements ports.ClaimStatus."""

    def __init__(self, resource_api: ResourceApi) -> None:
        self._resource_api = resource_api

    def write(self, ref: ClaimRef, devices: Sequence[Mapping[str, Any]]) -> bool:
        """Apply the device entries to the claim's status; see ports.ClaimStatus.

        The field manager is this driver's own, so the apply keeps the entries of other drivers, the
        allocation and reservedFor, none of which belong to this driver.
        """
        body = {
            "apiVersion": self._resource_api.api_version(),
            "kind": "ResourceClaim",
            # With the UID, the server rejects the write if a new claim has taken the name.
            "metadata": {"name": ref.name, "namespace": ref.namespace, "uid": ref.uid},
            "status": {"devices": list(devices)},
        }
        try:
            self._resource_api.api.call(
                "PATCH",
                f"{self._resource_api.claim(ref.namespace, ref.name)}/status",
                query={"fieldManager": names.FIELD_MANAGER, "force": "true"},
                body=body,
                content_type=APPLY,
                wait_seconds=_WAIT_SECONDS,
            )
        except StatusError as error:
            return self._refused(ref, devices, error)
        return True

    def _refused(
        self, ref: ClaimRef, devices: Sequence[Mapping[str, Any]], error: StatusError
    ) -> bool:
        """Return False if the claim or its allocation is gone; otherwise raise the right error."""
        if error.status == 404:
            return False
        if error.status == 403:
            raise MissingRightError(f"claim {ref}: {error}", _RIGHT_STATUS) from error
        if error.status == 422 and _DRIVER_RESOURCE in str(error):
            right = _RIGHT_DRIVER if _ASSOCIATED in str(error) else _RIGHT_TOKEN
            raise MissingRightError(f"claim {ref}: {error}", right) from error
        if error.status in {409, 422} and not self._has(ref, devices):
            return False
        raise RetryableError(f"claim {ref}: {error}", after_seconds=error.after_seconds) from error

    def _has(self, ref: ClaimRef, devices: Sequence[Mapping[str, Any]]) -> bool:
        """Return True if the claim with this UID still exists and is allocated these devices."""
        path = self._resource_api.claim(ref.namespace, ref.name)
        try:
            stored = self._resource_api.api.call("GET", path, wait_seconds=_WAIT_SECONDS)
        except StatusError as error:
            if error.status == 404:
                return False
            raise
        allocation = (stored.get("status") or {}).get("allocation") or {}
        results = (allocation.get("devices") or {}).get("results") or []
        allocated = {_key(result) for result in results}
        return stored["metadata"]["uid"] == ref.uid and {_key(d) for d in devices} <= allocated


def _key(device: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(device.get(name) for name in ("driver", "pool", "device", "shareID"))
