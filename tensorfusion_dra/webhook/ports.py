"""What admission needs from outside, beside driver.ports."""

from collections.abc import Mapping
from typing import Any, Protocol

from tensorfusion_dra.core.claim import PodRef


class PodReader(Protocol):
    """Pods at the API server."""

    def find(self, pod: PodRef, *, wait_seconds: float) -> Mapping[str, Any] | None:
        """This very pod, as it is stored now; None if it is gone or replaced.

        Raises:
            RetryableError: The API server gave no answer within the time, or an error.
        """
        ...
