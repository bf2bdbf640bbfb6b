"""The ledger of prepared claims: a SQLite file that survives crashes and serves two instances.

Every claim has a record in the database, which is authoritative, and a copy of it in its own file.
Damage found during a call fails that call with a RetryableError and is repaired at once from the
copies, so that the next call works. If the database as a whole is damaged, it is quarantined and a
new one is built; another instance notices the new inode at the path and opens the new file.
"""

import fcntl
import os
import sqlite3
import time
from collections.abc import Container, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Final

from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.errors import DriverError, FatalError, NoRoomError, RetryableError
from tensorfusion_dra.state import atomic, ledger_file, records
from tensorfusion_dra.state.ledger_file import FILE_NAME, WAIT_SECONDS, LedgerDamage, Opened
from tensorfusion_dra.state.records import FOLDER_NAME, DamageError, RecordCopies

_POLL_SECONDS: Final = 0.002


class FileLock:
    """A lock on a file; one thread of a process may use it at a time."""

    def __init__(self, path: Path, *, wait_seconds: float) -> None:
        """Open the file; lock nothing yet.

        Args:
            wait_seconds: Longest wait for another process that holds the lock.

        Raises:
            OSError: The file can be neither opened nor created.
        """
        self._wait_seconds = wait_seconds
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def release(self) -> None:
        """Give the lock back."""
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the lock for the block; no other process holds it, shared or exclusive.

        Raises:
            TimeoutError: Another process held the lock for too long.
        """
        self.acquire(fcntl.LOCK_EX)
        try:
            yield
        finally:
            self.release()

    def close(self) -> None:
        """Close the file; further calls do nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def acquire(self, kind: int) -> None:
        """Take the lock until release().

        Args:
            kind: fcntl.LOCK_SH, which other processes may hold at the same time, or LOCK_EX.

        Raises:
            TimeoutError: Another process held the lock for too long.
        """
        deadline = time.monotonic() + self._wait_seconds
        # Polling, because a blocking flock() has no timeout.
        while True:
            try:
                fcntl.flock(self._descriptor, kind | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    text = f"held by another instance for {self._wait_seconds:g} s"
                    raise TimeoutError(text) from None
                time.sleep(_POLL_SECONDS)
            else:
                return


RESERVE_NAME: Final = "ledger.reserve"
_RESERVE_BYTES: Final = 256 * 1024
"""SQLite's index of the log takes 32 KiB; a removal takes 20 to 60 KiB of the log."""


@dataclass(slots=True)
class _DecodedRecords:
    """All records of the ledger, decoded once and kept between transactions (3 KB each).

    Attributes:
        version: Version of the ledger that they are from; see Transaction.
        claims: By UID.
    """

    version: Hashable = None
    claims: dict[str, PreparedClaim] = field(default_factory=dict)


class Transaction:
    """A transaction on the ledger; no other thread or process runs one at the same time.

    Copies are written to temporary files before the commit, so that a full disk still fails the
    transaction. They are renamed after the commit, because a copy without a record counts as a
    lost record: the copy of a transaction that never committed would restore a claim whose room
    other claims may have. For the same reason, copies of removed records are deleted before the
    commit. A crash in between leaves a copy that is older than its record, or a missing copy; the
    next check repairs both.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        copies: RecordCopies,
        decoded: _DecodedRecords,
    ) -> None:
        """Begin nothing; the caller begins and ends the transaction.

        Args:
            decoded: Kept by the caller from one transaction to the next, unless one fails.
        """
        self._connection = connection
        self._copies = copies
        self._decoded = decoded
        self._staged: dict[str, str] = {}  # temporary file by UID
        self._removed: set[str] = set()

    def get(self, claim_uid: str) -> PreparedClaim | None:
        """Return the record of a claim, or None."""
        found = records.fetch(self._connection, claim_uid)
        return None if found is None else records.claim(found)

    def current(self, claim: PreparedClaim) -> PreparedClaim | None:
        """Return the claim's current record; None if it was removed.

        If the record has not changed since it was read or put, return the given claim without
        decoding anything.
        """
        found = records.fetch(self._connection, claim.ref.uid)
        if found is None or found.checksum == records.of_claim(claim).checksum:
            return claim if found else None
        return records.claim(found)

    def claims_on(self, devices: Container[str]) -> Sequence[PreparedClaim]:
        """Return every recorded claim that holds a share of one of these devices."""
        return [
            claim
            for claim in self.claims()
            if any(share.device in devices for share in claim.shares)
        ]

    def claims(self) -> Sequence[PreparedClaim]:
        """Return every recorded claim of this node."""
        version = self._version()
        if self._decoded.version != version:
            found = records.fetch_claims(self._connection)
            self._decoded.claims = {claim.ref.uid: claim for claim in found}
            self._decoded.version = version
        return list(self._decoded.claims.values())

    def put(self, claim: PreparedClaim) -> None:
        """Add the record, or replace an older one of the same UID."""
        record = records.of_claim(claim)
        was_decoded = self._decoded.version == self._version()
        self._discard(record.uid)
        self._staged[record.uid] = self._copies.stage(record)
        self._connection.execute("DELETE FROM claims WHERE uid = ?", (record.uid,))
        records.insert(self._connection, record)
        if was_decoded:
            self._decoded.claims[record.uid] = claim
            self._decoded.version = self._version()

    def remove(self, claim_uid: str) -> None:
        """Remove the record; do nothing if there is none."""
        was_decoded = self._decoded.version == self._version()
        self._discard(claim_uid)
        self._removed.add(claim_uid)
        self._connection.execute("DELETE FROM claims WHERE uid = ?", (claim_uid,))
        self._copies.remove(claim_uid)
        if was_decoded:
            self._decoded.claims.pop(claim_uid, None)
            self._decoded.version = self._version()

    def commit_copies(self) -> None:
        """Make the staged copies valid; call it after the commit."""
        for uid, file in self._staged.items():
            self._copies.commit(uid, file)

    def roll_back_copies(self) -> None:
        """Restore the copies as far as possible; call it after a rollback."""
        for uid in list(self._staged):
            with suppress(OSError):
                self._discard(uid)
        for uid in self._removed:
            with suppress(OSError, sqlite3.Error, DamageError):
                record = records.fetch(self._connection, uid)
                if record is not None:
                    self._copies.put(record)

    def _version(self) -> Hashable:
        """Return a value that changes with every change of a record, by this or another process."""
        (others,) = self._connection.execute("PRAGMA data_version").fetchone()
        return others, self._connection.total_changes

    def _discard(self, uid: str) -> None:
        file = self._staged.pop(uid, None)
        if file is not None:
            atomic.discard(file)


class Ledger:
    """Every prepared claim of this node, in one SQLite database; safe for all threads.

    Damage is repaired as soon as it is noticed, at startup or later: a damaged record from its
    copy, a damaged database by a new one that is filled from all copies.

    Every method raises:
        NoRoomError: The disk is full.
        RetryableError: The disk is read-only, another process holds the ledger, or damage was
            found and has been repaired.
        FatalError: A newer release has changed the ledger.
    """

    def __init__(self, folder: Path) -> None:
        """Open the ledger in this folder, or create one.

        Raises:
            RetryableError: The folder is read-only or full, or the file is locked.
            FatalError: A newer release wrote the file; it is left unchanged.
        """
        self._path = folder / FILE_NAME
        self._copies = RecordCopies(folder / FOLDER_NAME)
        self._reserve = folder / RESERVE_NAME
        self._mutex = Lock()  # guards all below
        self._damage: list[LedgerDamage] = []
        self._opened: Opened | None = None
        self._decoded = _DecodedRecords()
        with ledger_file.errors(self._path):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            # Shared to use the database, exclusive to open or replace it.
            self._lock = FileLock(folder / "ledger.lock", wait_seconds=WAIT_SECONDS)
        try:
            self._open_with_room()
        except BaseException:
            self._lock.close()
            raise
        self._ensure_reserve()

    def has(self, claim_uid: str) -> bool:
        """Return True if the claim is recorded, without a transaction."""
        with self._locked_database() as database:
            return records.fetch(database.connection, claim_uid) is not None

    def claims(self) -> Sequence[PreparedClaim]:
        """Return every recorded claim, sorted by UID; only what changed is decoded again.

        So metrics can be scraped often without holding up the kubelet's calls.
        """
        with self._locked_database() as database:
            return sorted(self._transaction(database).claims(), key=lambda claim: claim.ref.uid)

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Run a block in a transaction: its changes survive a power cut; an error undoes them.

        Other transactions may run as soon as this one is committed, while it is flushed to the
        disk. Concurrent ones share a flush; one that changes nothing needs none.
        """
        with self._locked_database() as database:
            step = self._transaction(database)
            before = database.connection.total_changes
            try:
                with ledger_file.writing(database.connection):
                    yield step
            except BaseException:
                self._decoded = _DecodedRecords()
                step.roll_back_copies()
                raise
            step.commit_copies()
            if database.connection.total_changes == before:
                return
            commit = database.log_flush.count_commit()
        self._wait_durable(database, commit)

    def check(self) -> None:
        """Search the whole ledger for damage and repair what can be repaired."""
        with self._locked_database() as database:
            ledger_file.check_pages(self._path)
            with ledger_file.writing(database.connection):
                repairs = ledger_file.repair(database.connection, self._copies)
            self._record_damage(repairs)
            commit = database.log_flush.count_commit() if repairs else 0
        self._wait_durable(database, commit)
        self._ensure_reserve()

    def make_room(self) -> None:
        """Free space on a full disk, so that a record can be removed.

        Raises:
            NoRoomError: No space could be freed.
        """
        with self._locked_database() as database:
            released = self._release_reserve()
            if not ledger_file.reuse_log(database.connection) and not released:
                raise NoRoomError(f"ledger {self._path}: the disk is full")

    def damage(self) -> Sequence[LedgerDamage]:
        """Return the damage that was found and repaired since the last call."""
        with self._mutex:
            noted, self._damage = self._damage, []
            return noted

    def close(self) -> None:
        """Close the file; it has everything that was committed."""
        with self._mutex:
            self._close()
            self._ensure_reserve()  # now, in the space of SQLite's log, which closing has removed
            self._lock.close()

    def _transaction(self, database: Opened) -> Transaction:
        return Transaction(database.connection, self._copies, self._decoded)

    @contextmanager
    def _locked_database(self) -> Iterator[Opened]:
        # With a timeout: the thread that holds the mutex may itself wait for another process, and a
        # queue of such waits would exceed the kubelet's deadline.
        if not self._mutex.acquire(timeout=WAIT_SECONDS):
            raise RetryableError(f"ledger {self._path}: busy for {WAIT_SECONDS} s")
        try:
            with ledger_file.errors(self._path):
                database = self._lock_current()
                try:
                    yield database
                finally:
                    self._lock.release()
        except DamageError as damage:
            raise self._repair(damage) from damage
        finally:
            self._mutex.release()

    def _lock_current(self) -> Opened:
        """Return the database at the path, locked, so that no process replaces it meanwhile."""
        while True:
            self._lock.acquire(fcntl.LOCK_SH)
            try:
                if self._opened and self._opened.inode == ledger_file.inode(self._path):
                    return self._opened
            except BaseException:
                self._lock.release()
                raise
            self._lock.release()
            # Another instance quarantined the file, or a repair failed and the file is closed.
            self._open()

    def _open(self) -> None:
        self._close()
        try:
            with ledger_file.errors(self._path), self._lock.exclusive():
                self._opened = ledger_file.opened(self._path, self._copies)
        except DamageError as damage:
            raise FatalError(
                f"ledger {self._path}: {damage}: found this damage in a new ledger as well"
            ) from damage
        self._decoded = _DecodedRecords()
        self._record_damage(self._opened.damage)

    def _open_with_room(self) -> None:
        try:
            self._open()
        except RetryableError:  # on a full disk SQLite may report that it cannot open a file
            if not self._release_reserve():
                raise
            self._open()

    def _close(self) -> None:
        if self._opened is None:
            return
        opened, self._opened = self._opened, None
        with suppress(OSError):  # the threads that wait for this flush raise the error
            opened.log_flush.close()
        # SQLite does not touch the new files that another instance has created at this path.
        opened.connection.close()

    def _wait_durable(self, database: Opened, commit: int) -> None:
        """Return once the commit would survive a power cut; the caller does not hold the mutex.

        After a failed flush the database is closed, so that the next call checks all of it. Closing
        writes the commits from the log into the database, and flushes that.
        """
        try:
            with ledger_file.errors(self._path):
                database.log_flush.wait_durable(commit)
        except RetryableError:
            with self._mutex:
                if self._opened is database:
                    self._close()
            raise

    def _repair(self, damage: DamageError) -> DriverError:
        """Repair the ledger and return the error for the caller whose call found the damage."""
        before = (self._opened and self._opened.inode, len(self._damage))
        try:
            self._open()
        except DriverError as error:
            return error
        if (self._opened and self._opened.inode, len(self._damage)) == before:
            return FatalError(f"ledger {self._path}: {damage}, but found nothing to repair")
        return RetryableError(f"ledger {self._path}: {damage}; it has been repaired")

    def _record_damage(self, damage: LedgerDamage) -> None:
        if damage:
            self._damage.append(damage)

    # SQLite writes a removal to its log before it frees anything, and it also writes to the log at
    # startup. On a full disk both would fail. The reserve is a file as large as both need together:
    # deleted to make room, and created again as soon as the disk has room.

    def _ensure_reserve(self) -> None:
        with suppress(OSError):
            if self._reserve.stat().st_size == _RESERVE_BYTES:
                return
        try:
            # Random bytes: a compressing file system would reserve no room for zeros.
            self._reserve.write_bytes(os.urandom(_RESERVE_BYTES))
        except OSError:
            self._release_reserve()

    def _release_reserve(self) -> bool:
        """Delete the reserve to free its space; return False if there was none."""
        try:
            self._reserve.unlink()
        except OSError:
            return False
        return True
