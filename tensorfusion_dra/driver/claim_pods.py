"""The pods of one claim, read from the API server at most once."""

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import cached_property
from typing import Any, Final

from tensorfusion_dra.core.claims.claim import AllocatedClaim, PodRef
from tensorfusion_dra.driver.ports.cluster import Pods

_MOST_AT_ONCE: Final = 16


class ClaimPods:
    """Reader of a claim's pods, which are read when they are first needed, all side by side."""

    def __init__(self, pods: Pods | None, claim: AllocatedClaim, *, deadline: float) -> None:
        """Read nothing yet.

        Args:
            pods: None if the driver has no permission to read pods.
            claim: As allocated.
            deadline: On time.monotonic()'s clock.
        """
        self._pods = pods
        self._claim = claim
        self._deadline = deadline

    @property
    def can_be_read(self) -> bool:
        """False if the driver has no permission to read pods."""
        return self._pods is not None

    @cached_property
    def stored(self) -> Mapping[str, Mapping[str, Any]]:
        """The stored pods by namespace/name; pods that are gone or replaced are empty.

        Raises:
            RetryableError: A pod cannot be read now.
        """
        pods = self._pods
        if pods is None:
            return {}

        def find(pod: PodRef) -> Mapping[str, Any]:
            return pods.find(pod, wait_seconds=self._deadline - time.monotonic()) or {}

        if len(self._claim.pods) < 2:
            return {str(pod): find(pod) for pod in self._claim.pods}
        with ThreadPoolExecutor(_MOST_AT_ONCE, thread_name_prefix="read") as threads:
            # With the caller's context, which has the call's ID for the log.
            found = [threads.submit(copy_context().run, find, pod) for pod in self._claim.pods]
            return {
                str(pod): each.result() for pod, each in zip(self._claim.pods, found, strict=True)
            }
