"""What the driver needs from outside, and what each of them promises."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from tensorfusion_dra.core.claim import ClaimRef, PodRef
from tensorfusion_dra.core.enforcers.enforcer import Needs
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.core.gpu import Inventory
from tensorfusion_dra.core.mounts import Mount
from tensorfusion_dra.core.prepared import PreparedClaim
from tensorfusion_dra.core.slices import Slice


class Discovery(Protocol):
    """Reads the node's GPUs."""

    def read(self) -> Inventory:
        """Every card of the node as it is now.

        Raises:
            RetryableError: There is no answer yet (no library, driver not loaded, call hung); the
                text says what is waited for.
            FatalError: The driver was replaced; only a new process can load its library.
        """
        ...


class DeviceNodes(Protocol):
    """The device nodes of the host."""

    def of_card(self, minor: int) -> tuple[str, ...]:
        """Paths of a card's own nodes.

        Raises:
            RetryableError: One is missing or no character device.
        """
        ...

    def common(self) -> tuple[str, ...]:
        """Paths of the nodes that every container with a card needs.

        Raises:
            RetryableError: One that no CUDA program can do without is missing.
        """
        ...


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


class PublishingRight(Protocol):
    """Settles which of several instances on this node publishes its devices.

    During a rolling update two releases may see other devices in the same cards. Each would undo
    what the other writes, for ever. So the newest publishes, from the moment it is able to: an
    update that cannot publish leaves the old instance its right.
    """

    def take(self) -> None:
        """Returns once this instance is the newest; does nothing from the second time on.

        Raises:
            RetryableError: Another instance is just doing so, or the disk is full or read-only.
        """
        ...

    def held(self) -> bool:
        """False while an instance lives that took the right after this one.

        True if that cannot be found out: two that publish are better than none.
        """
        ...

    def release(self) -> None:
        """Gives the right to the newest of the others; for an instance that stops."""
        ...


class Nodes(Protocol):
    """Node objects at the API server."""

    def uid(self) -> str:
        """The UID of this node's Node object.

        Raises:
            RetryableError: There is no such object, or no answer.
        """
        ...


class DriverFiles(Protocol):
    """The NVIDIA driver's libraries, as a container can get them."""

    def toolkit_device(self, gpu_uuid: str) -> str | None:
        """The card's qualified CDI device in the spec of NVIDIA's container toolkit, if any."""
        ...

    def mounts(self) -> tuple[Mount, ...]:
        """The libraries found under the driver's root.

        Raises:
            RetryableError: Those that no CUDA program can do without are missing.
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


class HostFiles(Protocol):
    """Files and folders of the host that an enforcer needs."""

    def provide(self, needs: Needs) -> None:
        """Returns once every file is there and every folder has its mode.

        Raises:
            RetryableError: A file is missing, or a folder cannot be made; the text has its path.
        """
        ...

    def withdraw(self, needs: Needs) -> None:
        """Removes the folders if they are empty: others may have put something in them."""
        ...


class Pods(Protocol):
    """Pods at the API server."""

    def annotations(self, pod: PodRef, *, wait_seconds: float) -> Mapping[str, str]:
        """The annotations of this very pod; none if it is gone or replaced.

        Raises:
            RetryableError: The API server gave no answer, or an error.
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

    def warn(self, reason: str, message: str) -> None:
        """Writes a warning, but not the same one again within ten minutes.

        Never raises: what cannot be written is logged.
        """
        ...


class LedgerTransaction(Protocol):
    """One claim's step in the ledger, alone against all other steps on this node."""

    def get(self, claim_uid: str) -> PreparedClaim | None:
        """The record of a claim, or None."""
        ...

    def claims_on(self, devices: Iterable[str]) -> Sequence[PreparedClaim]:
        """All recorded claims that hold a share of one of these devices, each once."""
        ...

    def put(self, claim: PreparedClaim) -> None:
        """Adds the record, in place of an older one of the same UID."""
        ...

    def remove(self, claim_uid: str) -> None:
        """Removes the record; fine if there is none."""
        ...


class Ledger(Protocol):
    """All prepared claims of this node; every method may be called from any thread.

    Raises, each of them:
        RetryableError: The disk is full or read-only, or another process holds the ledger.
        FatalError: The ledger is damaged.
    """

    def get(self, claim_uid: str) -> PreparedClaim | None:
        """The record of a claim, or None."""
        ...

    def claims(self) -> Sequence[PreparedClaim]:
        """All records."""
        ...

    def transaction(self) -> AbstractContextManager[LedgerTransaction]:
        """On leaving, everything put in it would survive a power cut; on an error, nothing."""
        ...


class ClaimFiles(Protocol):
    """A folder with one JSON file a claim, as far as it is ours.

    Raises, each of them:
        RetryableError: The folder is full, read-only or missing.
    """

    def ensure(self, claim_uid: str, document: Mapping[str, Any]) -> bool:
        """Returns once a reader would find this document; True if it had to be written.

        A reader sees the old file or the new one, never a part.
        """
        ...

    def remove(self, claim_uid: str) -> None:
        """Returns once no reader would find the claim's file; fine if there is none."""
        ...

    def remove_unfinished(self) -> None:
        """Removes what a crash left of a write; call it only while nobody writes."""
        ...

    def claim_uids(self) -> frozenset[str]:
        """The claims that have a file."""
        ...
