"""The database of the ledger on the disk: opened, checked, and set aside if it is damaged."""

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
from tensorfusion_dra.state.ledger_check import Found
from tensorfusion_dra.state.record_copies import RecordCopies
from tensorfusion_dra.state.records import DamageError

log = structlog.get_logger()

FILE_NAME: Final = "ledger.sqlite3"
WAIT_SECONDS: Final = 5.0
"""How long a step waits for another instance; well below the kubelet's 45 s."""

_MAGIC: Final = b"SQLite format 3\0"
_LOG: Final = "-wal"
_BESIDE: Final = (_LOG, "-shm", "")
"""What SQLite appends to the names of its files. The log goes first: without its database it is
nothing, while a database is opened with whatever log lies beside it."""

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
"""Errors whose cause can go away; any other means that the file is not what it should be."""

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A sound ledger.

    Attributes:
        inode: By which it is known that the path still leads to it.
        found: What had to be put right.
        quarantined: Where a damaged file lies now; None if there was none.
        reason: What was wrong with that.
    """

    connection: sqlite3.Connection
    inode: tuple[int, int]
    found: Found
    quarantined: Path | None = None
    reason: str = ""


def opened(path: Path, copies: RecordCopies) -> Opened:
    """The ledger of this path, put right; a new one if there is none or it is damaged.

    For those who hold the folder's lock alone: no other process may use the file meanwhile.

    Raises:
        RetryableError: The folder is read-only or full, or an older release holds the file.
        FatalError: A newer release wrote it; it is left as it is.
        DamageError: The new one is damaged as well.
    """
    try:
        return _checked(path, copies)
    except _QuarantinedError as error:
        log.error("ledger_set_aside", path=str(error.aside), error=str(error))
        damage = error
    again = _checked(path, copies)
    return replace(again, quarantined=damage.aside, reason=str(damage))


def check_pages(path: Path) -> None:
    """Returns if the file on the disk is a sound database.

    Raises:
        RetryableError: It cannot be read now.
        DamageError: It is not.
    """
    # A connection of its own: one that is in use knows pages as they were when it read them.
    with errors(path), closing(sqlite3.connect(path, timeout=WAIT_SECONDS)) as connection:
        ledger_check.check_pages(connection)


def inode(path: Path) -> tuple[int, int] | None:
    """Which file lies there; None for none."""
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
    """A transaction around the block."""
    # IMMEDIATE takes the write lock at once: what is read inside cannot change under us.
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def reuse_log(connection: sqlite3.Connection) -> bool:
    """Puts the log into the database, so that its room is used again; False if that fails now."""
    try:
        (busy, _, _) = connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()
    except sqlite3.Error:
        return False
    return not busy


@contextmanager
def errors(path: Path) -> Iterator[None]:
    """Sorts what SQLite and the file system say by who can react."""
    try:
        yield
    except sqlite3.Error as error:
        # The low byte is the kind of the error; what the module itself raises has none.
        kind = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if kind in _PASSING:
            sort = NoRoomError if kind == sqlite3.SQLITE_FULL else RetryableError
            raise sort(f"ledger {path}: {error}") from error
        raise DamageError(str(error)) from error
    except UnicodeError as error:
        # From the module as well: SQLite's text about damaged text need not be text.
        raise DamageError(str(error)) from error
    except OSError as error:
        beside = f"{error.filename}: " if str(error.filename or path) != str(path) else ""
        sort = NoRoomError if error.errno in _FULL else RetryableError
        raise sort(f"ledger {path}: {beside}{error.strerror or error}") from error


class _QuarantinedError(DamageError):
    """The file is damaged, and out of the way now.

    Attributes:
        aside: Its new path.
    """

    def __init__(self, damage: DamageError, aside: Path) -> None:
        super().__init__(str(damage))
        self.aside = aside


def _checked(path: Path, copies: RecordCopies) -> Opened:
    with errors(path), ExitStack() as on_error:
        try:
            _check_beginning(path)
            connection = sqlite3.connect(
                path, timeout=WAIT_SECONDS, isolation_level=None, check_same_thread=False
            )
            on_error.callback(connection.close)
            with errors(path):
                found = _repair(connection, path, copies)
        except DamageError as damage:
            # While it is open: SQLite leaves a file alone that was moved, and its log as well.
            # Otherwise closing it would write the log into it.
            raise _QuarantinedError(damage, _quarantine(path)) from damage
        on_error.pop_all()
        return Opened(connection=connection, inode=inode(path) or _NO_FILE, found=found)


def _check_beginning(path: Path) -> None:
    """Returns if SQLite can be given the file, and would not delete the log beside it.

    Raises:
        DamageError: It cannot; or something else is in the place of one of SQLite's files.
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
        raise DamageError(f"{path.name}: found no regular file, expected one or none")


def _repair(connection: sqlite3.Connection, path: Path, copies: RecordCopies) -> Found:
    ledger_schema.check_tables(connection, path)  # before anything is written
    connection.execute("PRAGMA journal_mode = WAL")
    # FULL: a commit returns once it would survive a power cut.
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")
    ledger_check.check_pages(connection)
    copies.remove_unfinished()
    with writing(connection):
        ledger_schema.migrate(connection, path)
        found = ledger_check.repair(connection, copies)
        ledger_check.repair_holdings(connection)
    return found


def _quarantine(path: Path) -> Path:
    """Renames the database and what belongs to it; the database's new path."""
    moment = datetime.now(UTC)
    aside = path.with_name(f"{path.stem}-damaged-{moment:%Y%m%dT%H%M%S.%fZ}{path.suffix}")
    with errors(path):
        for end in _BESIDE:
            old = path.with_name(path.name + end)
            if os.path.lexists(old):
                old.rename(aside.with_name(aside.name + end))
        atomic.sync_folder(path.parent)
    return aside
