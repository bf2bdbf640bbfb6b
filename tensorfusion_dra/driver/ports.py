"""What the driver needs from outside, and what each of them promises."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from tensorfusion_dra.core.admission import HeldShare
from tensorfusion_dra.core.claim import ClaimRef
from tensorfusion_dra.core.gpu import Inventory
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


class Nodes(Protocol):
    """Node objects at the API server."""

    def uid(self) -> str:
        """The UID of this node's Node object.

        Raises:
            RetryableError: There is no such object, or no answer.
        """
        ...


class LedgerTransaction(Protocol):
    """One claim's step in the ledger, alone against all other steps on this node."""

    def shares_on(self, devices: Iterable[str]) -> Sequence[HeldShare]:
        """All shares that recorded claims hold on these devices."""
        ...

    def put(self, claim: PreparedClaim) -> None:
        """Adds the record, in place of an older one of the same UID."""
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

    def remove(self, claim_uid: str) -> None:
        """Returns once the absence of the record would survive a power cut."""
        ...


class Specs(Protocol):
    """The CDI directory, as far as it is ours.

    Raises, each of them:
        RetryableError: The directory is full, read-only or missing.
    """

    def ensure(self, claim_uid: str, spec: Mapping[str, Any]) -> bool:
        """Returns once a runtime would read this spec; True if it had to be written.

        A reader sees the old file or the new one, never a part.
        """
        ...

    def remove(self, claim_uid: str) -> None:
        """Returns once no runtime would find the claim's spec; fine if there is none."""
        ...

    def claim_uids(self) -> frozenset[str]:
        """The claims that have a spec."""
        ...
