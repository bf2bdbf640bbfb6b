"""Paths of resource.k8s.io, in the version that the API server serves."""

import time
from threading import Lock
from typing import Final

from tensorfusion_dra.cluster.api import Api, segment
from tensorfusion_dra.core.errors import RetryableError

_GROUP: Final = "/apis/resource.k8s.io"
_WAIT_SECONDS: Final = 5.0
_VERSIONS: Final = ("v1", "v1beta2")
"""In order of preference. Both have the same JSON for the fields used here; v1beta1 differs."""


class ResourceApi:
    """Paths of resource.k8s.io; the version is requested from the API server once."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self._asking = Lock()  # guards _version
        self._version = ""

    def version(self, *, wait_seconds: float = _WAIT_SECONDS) -> str:
        """Return ``v1`` if the API server serves it, else ``v1beta2``.

        Args:
            wait_seconds: For the first call, which sends a request to the API server.

        Raises:
            RetryableError: The API server serves neither, or did not answer.
        """
        if self._version:
            return self._version
        ends = time.monotonic() + min(wait_seconds, _WAIT_SECONDS)
        # A call that waits for another one's answer keeps its own deadline.
        if not self._asking.acquire(timeout=max(0.0, ends - time.monotonic())):
            raise RetryableError(f"GET {_GROUP}: no answer within the time")
        try:
            if not self._version:
                group = self.api.call("GET", _GROUP, wait_seconds=ends - time.monotonic())
                served = [item.get("version") for item in group.get("versions") or []]
                self._version = next((v for v in _VERSIONS if v in served), "")
                if not self._version:
                    raise RetryableError(
                        f"resource.k8s.io: found {served}, expected one of {list(_VERSIONS)}"
                    )
            return self._version
        finally:
            self._asking.release()

    def api_version(self) -> str:
        """Return the value of the field apiVersion in objects."""
        return f"resource.k8s.io/{self.version()}"

    def slices(self, name: str = "") -> str:
        """Return the path of all ResourceSlices, or of the one with this name."""
        collection = f"{_GROUP}/{self.version()}/resourceslices"
        return f"{collection}/{segment(name)}" if name else collection

    def claims(self) -> str:
        """Return the path of the ResourceClaims of all namespaces."""
        return f"{_GROUP}/{self.version()}/resourceclaims"

    def claim(self, namespace: str, name: str) -> str:
        """Return the path of one ResourceClaim."""
        return (
            f"{_GROUP}/{self.version()}/namespaces/{segment(namespace)}"
            f"/resourceclaims/{segment(name)}"
        )
