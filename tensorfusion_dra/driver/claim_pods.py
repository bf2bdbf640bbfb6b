"""The pods of one claim, read from the API server at most once."""

import time
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from tensorfusion_dra.core.claims.claim import AllocatedClaim
from tensorfusion_dra.core.errors import DriverError
from tensorfusion_dra.driver.ports.cluster import Pods
from tensorfusion_dra.runtime import side_by_side


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
        found: dict[str, Mapping[str, Any]] = {}
        outcomes = side_by_side.read(
            lambda pod: pods.find(pod, wait_seconds=self._deadline - time.monotonic()),
            self._claim.pods,
        )
        for pod, outcome in zip(self._claim.pods, outcomes, strict=True):
            if isinstance(outcome, DriverError):
                raise outcome
            found[str(pod)] = outcome or {}
        return found
