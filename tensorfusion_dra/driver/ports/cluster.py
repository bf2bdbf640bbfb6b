"""What the driver needs from the API server, and what it is promised."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from tensorfusion_dra.core.claims.claim import ClaimRef, PodRef
from tensorfusion_dra.core.devices.slices import Slice
from tensorfusion_dra.core.errors import RetryableError


class Claims(Protocol):
    """ResourceClaims at the API server."""

    def fetch(self, ref: ClaimRef, *, wait_seconds: float) -> Mapping[str, Any]:
        """The stored ResourceClaim of this namespace and name, whatever its UID.

        Raises:
            ClaimError: There is none.
            RetryableError: The API server gave no answer within the time, or an error.
        """
        ...


class Slices(Protocol):
    """This node's ResourceSlices at the API server."""

    def fetch(self) -> Sequence[Slice]:
        """All slices of this driver and node, in any pool.

        Raises:
            RetryableError: The API server gave no answer, or an error.
        """
        ...

    def create(self, item: Slice, *, trial: bool = False) -> Slice:
        """The slice as the API server stored it, or with trial would have stored it.

        Raises:
            RetryableError: It was not stored; after a conflict, what was read is outdated.
        """
        ...

    def replace(self, item: Slice, *, trial: bool = False) -> Slice:
        """The slice as the API server stored it, or with trial would have stored it.

        Raises:
            RetryableError: It was not stored; after a conflict, what was read is outdated.
        """
        ...

    def delete(self, item: Slice) -> None:
        """Returns once this very object, unchanged since it was read, is gone.

        Raises:
            RetryableError: It may still be there.
        """
        ...


class Nodes(Protocol):
    """Node objects at the API server."""

    def uid(self) -> str:
        """The UID of this node's Node object.

        Raises:
            RetryableError: There is no such object, or no answer.
        """
        ...


class NodeReadiness(Protocol):
    """What the control plane says of this node."""

    def is_ready(self) -> bool:
        """Whether the Node is Ready: its kubelet was heard of within the last minute.

        Raises:
            RetryableError: There is no such object, or no answer.
        """
        ...


class Objects(Protocol):
    """Objects of one kind, followed at the API server."""

    def items(self) -> Sequence[Mapping[str, Any]]:
        """All of them, as the API server last told.

        Raises:
            RetryableError: It has told nothing yet.
            InputError: It does not have this kind.
        """
        ...


class Pods(Protocol):
    """Pods at the API server."""

    def annotations(self, pod: PodRef, *, wait_seconds: float) -> Mapping[str, str]:
        """The annotations of this very pod; none if it is gone or replaced.

        Raises:
            RetryableError: The API server gave no answer, or an error.
        """
        ...

    def find(self, pod: PodRef, *, wait_seconds: float) -> Mapping[str, Any] | None:
        """This very pod, as it is stored now; None if it is gone or replaced.

        Raises:
            RetryableError: The API server gave no answer within the time, or an error.
        """
        ...


class MissingRightError(RetryableError):
    """The API server refuses for lack of a right, until an administrator grants it.

    Attributes:
        right: What is missing, the same text for every object that it is missing for.
    """

    def __init__(self, text: str, right: str) -> None:
        super().__init__(text)
        self.right = right


class UnreadableError(RetryableError):
    """The API server answers, but not with an object that can be read.

    Asking again at once changes nothing about it; other objects may be readable.
    """


class ClaimStatus(Protocol):
    """What ResourceClaims at the API server tell of this driver's devices."""

    def write(self, ref: ClaimRef, devices: Sequence[Mapping[str, Any]]) -> bool:
        """True once these entries, and no others of ours, stand in this very claim's status.

        False if the claim is gone, was replaced by another one of its name, or no longer has
        these devices: nothing was written then, and nothing ever will be.

        Raises:
            MissingRightError: The API server does not let us.
            RetryableError: They may not have been written.
        """
        ...


class Events(Protocol):
    """Events on this node's Node object, for those who look there first."""

    def warn(self, reason: str, message: str) -> bool:
        """Writes a warning, but not the same one again within ten minutes; True if it is written.

        Never raises: what cannot be written is logged. Nothing is sent in a pause for which the
        API server has asked.
        """
        ...

    def note(self, reason: str, message: str) -> bool:
        """Writes what is no reason to worry; else as warn()."""
        ...
