"""What admission needs from outside, beside driver.ports."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from tensorfusion_dra.core.claims.claim import PodRef


class PodReader(Protocol):
    """Pods at the API server."""

    def find(self, pod: PodRef, *, wait_seconds: float) -> Mapping[str, Any] | None:
        """This very pod, as it is stored now; None if it is gone or replaced.

        Raises:
            RetryableError: The API server gave no answer within the time, or an error.
        """
        ...


class PublishedSlices(Protocol):
    """This driver's ResourceSlices at the API server."""

    def published(self, *, wait_seconds: float) -> Sequence[Mapping[str, Any]]:
        """All of them, of every node, as they are stored now.

        Raises:
            RetryableError: The API server gave no answer within the time, or an error.
        """
        ...
