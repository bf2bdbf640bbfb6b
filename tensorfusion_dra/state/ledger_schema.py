"""The tables of the ledger, and how one version of them becomes the next."""

import sqlite3
from functools import cache
from typing import Final

from tensorfusion_dra.core.errors import FatalError
from tensorfusion_dra.state.records import DamageError

VERSION: Final = 2

_STEPS: Final = (
    # Version 1. holdings finds the claims on a device without reading every record; the records
    # are the truth.
    """
    CREATE TABLE claims (uid TEXT PRIMARY KEY, record TEXT NOT NULL) WITHOUT ROWID;
    CREATE TABLE holdings (
        device TEXT NOT NULL,
        uid TEXT NOT NULL REFERENCES claims (uid) ON DELETE CASCADE,
        PRIMARY KEY (device, uid)
    ) WITHOUT ROWID;
    CREATE INDEX holdings_by_claim ON holdings (uid);
    """,
    # Version 2. A column is added and none is changed, so that an instance of version 1 that
    # still runs during a rolling update goes on with the file. Its records have no seal (NULL).
    """
    ALTER TABLE claims ADD COLUMN seal TEXT;
    CREATE TABLE set_aside (uid BLOB NOT NULL, record BLOB, moment TEXT NOT NULL);
    """,
)
"""What makes version n of version n - 1; a new ledger takes all steps, so that its tables are the
very same as those of an old one."""


def check_tables(connection: sqlite3.Connection, path: object) -> int:
    """The version of an empty, an older or a present ledger; nothing is written.

    Raises:
        FatalError: A newer release wrote it.
        DamageError: It is not what this version, or an older one, makes.
    """
    # In this order: tables and version are committed together, and maybe just now.
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    found = version(connection)
    check_version(found, path)
    if found < 0 or (found == 0 and tables):
        raise DamageError(f"found {tables} tables under version {found}")
    if _tables(connection) != _tables_of(found):
        raise DamageError(f"found other tables than those of version {found}")
    return found


def migrate(connection: sqlite3.Connection, path: object) -> None:
    """Brings an empty or an older ledger to this version, inside a transaction.

    Raises:
        FatalError: A newer release wrote it.
        DamageError: It is not what this version, or an older one, makes.
    """
    found = check_tables(connection, path)
    if found < VERSION:
        _take_steps(connection, found, VERSION)


def version(connection: sqlite3.Connection) -> int:
    """The version that the file says it has; 0 if nothing was ever written to it."""
    (found,) = connection.execute("PRAGMA user_version").fetchone()
    return int(found)


def check_version(found: int, path: object) -> None:
    """Returns if this release may know the version.

    Raises:
        FatalError: It is a later one.
    """
    if found > VERSION:
        raise FatalError(
            f"ledger {path}: found version {found}, expected at most {VERSION}: a newer release "
            "of this driver wrote it, and the file is left to that"
        )


def check_current(connection: sqlite3.Connection, path: object) -> None:
    """Returns if the file has this very version.

    Raises:
        FatalError: It has a later one.
        DamageError: It has an earlier one.
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
    # As bytes: a damaged name need not be text. SQLite's own tables, such as statistics, are
    # nobody's concern, and neither is how a statement was broken into lines.
    rows = connection.execute(
        "SELECT type, CAST(name AS BLOB), CAST(sql AS BLOB) FROM sqlite_master"
        " WHERE name NOT LIKE 'sqlite^_%' ESCAPE '^' ORDER BY 2"
    )
    return tuple((kind, name, (sql or b"").split()) for kind, name, sql in rows)
