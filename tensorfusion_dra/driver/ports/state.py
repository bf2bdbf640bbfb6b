"""What the driver needs to keep on this node, and what it is promised."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from tensorfusion_dra.core.claims.claim import PodRef
from tensorfusion_dra.core.claims.enforcers.enforcer import Needs
from tensorfusion_dra.core.claims.prepared import PreparedClaim


class CardRecords(Protocol):
    """Where a record of the node's cards is kept over restarts.

    Attributes:
        boot_id: Tells this boot of the machine from others.
    """

    boot_id: str

    def load(self) -> Mapping[str, Any] | None:
        """What was saved last; None if nothing was, or nothing that can be read."""
        ...

    def save(self, record: Mapping[str, Any]) -> None:
        """Returns once the record would survive a power cut.

        Raises:
            RetryableError: The old record, or none, is still there.
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

    def remove(self, folder: str) -> None:
        """Take a folder away, whatever containers put in it; fine if there is none.

        Returns once nobody finds it in its place; remove_unfinished() removes what is left of it.

        Raises:
            RetryableError: It is still there.
        """
        ...

    def remove_unfinished(self, root: str) -> None:
        """Remove a part of what is left of folders that were taken away from this one.

        Raises:
            RetryableError: Something cannot be removed now.
        """
        ...

    def names(self, root: str) -> frozenset[str]:
        """The folders in this one; none if it is not there.

        Raises:
            RetryableError: It cannot be read.
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

    def claims(self) -> Sequence[PreparedClaim]:
        """All recorded claims of this node. Slow with many of them, so for rare cases."""
        ...

    def claims_of_pods(self, pods: Iterable[PodRef]) -> Sequence[PreparedClaim]:
        """All recorded claims that are for a pod of the namespace and name of one of these."""
        ...

    def put(self, claim: PreparedClaim) -> None:
        """Adds the record, in place of an older one of the same UID."""
        ...

    def remove(self, claim_uid: str) -> None:
        """Removes the record; fine if there is none."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerDamage:
    """What was wrong with the ledger, and is put right.

    Attributes:
        quarantined: Where the damaged file lies now; "" if single records were damaged.
        reason: What was wrong with that file.
        rebuilt: UIDs of claims whose records were made anew from their copies.
        lost: UIDs of claims whose records could not be made anew.
    """

    quarantined: str
    reason: str
    rebuilt: tuple[str, ...]
    lost: tuple[str, ...]


class Ledger(Protocol):
    """All prepared claims of this node; every method may be called from any thread.

    Raises, each of them:
        NoRoomError: The disk is full.
        RetryableError: The disk is read-only, another process holds the ledger, or it was
            damaged and is put right now.
        FatalError: A newer release has changed it.
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

    def check(self) -> None:
        """Returns once all that is damaged is put right, as far as it can be."""
        ...

    def make_room(self) -> None:
        """Makes room for removing a record on a full disk.

        Raises:
            NoRoomError: None could be made.
        """
        ...

    def damage(self) -> Sequence[LedgerDamage]:
        """What was damaged and is put right since this was last asked."""
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

    def read(self, claim_uid: str) -> Any:
        """The JSON value in the claim's file; None if there is none, or no JSON in it."""
        ...

    def claim_uids(self) -> frozenset[str]:
        """The claims that have a file."""
        ...
