"""Interfaces that admission needs, in addition to driver.ports."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from tensorfusion_dra.core.claims.claim import PodRef
from tensorfusion_dra.core.kubernetes.review import Outcome


class PodReader(Protocol):
    """Pods at the API server."""

    def find(self, pod: PodRef, *, wait_seconds: float) -> Mapping[str, Any] | None:
        """Return the pod with this UID as it is stored now; None if it is gone or replaced.

        Raises:
            RetryableError: The API server answered with an error, or not within the time.
        """
        ...


class ReviewObserver(Protocol):
    """Follower of the reviews, called by all threads before the answer; returns at once."""

    def reviewed(self, kind: str, outcome: Outcome, seconds: float) -> None:
        """Take note of a review that has ended.

        Args:
            kind: Of the object.
            outcome: How it ended.
            seconds: Time from the arrival of the request.
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
