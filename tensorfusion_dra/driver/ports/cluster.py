"""Interfaces to the API server: what the driver calls, and what each call promises."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from tensorfusion_dra.core.claims.claim import ClaimRef, PodRef
from tensorfusion_dra.core.devices.slices import Slice
from tensorfusion_dra.core.errors import RetryableError


class Claims(Protocol):
    """Reader of ResourceClaims."""

    def fetch(self, ref: ClaimRef, *, wait_seconds: float) -> Mapping[str, Any]:
        """Return the stored ResourceClaim with this namespace and name, whatever its UID.

        Raises:
            ClaimError: There is no such claim.
            RetryableError: The API server did not answer in time, or answered with an error.
        """
        ...


class Slices(Protocol):
    """Reader and writer of this node's ResourceSlices, for one thread."""

    def fetch(self) -> Sequence[Slice] | None:
        """Return all slices of this driver and node, in any pool; None if not known yet.

        They include all own writes, but changes of other writers only after a while. After an error
        of a write that leaves doubts about the stored slices, the API server lists them anew.

        Raises:
            MissingRightError: The driver has no permission to list slices.
            RetryableError: The API server did not answer in time, or answered with an error.
        """
        ...

    def create(self, item: Slice, *, trial: bool = False) -> Slice:
        """Create the slice; return it as the API server stored it.

        Args:
            item: The complete object.
            trial: True for a dry run, which returns the slice as it would be stored.

        Raises:
            MissingRightError: The driver has no permission to create slices.
            RetryableError: It may not have been stored. After a conflict, what was read before is
                outdated.
        """
        ...

    def replace(self, item: Slice, *, trial: bool = False) -> Slice:
        """Replace the stored slice if it is unchanged since it was read; return it as stored.

        Args:
            item: The complete object, with the resourceVersion that was read.
            trial: True for a dry run, which returns the slice as it would be stored.

        Raises:
            MissingRightError: The driver has no permission to update slices.
            RetryableError: It may not have been stored. After a conflict, what was read before is
                outdated.
        """
        ...

    def delete(self, item: Slice) -> None:
        """Delete this very object if it is unchanged since it was read; return once it is gone.

        Raises:
            MissingRightError: The driver has no permission to delete slices.
            RetryableError: The object may still exist.
        """
        ...


class Nodes(Protocol):
    """Reader of this node's Node object."""

    def uid(self) -> str:
        """Return the UID of this node's Node object.

        Raises:
            RetryableError: There is no such object, or the API server did not answer.
        """
        ...


class NodeReadiness(Protocol):
    """Reader of this node's condition Ready."""

    def is_ready(self) -> bool:
        """Return True if the Node is Ready: its kubelet has sent heartbeats within the last minute.

        Raises:
            RetryableError: There is no such object, or the API server did not answer.
        """
        ...


class Objects(Protocol):
    """Cache of the objects of one kind, kept current by a watch."""

    def items(self) -> Sequence[Mapping[str, Any]]:
        """Return all objects as the API server last sent them.

        Raises:
            RetryableError: The API server has not listed them yet.
            InputError: The API server does not serve this kind.
        """
        ...


class Pods(Protocol):
    """Reader of pods."""

    def find(self, pod: PodRef, *, wait_seconds: float) -> Mapping[str, Any] | None:
        """Return the stored pod with this UID; None if it is gone or replaced.

        Raises:
            MissingRightError: The driver has no permission to read pods.
            RetryableError: The API server did not answer in time, or answered with an error.
        """
        ...


class WorkerPods(Protocol):
    """Reader and marker of the node's pods that Tensor Fusion's hypervisor sees as workers."""

    def of_node(self, *, wait_seconds: float) -> Sequence[Mapping[str, Any]]:
        """Return the stored workers of this node, whoever marked them.

        Raises:
            MissingRightError: The driver has no permission to list pods.
            RetryableError: The API server did not answer in time, or answered with an error.
        """
        ...

    def mark(
        self,
        pod: PodRef,
        *,
        labels: Mapping[str, str | None],
        annotations: Mapping[str, str | None],
        wait_seconds: float,
    ) -> None:
        """Set labels and annotations of the pod with this UID; None removes one.

        Raises:
            MissingRightError: The driver has no permission to patch the pod.
            RetryableError: They may not be set; the pod may be gone.
        """
        ...


class MissingRightError(RetryableError):
    """The API server refuses a call because the driver lacks a permission.

    It does so until an administrator grants the permission.

    Attributes:
        right: The missing permission; the same text for all objects that it applies to.
    """

    def __init__(self, text: str, right: str) -> None:
        super().__init__(text)
        self.right = right


class UnreadableError(RetryableError):
    """The API server's answer is not an object that can be read.

    An immediate retry would get the same answer; other objects may be readable.
    """


class ClaimStatus(Protocol):
    """Writer of this driver's entries in the `status.devices` of ResourceClaims."""

    def write(self, ref: ClaimRef, devices: Sequence[Mapping[str, Any]]) -> bool:
        """Store the entries in the status of the claim with this UID; return True once stored.

        They replace all entries of this driver; those of other drivers stay.

        Return False if the claim is gone, was replaced by another claim of its name, or no longer
        has these devices. Nothing was written then, and a retry would not write anything either.

        Raises:
            MissingRightError: The driver has no permission to write the status.
            RetryableError: The entries may not have been written.
        """
        ...


class Events(Protocol):
    """Writer of Events on this node's Node object and on its pods."""

    def warn(self, reason: str, message: str, *, pod: PodRef | None = None) -> bool:
        """Write an Event of type Warning; return True if it is written.

        The same Event is not written again within ten minutes; True is returned for it. An Event
        that cannot be written is logged and raises nothing. Nothing is sent during a pause that the
        API server requested.

        Args:
            reason: In CamelCase, for programs.
            message: For people.
            pod: The pod that it is about; None for the Node. Without the right to write Events
                about pods, it is written about the Node.
        """
        ...

    def note(self, reason: str, message: str, *, pod: PodRef | None = None) -> bool:
        """Write an Event of type Normal; otherwise like warn()."""
        ...


class Exchanges(Protocol):
    """Observer of the requests to the API server; each method returns at once, from any thread.

    A request is noted once, when it is over; a watch when it begins, and again if it breaks.
    """

    def answered(self, method: str, status: int, error: str, *, path: str) -> None:
        """Take note of an answer.

        Args:
            method: Such as GET, or WATCH for the beginning of a watch.
            status: The HTTP status.
            error: Text of the error, without credentials; "" below status 400.
            path: Of the request, without its query.
        """
        ...

    def unanswered(self, method: str, error: str, *, path: str) -> None:
        """Take note of a request without a complete answer, or of a watch that broke.

        Args:
            method: As in answered().
            error: Its text, without credentials.
            path: As in answered().
        """
        ...

    def heard(self) -> None:
        """Take note of an event of a watch, such as a bookmark."""
        ...
