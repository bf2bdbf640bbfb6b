"""The ledger of prepared claims: one SQLite file that survives crashes and serves two instances."""

import json
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Final

from tensorfusion_dra.core.errors import FatalError, RetryableError
from tensorfusion_dra.core.prepared import PreparedClaim
from tensorfusion_dra.core.quantity import QuantityError

FILE_NAME: Final = "ledger.sqlite3"

_VERSION: Final = 1
_WAIT_SECONDS: Final = 5.0
"""How long a step waits for another instance; well below the kubelet's 45 s."""

_PAUSE_SECONDS: Final = 0.01
"""Before SQLite is asked again where it does not wait itself."""

_PASSING: Final = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_PROTOCOL,
    }
)
"""Errors whose cause can go away; any other means that the file is not what it should be."""

_SCHEMA: Final = """
CREATE TABLE claims (uid TEXT PRIMARY KEY, record TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE holdings (
    device TEXT NOT NULL,
    uid TEXT NOT NULL REFERENCES claims (uid) ON DELETE CASCADE,
    PRIMARY KEY (device, uid)
) WITHOUT ROWID;
CREATE INDEX holdings_by_claim ON holdings (uid);
"""
# holdings finds the claims on a device without reading every record; the records are the truth.


class Transaction:
    """See ports.LedgerTransaction."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def get(self, claim_uid: str) -> PreparedClaim | None:
        """See ports.LedgerTransaction."""
        return _get(self._connection, claim_uid)

    def claims_on(self, devices: Iterable[str]) -> Sequence[PreparedClaim]:
        """See ports.LedgerTransaction."""
        found: dict[str, PreparedClaim] = {}
        for device in dict.fromkeys(devices):
            rows = self._connection.execute(
                "SELECT record FROM holdings JOIN claims USING (uid) WHERE device = ?", (device,)
            )
            for (record,) in rows:
                claim = _claim(record)
                found[claim.ref.uid] = claim
        return list(found.values())

    def put(self, claim: PreparedClaim) -> None:
        """See ports.LedgerTransaction."""
        uid = claim.ref.uid
        self._connection.execute("DELETE FROM claims WHERE uid = ?", (uid,))
        self._connection.execute(
            "INSERT INTO claims (uid, record) VALUES (?, ?)", (uid, json.dumps(claim.as_json()))
        )
        self._connection.executemany(
            "INSERT INTO holdings (device, uid) VALUES (?, ?)",
            [(device, uid) for device in {share.device for share in claim.shares}],
        )

    def remove(self, claim_uid: str) -> None:
        """See ports.LedgerTransaction."""
        self._connection.execute("DELETE FROM claims WHERE uid = ?", (claim_uid,))


class Ledger:
    """See ports.Ledger. One connection, used by one thread at a time."""

    def __init__(self, folder: Path) -> None:
        """Opens the ledger in this folder, or begins one.

        Raises:
            RetryableError: The folder is read-only or full, or the file is locked.
            FatalError: The file is no ledger, or one of another version; it is left as it is.
        """
        self._path = folder / FILE_NAME
        self._lock = Lock()  # guards _connection
        with _errors(self._path):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._connection = sqlite3.connect(
                self._path, timeout=_WAIT_SECONDS, isolation_level=None, check_same_thread=False
            )
            try:
                self._open()
            except BaseException:
                self._connection.close()
                raise

    def get(self, claim_uid: str) -> PreparedClaim | None:
        """See ports.Ledger."""
        with self._alone() as connection:
            return _get(connection, claim_uid)

    def claims(self) -> Sequence[PreparedClaim]:
        """See ports.Ledger."""
        with self._alone() as connection:
            rows = connection.execute("SELECT record FROM claims ORDER BY uid").fetchall()
        return [_claim(record) for (record,) in rows]

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """See ports.Ledger."""
        with self._alone() as connection, _writing(connection):
            yield Transaction(connection)

    def close(self) -> None:
        """Ends the use of the file; what was committed is in it."""
        with self._lock:
            self._connection.close()

    def _open(self) -> None:
        connection = self._connection
        self._check_is_ours()  # before anything is written
        _use_wal(connection)
        # FULL: a commit returns once it would survive a power cut.
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        with _writing(connection):
            if self._check_is_ours() == 0:
                for statement in filter(str.strip, _SCHEMA.split(";")):
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {_VERSION}")

    def _check_is_ours(self) -> int:
        """The version of the file; 0 if nothing was ever written to it."""
        # In this order: tables and version are committed together, and maybe just now.
        (tables,) = self._connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        if version not in {0, _VERSION}:
            raise FatalError(
                f"ledger {self._path}: found version {version}, expected {_VERSION}: "
                "it was written by another release of this driver"
            )
        if version == 0 and tables:
            raise FatalError(f"ledger {self._path}: found a database that is no ledger")
        return int(version)

    @contextmanager
    def _alone(self) -> Iterator[sqlite3.Connection]:
        # Whoever waits behind a step that itself waits for another process gives up as well,
        # or a queue of calls would outlast the kubelet's deadline.
        if not self._lock.acquire(timeout=_WAIT_SECONDS):
            raise RetryableError(f"ledger {self._path}: busy for {_WAIT_SECONDS} s")
        try:
            with _errors(self._path):
                yield self._connection
        finally:
            self._lock.release()


def _use_wal(connection: sqlite3.Connection) -> None:
    deadline = time.monotonic() + _WAIT_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            # SQLite does not wait here itself: two instances that change the mode of a new file
            # hold a lock each that the other one wants.
            busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
            if not busy or time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE_SECONDS)
        else:
            return


@contextmanager
def _writing(connection: sqlite3.Connection) -> Iterator[None]:
    # IMMEDIATE takes the write lock at once: what is read inside cannot change under us.
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


@contextmanager
def _errors(path: Path) -> Iterator[None]:
    """Sorts what SQLite and the file system say by who can react."""
    try:
        yield
    except sqlite3.Error as error:
        # The low byte is the kind of the error; what the module itself raises has none.
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in _PASSING:
            raise RetryableError(f"ledger {path}: {error}") from error
        raise FatalError(f"ledger {path}: {error}; the file is left as it is") from error
    except OSError as error:
        raise RetryableError(f"ledger {path}: {error.strerror or error}") from error


def _get(connection: sqlite3.Connection, claim_uid: str) -> PreparedClaim | None:
    row = connection.execute("SELECT record FROM claims WHERE uid = ?", (claim_uid,)).fetchone()
    return None if row is None else _claim(row[0])


def _claim(record: str) -> PreparedClaim:
    try:
        return PreparedClaim.from_json(json.loads(record))
    except (ValueError, KeyError, TypeError, AttributeError, QuantityError) as error:
        raise FatalError(f"ledger: record {record[:80]!r} is damaged: {error!r}") from error
