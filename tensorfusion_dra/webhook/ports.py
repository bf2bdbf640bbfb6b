"""Interfaces that admission needs, in addition to driver.ports."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from tensorfusion_dra.core.claims.claim import PodRef


class PodReader(Protocol):
    """Pods at the API server."""

    def find(self, pod: PodRef, *, wait_seconds: float) -> Mapping[str, Any] | None:
        """Return the pod with this UID as it is stored now; None if it is gone or replaced.

        Raises:
            RetryableError: The API server answered with an error, or not within the time.
        """
        ...


class PublishedSlices(Protocol):
    """This driver's ResourceSlices at the API server."""

    def published(self, *, wait_seconds: float) -> Sequence[Mapping[str, Any]]:
        """Return the slices of all nodes as they are stored now.

        Raises:
            RetryableError: The API server answered with an error, or not within the time.
        """
        ...
