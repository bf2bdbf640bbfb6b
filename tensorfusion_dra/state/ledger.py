"""The ledger of prepared claims: a SQLite file that survives crashes and serves two instances.

Every claim has a record in the database, which is authoritative, and a copy of it in its own file.
Damage found during a call fails that call with a RetryableError and is repaired at once from the
copies, so that the next call works. If the database as a whole is damaged, it is quarantined and a
new one is built; another instance notices the new inode at the path and opens the new file.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Final

from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.errors import DriverError, FatalError, NoRoomError, RetryableError
from tensorfusion_dra.state import ledger_check, ledger_file, ledger_transaction
from tensorfusion_dra.state.file_lock import FileLock
from tensorfusion_dra.state.ledger_check import RepairReport
from tensorfusion_dra.state.ledger_file import FILE_NAME, WAIT_SECONDS, Opened
from tensorfusion_dra.state.ledger_transaction import DecodedRecords, Transaction
from tensorfusion_dra.state.records import FOLDER_NAME, DamageError, Record, RecordCopies
from tensorfusion_dra.state.reserve import DiskReserve

LOCK_NAME: Final = "ledger.lock"


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerDamage:
    """Damage to the ledger that was found and repaired.

    Attributes:
        quarantined: Path to which the damaged file was moved; "" if single records were damaged.
        reason: Damage of that file; "" if no file was moved.
        rebuilt: UIDs of claims whose records were restored from their copies.
        lost: UIDs of claims whose records could not be restored.
    """

    quarantined: str
    reason: str
    rebuilt: tuple[str, ...]
    lost: tuple[str, ...]


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
        self._reserve = DiskReserve(folder)
        self._mutex = Lock()  # guards all below
        self._damage: list[LedgerDamage] = []
        self._opened: Opened | None = None
        self._openings = 0
        self._failures = 0  # number of transactions that failed
        self._decoded = DecodedRecords()
        with ledger_file.errors(self._path):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            # Shared to use the database, exclusive to open or replace it.
            self._lock = FileLock(folder / LOCK_NAME, wait_seconds=WAIT_SECONDS)
        try:
            self._open_with_room()
        except BaseException:
            self._lock.close()
            raise
        self._reserve.ensure()

    def get(self, claim_uid: str) -> PreparedClaim | None:
        """Return the record of a claim, or None."""
        with self._locked_database() as database:
            return ledger_transaction.fetch_claim(database.connection, claim_uid)

    def has(self, record: Record) -> bool:
        """Return True if this is its claim's present record."""
        with self._locked_database() as database:
            return ledger_transaction.has(database.connection, record)

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
                self._failures += 1
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
                repairs = ledger_check.repair(database.connection, self._copies)
            self._note_damage(repairs)
            commit = database.log_flush.count_commit() if repairs else 0
        self._wait_durable(database, commit)
        self._reserve.ensure()

    def make_room(self) -> None:
        """Free space on a full disk, so that a record can be removed.

        Raises:
            NoRoomError: No space could be freed.
        """
        with self._locked_database() as database:
            released = self._reserve.release()
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
            self._reserve.ensure()  # now, in the space of SQLite's log, which closing has removed
            self._lock.close()

    def _transaction(self, database: Opened) -> Transaction:
        epoch = (self._openings, self._failures)
        return Transaction(database.connection, self._copies, self._decoded, epoch=epoch)

    @contextmanager
    def _locked_database(self) -> Iterator[Opened]:
        # With a timeout: the thread that holds the mutex may itself wait for another process, and a
        # queue of such waits would exceed the kubelet's deadline.
        if not self._mutex.acquire(timeout=WAIT_SECONDS):
            raise RetryableError(f"ledger {self._path}: busy for {WAIT_SECONDS} s")
        try:
            try:
                database = self._lock_current()
                try:
                    yield database
                finally:
                    self._lock.release()
            except ledger_file.FOREIGN as error:
                raise ledger_file.translated(error, self._path) from error
        except DamageError as damage:
            raise self._repair(damage) from damage
        finally:
            self._mutex.release()

    def _lock_current(self) -> Opened:
        """Return the database at the path, locked, so that no process replaces it meanwhile."""
        while True:
            self._lock.acquire_shared()
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
        self._openings += 1
        self._note_damage(self._opened.repairs, self._opened)

    def _open_with_room(self) -> None:
        try:
            self._open()
        except RetryableError:  # on a full disk SQLite may report that it cannot open a file
            if not self._reserve.release():
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

    def _note_damage(self, repairs: RepairReport, opened: Opened | None = None) -> None:
        new_path = opened.quarantined if opened else None
        if repairs or new_path:
            self._damage.append(
                LedgerDamage(
                    quarantined=str(new_path or ""),
                    reason=opened.reason if opened else "",
                    rebuilt=tuple(repairs.rebuilt),
                    lost=tuple(repairs.lost),
                )
            )
