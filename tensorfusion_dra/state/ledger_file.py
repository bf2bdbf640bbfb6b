"""The ledger's database file: opened, checked, repaired, and quarantined if it is damaged.

Quarantine renames ``ledger.sqlite3`` and SQLite's files next to it to
``ledger-damaged-<time>.sqlite3``. Then a new ledger is created and filled from the record copies.

Inside a sound file, repair applies three rules. A sound record stays, and its copy is written again
if it differs. A damaged record moves to the table ``set_aside``, and its copy takes its place. A
copy without a record becomes a record. A claim is lost only if both its record and its copy are
damaged.
"""

import errno
import os
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import structlog

from tensorfusion_dra.core.errors import FatalError, NoRoomError, RetryableError
from tensorfusion_dra.state import atomic, records
from tensorfusion_dra.state.log_flush import LogFlush
from tensorfusion_dra.state.records import DamageError, RecordCopies

log = structlog.get_logger()

FILE_NAME: Final = "ledger.sqlite3"
WAIT_SECONDS: Final = 5.0
"""Longest wait for another instance; well below the kubelet's 45 s."""
VERSION: Final = 3
"""Version of the tables. An instance refuses a newer one and rebuilds an older one."""

_TABLES: Final = (
    "CREATE TABLE claims (uid TEXT PRIMARY KEY, record TEXT NOT NULL, seal TEXT) WITHOUT ROWID",
    "CREATE TABLE set_aside (uid BLOB NOT NULL, record BLOB, moment TEXT NOT NULL)",
)
_LOG: Final = "-wal"
_BESIDE: Final = (_LOG, "-shm", "")
"""Suffixes of SQLite's files. The log is first in the order of renames: a log without its database
is harmless, but SQLite opens a database together with any log next to it."""

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

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerDamage:
    """Damage to the ledger that was found and repaired; false if there was none.

    Attributes:
        quarantined: Path to which the damaged file was moved; "" if single records were damaged.
        reason: Damage of that file; "" if no file was moved.
        rebuilt: UIDs of claims whose records were restored from their copies.
        lost: UIDs of claims whose records and copies are both damaged.
    """

    quarantined: str = ""
    reason: str = ""
    rebuilt: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.quarantined or self.rebuilt or self.lost)


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A sound ledger.

    Attributes:
        log_flush: Makes its commits durable.
        inode: Device and inode of the file, to notice when the path leads to another one.
        damage: What was repaired when the ledger was opened.
    """

    connection: sqlite3.Connection
    log_flush: LogFlush
    inode: tuple[int, int] | None
    damage: LedgerDamage


def opened(
    path: Path, copies: RecordCopies, *, quarantined: Path | None = None, reason: str = ""
) -> Opened:
    """Open and repair the ledger at this path; create a new one if it is missing or damaged.

    The caller holds the folder's lock exclusively, so that no other process uses the file.

    Args:
        quarantined: New path of the damaged file that this ledger replaces.
        reason: Damage of that file.

    Raises:
        RetryableError: The folder is read-only or full, or an older release holds the file.
        FatalError: A newer release wrote the file; it is left unchanged.
        DamageError: The new ledger is damaged as well.
    """
    with errors(path), ExitStack() as on_error:
        try:
            with errors(path):
                connection = sqlite3.connect(
                    path, timeout=WAIT_SECONDS, isolation_level=None, check_same_thread=False
                )
                on_error.callback(connection.close)
                damage = _checked(connection, path, copies)
        except DamageError as error:
            if quarantined is not None:
                raise
            # Before the connection is closed: SQLite leaves a moved file and its log unchanged, but
            # closing a connection to a file in place would write the log into the file.
            quarantined, reason = _quarantine(path), str(error)
            log.error("ledger_quarantined", path=str(quarantined), error=reason)
        else:
            log_flush = LogFlush(path.with_name(path.name + _LOG))
            on_error.pop_all()
            return Opened(
                connection=connection,
                log_flush=log_flush,
                inode=inode(path),
                damage=replace(damage, quarantined=str(quarantined or ""), reason=reason),
            )
    return opened(path, copies, quarantined=quarantined, reason=reason)


def repair(connection: sqlite3.Connection, copies: RecordCopies) -> LedgerDamage:
    """Make every record readable and equal to its copy; call it inside a transaction.

    A record wins over its copy. A copy without a record has one of two causes: the end of the
    database's log, or all of it, is lost; or the process was killed just before it committed the
    record. In the second case the kubelet calls again, to prepare or to unprepare the claim.

    Raises:
        OSError: The copies cannot be read or written.
    """
    sound: set[str] = set()
    rebuilt: list[str] = []
    lost: set[str] = set()
    for uid, text, checksum in records.rows(connection):
        try:
            record = records.read(uid, text, checksum)
        except DamageError as error:
            log.warning("record_quarantined", error=str(error))
            connection.execute(
                "INSERT INTO set_aside (uid, record, moment) VALUES (?, ?, ?)",
                (uid, text, datetime.now(UTC).isoformat()),
            )
            connection.execute(f"DELETE FROM claims WHERE {records.UID_BYTES} = ?", (uid,))  # noqa: S608
            lost.add(uid.decode(errors="replace"))
        else:
            copies.ensure(record)
            sound.add(record.uid)
    for claim_uid in sorted(copies.uids() - sound):
        try:
            record = copies.get(claim_uid)
        except DamageError as error:
            log.warning("record_copy_quarantined", error=str(error))
            copies.quarantine(claim_uid)
            lost.add(claim_uid)
        else:
            records.insert(connection, record)
            rebuilt.append(claim_uid)
    found = LedgerDamage(rebuilt=tuple(rebuilt), lost=tuple(sorted(lost - set(rebuilt))))
    if found:
        log.warning("records_rebuilt", claims=len(found.rebuilt), lost=found.lost)
    return found


def check_tables(connection: sqlite3.Connection, path: Path) -> bool:
    """Return True for an empty file, False for one with the tables of this version.

    Raises:
        FatalError: A newer release wrote it.
        DamageError: It has an older version or other tables.
    """
    (found,) = connection.execute("PRAGMA user_version").fetchone()
    if found > VERSION:
        raise FatalError(
            f"ledger {path}: found version {found}, expected at most {VERSION}: a newer release "
            "of this driver wrote the file, so it is left unchanged"
        )
    # As bytes, because damaged text need not be valid. SQLite's own tables, such as statistics, do
    # not matter.
    rows = connection.execute(
        "SELECT CAST(sql AS BLOB) FROM sqlite_master"
        " WHERE name NOT LIKE 'sqlite^_%' ESCAPE '^' ORDER BY name"
    ).fetchall()
    expected = [table.encode() for table in _TABLES] if found else []
    if found not in (0, VERSION) or [sql for (sql,) in rows] != expected:
        raise DamageError(
            f"found version {found} with {len(rows)} tables, expected those of version {VERSION}"
        )
    return not found


def check_pages(path: Path) -> None:
    """Check the integrity of the file on the disk.

    Raises:
        RetryableError: It cannot be read now.
        DamageError: It is not a sound database.
    """
    # A new connection, because one in use has pages cached as they were when it read them.
    with errors(path), closing(sqlite3.connect(path, timeout=WAIT_SECONDS)) as connection:
        _check_pages(connection)


def inode(path: Path) -> tuple[int, int] | None:
    """Return device and inode of the file at the path; None if there is no file."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


@contextmanager
def writing(connection: sqlite3.Connection) -> Iterator[None]:
    """Run the block in a transaction: commit at its end, roll back on an error."""
    with connection:
        # IMMEDIATE takes the write lock at once, so that no other process changes what the block
        # reads.
        connection.execute("BEGIN IMMEDIATE")
        yield


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
    except sqlite3.Error as error:
        # The low byte is the kind of the error; errors that the module itself raises have none.
        kind = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if kind not in _PASSING:
            raise DamageError(str(error)) from error
        sort = NoRoomError if kind == sqlite3.SQLITE_FULL else RetryableError
        raise sort(f"ledger {path}: {error}") from error
    except OSError as error:
        other = f"{error.filename}: " if str(error.filename or path) != str(path) else ""
        sort = NoRoomError if error.errno in _FULL else RetryableError
        raise sort(f"ledger {path}: {other}{error.strerror or error}") from error
    except UnicodeError as error:
        # The sqlite3 module raises one if SQLite's message quotes damaged text.
        raise DamageError(str(error)) from error


def _checked(connection: sqlite3.Connection, path: Path, copies: RecordCopies) -> LedgerDamage:
    is_empty = check_tables(connection, path)  # before anything is written
    connection.execute("PRAGMA journal_mode = WAL")
    # NORMAL: a commit is not flushed. LogFlush does that, once for several commits.
    connection.execute("PRAGMA synchronous = NORMAL")
    _check_pages(connection)
    copies.remove_unfinished()
    with writing(connection):
        if is_empty:
            for table in _TABLES:
                connection.execute(table)
            connection.execute(f"PRAGMA user_version = {VERSION}")
        return repair(connection, copies)


def _check_pages(connection: sqlite3.Connection) -> None:
    (result,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    if result != "ok":
        raise DamageError(str(result))


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
