"""Our devices in the status of ResourceClaims, written by server-side apply."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tensorfusion_dra.cluster.api import APPLY, StatusError
from tensorfusion_dra.cluster.resource_api import ResourceApi
from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.driver.ports.cluster import MissingRightError

_WAIT_SECONDS: Final = 10.0

_RIGHT_STATUS: Final = "patch on resourceclaims/status"
_RIGHT_DRIVER: Final = (
    f"associated-node:patch on resourceclaims/driver with resourceNames [{names.DRIVER}]"
)
_RIGHT_TOKEN: Final = "a token bound to a pod on the one node that the claim is allocated for"  # noqa: S105 - says what is missing
# In the text of the 422 by which API servers refuse from 1.36 on (registry/resource/utils.go):
# always, and only if the claim's node is the token's.
_DRIVER_RESOURCE: Final = "resourceclaims/driver"
_ASSOCIATED: Final = "associated-node:"


class ClaimStatus:
    """See ports.cluster.ClaimStatus."""

    def __init__(self, resource_api: ResourceApi) -> None:
        self._resource_api = resource_api

    def write(self, ref: ClaimRef, devices: Sequence[Mapping[str, Any]]) -> bool:
        """See ports.cluster.ClaimStatus.

        Applied under a name of our own: entries of other drivers stay, and so do the allocation
        and its users, which are not ours to write.
        """
        body = {
            "apiVersion": self._resource_api.api_version(),
            "kind": "ResourceClaim",
            # With the UID, a new claim of the same name is refused instead of written to.
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
        """False if there is nothing to write to any more; else the error to raise."""
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
        """Whether this very claim is still there, and has these devices."""
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
