"""The ledger of prepared claims: one SQLite file that survives crashes and serves two instances."""

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Final

from tensorfusion_dra.core.claims.claim import PodRef
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.errors import DriverError, FatalError, NoRoomError, RetryableError
from tensorfusion_dra.state import ledger_check, ledger_file, ledger_queries, records
from tensorfusion_dra.state.file_lock import FileLock
from tensorfusion_dra.state.ledger_check import Found
from tensorfusion_dra.state.ledger_file import FILE_NAME, WAIT_SECONDS, Opened
from tensorfusion_dra.state.record_copies import FOLDER_NAME, RecordCopies
from tensorfusion_dra.state.records import DamageError
from tensorfusion_dra.state.reserve import Reserve

LOCK_NAME: Final = "ledger.lock"


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerDamage:
    """Damage to the ledger that was found and repaired.

    Attributes:
        quarantined: Path to which the damaged file was moved; "" if single records were damaged.
        reason: What was wrong with that file.
        rebuilt: UIDs of claims whose records were restored from their copies.
        lost: UIDs of claims whose records could not be restored.
    """

    quarantined: str
    reason: str
    rebuilt: tuple[str, ...]
    lost: tuple[str, ...]


class Transaction:
    """One step in the ledger; no other thread or process takes one at the same time.

    Copies are written before the commit, which a full disk can then still refuse, but count only
    after it: a copy without a record is taken for a record that was lost, so one of a step that
    never was would be given room that others still have. For the same reason the copies of removed
    records go before the commit. A crash in between leaves a copy that is older than its record,
    or one too few; the next check finds it.
    """

    def __init__(self, connection: sqlite3.Connection, copies: RecordCopies) -> None:
        self._connection = connection
        self._copies = copies
        self._staged: dict[str, Path] = {}
        self._removed: set[str] = set()

    def get(self, claim_uid: str) -> PreparedClaim | None:
        """Return the record of a claim, or None."""
        return ledger_queries.claim(self._connection, claim_uid)

    def current(self, claim: PreparedClaim) -> PreparedClaim | None:
        """Return the claim's record as it is now; None if it was removed.

        If it has not changed since it was read or put, the given one is returned and nothing is
        decoded.
        """
        found = ledger_queries.record(self._connection, claim.ref.uid)
        if found is None or found.checksum == records.of_claim(claim).checksum:
            return claim if found else None
        return records.claim(found)

    def claims_on(self, devices: Iterable[str]) -> Sequence[PreparedClaim]:
        """Return every recorded claim that holds a share of one of these devices, each once."""
        return ledger_queries.claims_on(self._connection, devices)

    def claims(self) -> Sequence[PreparedClaim]:
        """Return every recorded claim of this node; slow with many, so for rare cases."""
        return ledger_queries.claims(self._connection)

    def claims_of_pods(self, pods: Iterable[PodRef]) -> Sequence[PreparedClaim]:
        """Return every recorded claim for a pod with the namespace and name of one of these."""
        return ledger_queries.claims_of_pods(self._connection, pods)

    def put(self, claim: PreparedClaim) -> None:
        """Add the record, in place of an older one of the same UID."""
        record = records.of_claim(claim)
        self._discard(record.uid)
        self._staged[record.uid] = self._copies.staged(record)
        self._connection.execute("DELETE FROM claims WHERE uid = ?", (record.uid,))
        self._connection.execute(
            "INSERT INTO claims (uid, record, seal) VALUES (?, ?, ?)",
            (record.uid, record.text, record.checksum),
        )
        self._connection.executemany(
            "INSERT INTO holdings (device, uid) VALUES (?, ?)",
            [(device, record.uid) for device in {share.device for share in claim.shares}],
        )

    def remove(self, claim_uid: str) -> None:
        """Remove the record; do nothing if there is none."""
        self._discard(claim_uid)
        self._removed.add(claim_uid)
        self._connection.execute("DELETE FROM claims WHERE uid = ?", (claim_uid,))
        self._copies.remove(claim_uid)

    def committed(self) -> None:
        """After the commit: the copies follow the records."""
        for uid, file in self._staged.items():
            self._copies.keep(uid, file)

    def take_back(self) -> None:
        """After a rollback: the copies follow the records again, as far as that is possible now."""
        for uid in list(self._staged):
            with suppress(OSError):
                self._discard(uid)
        for uid in self._removed:
            with suppress(OSError, sqlite3.Error, DamageError):
                record = ledger_queries.record(self._connection, uid)
                if record is not None:
                    self._copies.put(record)

    def _discard(self, uid: str) -> None:
        file = self._staged.pop(uid, None)
        if file is not None:
            file.unlink(missing_ok=True)


class Ledger:
    """Every prepared claim of this node, in one SQLite database; safe for all threads.

    Damage is repaired where it is noticed, at startup or later: a single record from its copy, a
    damaged database by a new one that is filled from all copies.

    Every method raises:
        NoRoomError: The disk is full.
        RetryableError: The disk is read-only, another process holds the ledger, or damage was
            found and is repaired now.
        FatalError: A newer release has changed it.
    """

    def __init__(self, folder: Path) -> None:
        """Opens the ledger in this folder, or begins one.

        Raises:
            RetryableError: The folder is read-only or full, or the file is locked.
            FatalError: A newer release wrote the file; it is left as it is.
        """
        self._path = folder / FILE_NAME
        self._copies = RecordCopies(folder / FOLDER_NAME)
        self._reserve = Reserve(folder)
        self._using = Lock()  # guards all below
        self._damage: list[LedgerDamage] = []
        self._opened: Opened | None = None
        with ledger_file.errors(self._path):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            # Held shared by whoever uses the file, and alone by whoever may replace it.
            self._lock = FileLock(folder / LOCK_NAME, wait_seconds=WAIT_SECONDS)
        try:
            self._open_with_room()
        except BaseException:
            self._lock.close()
            raise
        self._reserve.ensure()

    def get(self, claim_uid: str) -> PreparedClaim | None:
        """Return the record of a claim, or None."""
        with self._alone() as connection:
            return ledger_queries.claim(connection, claim_uid)

    def has(self, claim_uid: str) -> bool:
        """Return True if the claim has a record, without decoding it."""
        with self._alone() as connection:
            return ledger_queries.has(connection, claim_uid)

    def claims(self) -> Sequence[PreparedClaim]:
        """Return every recorded claim."""
        with self._alone() as connection:
            return ledger_queries.claims(connection)

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Run a step: on leaving, its changes survive a power cut; on an error, none is made."""
        with self._alone() as connection:
            step = Transaction(connection, self._copies)
            try:
                with ledger_file.writing(connection):
                    yield step
            except BaseException:
                step.take_back()
                raise
            step.committed()

    def check(self) -> None:
        """Look for damage and repair it; return once all that can be repaired is repaired."""
        with self._alone() as connection:
            ledger_file.check_pages(self._path)
            with ledger_file.writing(connection):
                found = ledger_check.repair(connection, self._copies)
            self._note(found)
        self._reserve.ensure()

    def make_room(self) -> None:
        """Free space on a full disk for the removal of a record.

        Raises:
            NoRoomError: No space could be freed.
        """
        with self._alone() as connection:
            released = self._reserve.release()
            if not ledger_file.reuse_log(connection) and not released:
                raise NoRoomError(f"ledger {self._path}: the disk is full")

    def damage(self) -> Sequence[LedgerDamage]:
        """Return the damage that was found and repaired since the last call."""
        with self._using:
            noted, self._damage = self._damage, []
            return noted

    def close(self) -> None:
        """Ends the use of the file; what was committed is in it."""
        with self._using:
            self._close()
            self._reserve.ensure()  # of the room of SQLite's log, which is removed by now
            self._lock.close()

    @contextmanager
    def _alone(self) -> Iterator[sqlite3.Connection]:
        # Whoever waits behind a step that itself waits for another process gives up as well,
        # or a queue of calls would outlast the kubelet's deadline.
        if not self._using.acquire(timeout=WAIT_SECONDS):
            raise RetryableError(f"ledger {self._path}: busy for {WAIT_SECONDS} s")
        try:
            with ledger_file.errors(self._path), self._present() as connection:
                yield connection
        except DamageError as damage:
            raise self._repaired(damage) from damage
        finally:
            self._using.release()

    @contextmanager
    def _present(self) -> Iterator[sqlite3.Connection]:
        """The connection to the file that lies at the path now; it stays there meanwhile."""
        while True:
            with self._lock.shared():
                if self._opened and self._opened.inode == ledger_file.inode(self._path):
                    yield self._opened.connection
                    return
            # Another instance set the file aside, or it is closed since a repair failed.
            self._open()

    def _open(self) -> None:
        self._close()
        try:
            with ledger_file.errors(self._path), self._lock.exclusive():
                self._opened = ledger_file.opened(self._path, self._copies)
        except DamageError as damage:
            raise FatalError(
                f"ledger {self._path}: {damage}: a new one is damaged as well"
            ) from damage
        self._note(self._opened.found, self._opened)

    def _open_with_room(self) -> None:
        try:
            self._open()
        except RetryableError:  # on a full disk SQLite may say that it cannot open a file
            if not self._reserve.release():
                raise
            self._open()

    def _close(self) -> None:
        if self._opened is not None:
            # SQLite leaves the files alone that another instance has put in this one's place.
            self._opened.connection.close()
            self._opened = None

    def _repaired(self, damage: DamageError) -> DriverError:
        """What to tell the caller whose step met damage."""
        before = (self._opened and self._opened.inode, len(self._damage))
        try:
            self._open()
        except DriverError as error:
            return error
        if (self._opened and self._opened.inode, len(self._damage)) == before:
            return FatalError(f"ledger {self._path}: {damage}, but nothing to put right")
        return RetryableError(f"ledger {self._path}: {damage}; it is put right now")

    def _note(self, found: Found, opened: Opened | None = None) -> None:
        aside = opened.quarantined if opened else None
        if found or aside:
            self._damage.append(
                LedgerDamage(
                    quarantined=str(aside or ""),
                    reason=opened.reason if opened else "",
                    rebuilt=tuple(found.rebuilt),
                    lost=tuple(found.lost),
                )
            )
