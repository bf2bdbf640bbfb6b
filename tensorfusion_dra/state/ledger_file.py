"""The ledger's database file: opened, checked, and quarantined if it is damaged.

Quarantine renames ``ledger.sqlite3`` and SQLite's files next to it to
``ledger-damaged-<time>.sqlite3``. Then a new ledger is created and filled from the record copies.
"""

import errno
import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import structlog

from tensorfusion_dra.core.errors import NoRoomError, RetryableError
from tensorfusion_dra.state import atomic, ledger_check, ledger_schema
from tensorfusion_dra.state.ledger_check import RepairReport
from tensorfusion_dra.state.log_flush import LogFlush
from tensorfusion_dra.state.records import DamageError, RecordCopies

log = structlog.get_logger()

FILE_NAME: Final = "ledger.sqlite3"
WAIT_SECONDS: Final = 5.0
"""Longest wait for another instance; well below the kubelet's 45 s."""

_MAGIC: Final = b"SQLite format 3\0"
_LOG: Final = "-wal"
_BESIDE: Final = (_LOG, "-shm", "")
"""Suffixes of SQLite's files. The log is first in the order of renames: a log without its database
is harmless, but SQLite opens a database together with any log next to it."""

_NO_FILE: Final = (0, 0)

_PASSING: Final = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_PROTOCOL,
    }
)
"""Errors whose cause can go away; every other error means that the file is damaged."""

FOREIGN: Final = (sqlite3.Error, OSError, UnicodeError)
"""Errors of SQLite and of the file system."""

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A sound ledger.

    Attributes:
        log_flush: Makes its commits durable.
        inode: Device and inode of the file, to notice when the path leads to another one.
        repairs: Damage that was repaired when the ledger was opened.
        quarantined: New path of a damaged file; None if there was none.
        reason: Damage of that file.
    """

    connection: sqlite3.Connection
    log_flush: LogFlush
    inode: tuple[int, int]
    repairs: RepairReport
    quarantined: Path | None = None
    reason: str = ""


def opened(path: Path, copies: RecordCopies) -> Opened:
    """Open and repair the ledger at this path; create a new one if it is missing or damaged.

    The caller holds the folder's lock exclusively, so that no other process uses the file.

    Raises:
        RetryableError: The folder is read-only or full, or an older release holds the file.
        FatalError: A newer release wrote the file; it is left unchanged.
        DamageError: The new ledger is damaged as well.
    """
    try:
        return _checked(path, copies)
    except _QuarantinedError as error:
        log.error("ledger_quarantined", path=str(error.new_path), error=str(error))
        damage = error
    again = _checked(path, copies)
    return replace(again, quarantined=damage.new_path, reason=str(damage))


def check_pages(path: Path) -> None:
    """Check the integrity of the file on the disk.

    Raises:
        RetryableError: It cannot be read now.
        DamageError: It is not a sound database.
    """
    # A new connection, because one in use has pages cached as they were when it read them.
    with errors(path), closing(sqlite3.connect(path, timeout=WAIT_SECONDS)) as connection:
        ledger_check.check_pages(connection)


def inode(path: Path) -> tuple[int, int] | None:
    """Return device and inode of the file at the path; None if there is no file."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in atomic.NO_FILE:
            return None
        raise
    return found.st_dev, found.st_ino


@contextmanager
def writing(connection: sqlite3.Connection) -> Iterator[None]:
    """Run the block in a transaction: commit at its end, roll back on an error."""
    # IMMEDIATE takes the write lock at once, so that no other process changes what the block reads.
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def reuse_log(connection: sqlite3.Connection) -> bool:
    """Checkpoint the log, so that its space is reused; return False if that is impossible now."""
    try:
        (busy, _, _) = connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()
    except sqlite3.Error:
        return False
    return not busy


@contextmanager
def errors(path: Path) -> Iterator[None]:
    """Translate errors of SQLite and the file system into the driver's errors."""
    try:
        yield
    except FOREIGN as error:
        raise translated(error, path) from error


def translated(error: Exception, path: Path) -> DamageError | RetryableError:
    """Return the driver's error for an error of SQLite or of the file system; see FOREIGN."""
    if isinstance(error, sqlite3.Error):
        # The low byte is the kind of the error; errors that the module itself raises have none.
        kind = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if kind in _PASSING:
            sort = NoRoomError if kind == sqlite3.SQLITE_FULL else RetryableError
            return sort(f"ledger {path}: {error}")
        return DamageError(str(error))
    if isinstance(error, OSError):
        other = f"{error.filename}: " if str(error.filename or path) != str(path) else ""
        sort = NoRoomError if error.errno in _FULL else RetryableError
        return sort(f"ledger {path}: {other}{error.strerror or error}")
    # The sqlite3 module raises a UnicodeError if SQLite's message quotes damaged text.
    return DamageError(str(error))


class _QuarantinedError(DamageError):
    """The file was damaged and has been quarantined.

    Attributes:
        new_path: Path to which the file was moved.
    """

    def __init__(self, damage: DamageError, new_path: Path) -> None:
        super().__init__(str(damage))
        self.new_path = new_path


def _checked(path: Path, copies: RecordCopies) -> Opened:
    with errors(path), ExitStack() as on_error:
        try:
            _check_beginning(path)
            connection = sqlite3.connect(
                path, timeout=WAIT_SECONDS, isolation_level=None, check_same_thread=False
            )
            on_error.callback(connection.close)
            with errors(path):
                repairs = _repair(connection, path, copies)
        except DamageError as damage:
            # Before the connection is closed: SQLite leaves a moved file and its log unchanged, but
            # closing a connection to a file in place would write the log into the file.
            raise _QuarantinedError(damage, _quarantine(path)) from damage
        log_flush = LogFlush(path.with_name(path.name + _LOG))
        on_error.pop_all()
        return Opened(
            connection=connection,
            log_flush=log_flush,
            inode=inode(path) or _NO_FILE,
            repairs=repairs,
        )


def _check_beginning(path: Path) -> None:
    """Check that SQLite can open the file, and would not delete the log next to it.

    Raises:
        DamageError: It is not a database, or one of SQLite's files is not a regular file.
    """
    for end in _BESIDE:
        _check_kind(path.with_name(path.name + end))
    try:
        with path.open("rb") as file:
            beginning = file.read(len(_MAGIC))
    except FileNotFoundError:
        beginning = b""
    log_there = path.with_name(path.name + _LOG).exists()
    if beginning != _MAGIC and (beginning or log_there):
        raise DamageError("file is not a database")


def _check_kind(path: Path) -> None:
    try:
        kind = path.stat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno in atomic.NO_FILE:
            raise DamageError(f"{path.name}: {error.strerror}") from error
        raise
    if not stat.S_ISREG(kind):
        raise DamageError(
            f"{path.name}: found another kind of file, expected a regular file or none"
        )


def _repair(connection: sqlite3.Connection, path: Path, copies: RecordCopies) -> RepairReport:
    ledger_schema.check_tables(connection, path)  # before anything is written
    connection.execute("PRAGMA journal_mode = WAL")
    # NORMAL: a commit is not flushed. LogFlush does that, once for several commits.
    connection.execute("PRAGMA synchronous = NORMAL")
    ledger_check.check_pages(connection)
    copies.remove_unfinished()
    with writing(connection):
        ledger_schema.migrate(connection, path)
        return ledger_check.repair(connection, copies)


def _quarantine(path: Path) -> Path:
    """Rename the database and the files that belong to it; return the database's new path."""
    moment = datetime.now(UTC)
    new_path = path.with_name(f"{path.stem}-damaged-{moment:%Y%m%dT%H%M%S.%fZ}{path.suffix}")
    with errors(path):
        for end in _BESIDE:
            old = path.with_name(path.name + end)
            if os.path.lexists(old):
                old.rename(new_path.with_name(new_path.name + end))
        atomic.sync_folder(path.parent)
    return new_path
