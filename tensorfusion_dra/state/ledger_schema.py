"""Tables of the ledger, and the migration from one version of them to the next."""

import sqlite3
from functools import cache
from typing import Final

from tensorfusion_dra.core.errors import FatalError
from tensorfusion_dra.state.records import DamageError

VERSION: Final = 3

_STEPS: Final = (
    # Version 1. The table holdings was an index of the claims on a device.
    """
    CREATE TABLE claims (uid TEXT PRIMARY KEY, record TEXT NOT NULL) WITHOUT ROWID;
    CREATE TABLE holdings (
        device TEXT NOT NULL,
        uid TEXT NOT NULL REFERENCES claims (uid) ON DELETE CASCADE,
        PRIMARY KEY (device, uid)
    ) WITHOUT ROWID;
    CREATE INDEX holdings_by_claim ON holdings (uid);
    """,
    # Version 2. It adds a column and changes none, so that an instance of version 1 that still runs
    # during a rolling update can use the file. Records that it writes have no seal (NULL).
    """
    ALTER TABLE claims ADD COLUMN seal TEXT;
    CREATE TABLE set_aside (uid BLOB NOT NULL, record BLOB, moment TEXT NOT NULL);
    """,
    # Version 3. Records are decoded once and kept in memory, so no index is needed.
    "DROP TABLE holdings;",
)
"""Statements that turn version n - 1 into version n. A new ledger runs all of them, so that its
tables are identical to those of a migrated one."""


def check_tables(connection: sqlite3.Connection, path: object) -> int:
    """Return the version of an empty, an older or a current ledger; write nothing.

    Raises:
        FatalError: A newer release wrote it.
        DamageError: Its tables are not those of its version.
    """
    # In this order, because another instance may commit tables and version together right now.
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    found = version(connection)
    check_version(found, path)
    if found < 0 or (found == 0 and tables):
        raise DamageError(f"found {tables} tables under version {found}")
    if _tables(connection) != _tables_of(found):
        raise DamageError(f"tables: found a different schema, expected that of version {found}")
    return found


def migrate(connection: sqlite3.Connection, path: object) -> None:
    """Migrate an empty or an older ledger to this version; call it inside a transaction.

    Raises:
        FatalError: A newer release wrote it.
        DamageError: Its tables are not those of its version.
    """
    found = check_tables(connection, path)
    if found < VERSION:
        _take_steps(connection, found, VERSION)


def version(connection: sqlite3.Connection) -> int:
    """Return the version stored in the file; 0 if nothing was ever written to it."""
    (found,) = connection.execute("PRAGMA user_version").fetchone()
    return int(found)


def check_version(found: int, path: object) -> None:
    """Check that this release knows the version.

    Raises:
        FatalError: The version is a later one.
    """
    if found > VERSION:
        raise FatalError(
            f"ledger {path}: found version {found}, expected at most {VERSION}: a newer release "
            "of this driver wrote the file, so it is left unchanged"
        )


def check_current(connection: sqlite3.Connection, path: object) -> None:
    """Check that the file has the current version.

    Raises:
        FatalError: It has a later version.
        DamageError: It has an earlier version.
    """
    found = version(connection)
    check_version(found, path)
    if found != VERSION:
        raise DamageError(f"found version {found}, expected {VERSION}")


def _take_steps(connection: sqlite3.Connection, first: int, last: int) -> None:
    for step in _STEPS[first:last]:
        for statement in filter(str.strip, step.split(";")):
            connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {last}")


@cache
def _tables_of(version_wanted: int) -> tuple[tuple[object, ...], ...]:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    try:
        _take_steps(connection, 0, version_wanted)
        return _tables(connection)
    finally:
        connection.close()


def _tables(connection: sqlite3.Connection) -> tuple[tuple[object, ...], ...]:
    # As bytes, because a damaged name need not be valid text. SQLite's own tables, such as
    # statistics, do not matter, and neither do line breaks in the statements.
    rows = connection.execute(
        "SELECT type, CAST(name AS BLOB), CAST(sql AS BLOB) FROM sqlite_master"
        " WHERE name NOT LIKE 'sqlite^_%' ESCAPE '^' ORDER BY 2"
    )
    return tuple((kind, name, (sql or b"").split()) for kind, name, sql in rows)
