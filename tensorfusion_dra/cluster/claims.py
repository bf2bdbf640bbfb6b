"""ResourceClaims, read when the kubelet asks for one."""

import time
from collections.abc import Mapping
from typing import Any, Final

from tensorfusion_dra.cluster.api import READ_SECONDS, StatusError
from tensorfusion_dra.cluster.resource_api import ResourceApi
from tensorfusion_dra.core.claim import ClaimRef
from tensorfusion_dra.core.errors import ClaimError, RetryableError

_TRIES: Final = 3
_PAUSE_SECONDS: Final = 0.2


class Claims:
    """See ports.Claims."""

    def __init__(self, resource_api: ResourceApi) -> None:
        self._resource_api = resource_api

    def fetch(self, ref: ClaimRef, *, wait_seconds: float) -> Mapping[str, Any]:
        """See ports.Claims. A passing fault is tried again: the kubelet would wait a minute."""
        deadline = time.monotonic() + wait_seconds
        tries_left = _TRIES
        while True:
            tries_left -= 1
            try:
                return self._fetch_once(ref, deadline - time.monotonic())
            except RetryableError as error:
                pause = time.monotonic() + _PAUSE_SECONDS < deadline
                if not tries_left or not pause:
                    raise RetryableError(f"claim {ref}: {error}") from error
                time.sleep(_PAUSE_SECONDS)

    def _fetch_once(self, ref: ClaimRef, wait_seconds: float) -> Mapping[str, Any]:
        path = self._resource_api.claim(ref.namespace, ref.name)
        try:
            return self._resource_api.api.call(
                "GET", path, wait_seconds=min(READ_SECONDS, wait_seconds)
            )
        except StatusError as error:
            if error.status == 404:
                raise ClaimError(f"claim {ref}: found none at the API server") from error
            raise
