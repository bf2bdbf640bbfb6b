"""A transaction on the ledger: changes of records and of their copies.

Every function raises DamageError if a record differs from what was written, and sqlite3.Error if
the file cannot be read.
"""

import sqlite3
from collections.abc import Container, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.state import atomic, records
from tensorfusion_dra.state.records import DamageError, Record, RecordCopies

_COLUMNS: Final = "CAST(uid AS BLOB), CAST(record AS BLOB), CAST(seal AS BLOB)"
"""As bytes, because a damaged value need not be valid text."""


def has(connection: sqlite3.Connection, record: Record) -> bool:
    """Return True if this is its claim's present record."""
    row = connection.execute(
        "SELECT 1 FROM claims WHERE uid = ? AND seal = ?", (record.uid, record.checksum)
    ).fetchone()
    return row is not None


def fetch(connection: sqlite3.Connection, claim_uid: str) -> Record | None:
    """Return the record of a claim; None if there is none."""
    row = connection.execute(
        f"SELECT {_COLUMNS} FROM claims WHERE uid = ?",  # noqa: S608
        (claim_uid,),
    ).fetchone()
    return None if row is None else records.read(*row)


def fetch_claim(connection: sqlite3.Connection, claim_uid: str) -> PreparedClaim | None:
    """Return the claim from its record; None if there is none."""
    found = fetch(connection, claim_uid)
    return None if found is None else records.claim(found)


def fetch_claims(connection: sqlite3.Connection) -> list[PreparedClaim]:
    """Return all claims, sorted by UID."""
    rows = connection.execute(f"SELECT {_COLUMNS} FROM claims ORDER BY uid").fetchall()  # noqa: S608
    return [records.claim(records.read(*row)) for row in rows]


@dataclass(slots=True)
class DecodedRecords:
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
        decoded: DecodedRecords,
        *,
        epoch: Hashable,
    ) -> None:
        """Begin nothing; the caller begins and ends the transaction.

        Args:
            decoded: Kept by the caller from one transaction to the next.
            epoch: Differs after the database was opened anew and after a failed transaction.
        """
        self._connection = connection
        self._copies = copies
        self._decoded = decoded
        self._epoch = epoch
        self._staged: dict[str, str] = {}  # temporary file by UID
        self._removed: set[str] = set()
        self._others: int | None = None  # SQLite's number of the other connections' changes

    def get(self, claim_uid: str) -> PreparedClaim | None:
        """Return the record of a claim, or None."""
        return fetch_claim(self._connection, claim_uid)

    def current(self, claim: PreparedClaim) -> PreparedClaim | None:
        """Return the claim's current record; None if it was removed.

        If the record has not changed since it was read or put, return the given claim without
        decoding anything.
        """
        found = fetch(self._connection, claim.ref.uid)
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
            found = fetch_claims(self._connection)
            self._decoded.claims = {claim.ref.uid: claim for claim in found}
            self._decoded.version = version
        return list(self._decoded.claims.values())

    def put(self, claim: PreparedClaim) -> Record:
        """Add the record, or replace an older one of the same UID; return it as stored."""
        record = records.of_claim(claim)
        was_decoded = self._decoded.version == self._version()
        self._discard(record.uid)
        self._staged[record.uid] = self._copies.stage(record)
        self._connection.execute("DELETE FROM claims WHERE uid = ?", (record.uid,))
        self._connection.execute(
            "INSERT INTO claims (uid, record, seal) VALUES (?, ?, ?)",
            (record.uid, record.text, record.checksum),
        )
        if was_decoded:
            self._decoded.claims[record.uid] = claim
            self._decoded.version = self._version()
        return record

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
                record = fetch(self._connection, uid)
                if record is not None:
                    self._copies.put(record)

    def _version(self) -> Hashable:
        """Return a value that changes with every change of a record, by this or another process.

        It also changes with a transaction that failed.
        """
        if self._others is None:  # it cannot change before the end of this transaction
            (self._others,) = self._connection.execute("PRAGMA data_version").fetchone()
        return self._epoch, self._others, self._connection.total_changes

    def _discard(self, uid: str) -> None:
        file = self._staged.pop(uid, None)
        if file is not None:
            atomic.discard(file)
