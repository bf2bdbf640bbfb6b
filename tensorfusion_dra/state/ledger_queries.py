"""Queries on the ledger's tables.

Every function raises DamageError if a record differs from what was written, and sqlite3.Error if
the file cannot be read.
"""

import sqlite3
from typing import Final

from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.state import records
from tensorfusion_dra.state.records import Record

_COLUMNS: Final = "CAST(uid AS BLOB), CAST(record AS BLOB), CAST(seal AS BLOB)"
"""As bytes, because a damaged value need not be valid text."""


def has(connection: sqlite3.Connection, record: Record) -> bool:
    """Return True if this is its claim's present record."""
    row = connection.execute(
        "SELECT 1 FROM claims WHERE uid = ? AND seal = ?", (record.uid, record.checksum)
    ).fetchone()
    return row is not None


def record(connection: sqlite3.Connection, claim_uid: str) -> Record | None:
    """Return the record of a claim; None if there is none."""
    row = connection.execute(
        f"SELECT {_COLUMNS} FROM claims WHERE uid = ?",  # noqa: S608
        (claim_uid,),
    ).fetchone()
    return None if row is None else records.read(*row)


def claim(connection: sqlite3.Connection, claim_uid: str) -> PreparedClaim | None:
    """Return the claim from its record; None if there is none."""
    found = record(connection, claim_uid)
    return None if found is None else records.claim(found)


def claims(connection: sqlite3.Connection) -> list[PreparedClaim]:
    """Return all claims, sorted by UID."""
    rows = connection.execute(f"SELECT {_COLUMNS} FROM claims ORDER BY uid").fetchall()  # noqa: S608
    return [_claim(row) for row in rows]


def _claim(row: tuple[bytes, bytes | None, bytes | None]) -> PreparedClaim:
    return records.claim(records.read(*row))
