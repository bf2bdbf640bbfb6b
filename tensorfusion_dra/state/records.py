"""Records as stored on disk: a JSON text and a checksum that reveals damage to it.

Beside its row in the ledger, each record has a copy in a file of its own, from which a damaged
ledger is rebuilt. Every function that reads raises DamageError if a record differs from what was
written, and sqlite3.Error if the database cannot be read.
"""

import hashlib
import json
import os
import sqlite3
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tensorfusion_dra.core.claims import claim as claims
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.kubernetes.quantity import QuantityError
from tensorfusion_dra.state import atomic

FOLDER_NAME: Final = "records"
_SUFFIX: Final = ".record"
_MODE: Final = 0o600
UID_BYTES: Final = "coalesce(CAST(uid AS BLOB), x'')"
"""As bytes, because a damaged value need not be valid text, and a damaged UID may even be NULL."""
_SELECT: Final = f"SELECT {UID_BYTES}, CAST(record AS BLOB), CAST(seal AS BLOB) FROM claims"  # noqa: S608


class DamageError(Exception):
    """Stored data differs from what was written; caught where the ledger is repaired."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A claim's record.

    Attributes:
        text: JSON.
        checksum: SHA-256 over UID and text, in hex; the database column is named ``seal``.
    """

    uid: str
    text: str
    checksum: str


def of_claim(claim: PreparedClaim) -> Record:
    """Return the record of a claim."""
    uid, text = claim.ref.uid, json.dumps(claim.as_json())
    return Record(uid=uid, text=text, checksum=_checksum(uid.encode(), text.encode()))


def read(uid: bytes, text: bytes | None, checksum: bytes | None) -> Record:
    """Return the record after comparing it with its checksum.

    Raises:
        DamageError: The record is missing or differs from what was written.
    """
    if text is None:
        raise DamageError(f"record of {uid!r}: found none")
    expected = _checksum(uid, text)
    if checksum != expected.encode():
        raise DamageError(f"record of {uid!r}: found a text that does not match its checksum")
    return Record(uid=uid.decode(), text=text.decode(), checksum=expected)


def claim(record: Record) -> PreparedClaim:
    """Return the claim in a record.

    Raises:
        DamageError: The text is not a claim, or has another UID.
    """
    try:
        found = PreparedClaim.from_json(json.loads(record.text))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, QuantityError) as e:
        raise DamageError(f"record of {record.uid!r}: {record.text[:80]!r}: {e!r}") from e
    if found.ref.uid != record.uid:
        raise DamageError(
            f"record of {record.uid!r}: found UID {found.ref.uid!r}, expected the same one"
        )
    return found


def fetch(connection: sqlite3.Connection, claim_uid: str) -> Record | None:
    """Return the record of a claim; None if there is none."""
    row = connection.execute(f"{_SELECT} WHERE uid = ?", (claim_uid,)).fetchone()
    return None if row is None else read(*row)


def fetch_claims(connection: sqlite3.Connection) -> list[PreparedClaim]:
    """Return all claims, sorted by UID."""
    return [claim(read(*row)) for row in rows(connection)]


def rows(connection: sqlite3.Connection) -> list[tuple[bytes, bytes | None, bytes | None]]:
    """Return UID, text and checksum of every record, sorted by UID, for read()."""
    return connection.execute(f"{_SELECT} ORDER BY uid").fetchall()


def insert(connection: sqlite3.Connection, record: Record) -> None:
    """Add the record, whose claim has none."""
    connection.execute(
        "INSERT INTO claims (uid, record, seal) VALUES (?, ?, ?)",
        (record.uid, record.text, record.checksum),
    )


def _checksum(uid: bytes, text: bytes) -> str:
    return hashlib.sha256(b"%b\n%b" % (uid, text)).hexdigest()


@dataclass(frozen=True, slots=True)
class RecordCopies:
    """Folder of record copies. A file has two lines: the checksum, and the text as in the ledger.

    A copy is written without waiting for the disk (no fsync). Copies protect claims whose
    containers run while the ledger is damaged. After a power cut no container runs, and the kubelet
    prepares its claims again.

    Every method raises:
        OSError: The folder is full, read-only or unreadable.
    """

    folder: Path

    def put(self, record: Record) -> None:
        """Write the copy of the record; replace an older one."""
        self.commit(record.uid, self.stage(record))

    def stage(self, record: Record) -> str:
        """Write a temporary file for the copy; it counts only after commit()."""
        path = self._path(record.uid)
        try:
            return atomic.stage(path, _content(record), mode=_MODE, durable=False)
        except FileNotFoundError:
            self.folder.mkdir(parents=True, exist_ok=True)
            return atomic.stage(path, _content(record), mode=_MODE, durable=False)

    def commit(self, uid: str, file: str) -> None:
        """Make a staged file the copy; replace an older one."""
        os.rename(file, self._path(uid))  # noqa: PTH104 - see atomic.stage()

    def ensure(self, record: Record) -> None:
        """Write the copy unless it exists and is correct."""
        if self._read(record.uid) != _content(record):
            self.put(record)

    def remove(self, uid: str) -> None:
        """Remove the copy; do nothing if there is none."""
        self._path(uid).unlink(missing_ok=True)

    def uids(self) -> frozenset[str]:
        """Return the UIDs of the claims that have a copy."""
        try:
            found = [path.name for path in self.folder.iterdir()]
        except FileNotFoundError:
            return frozenset()
        names = (name.removesuffix(_SUFFIX) for name in found if name.endswith(_SUFFIX))
        return frozenset(name for name in names if claims.is_uid(name))

    def get(self, uid: str) -> Record:
        """Return the record from its copy.

        Raises:
            DamageError: The copy is missing, or differs from what was written.
        """
        checksum, _, text = (self._read(uid) or b"").removesuffix(b"\n").partition(b"\n")
        record = read(uid.encode(), text, checksum)
        claim(record)
        return record

    def quarantine(self, uid: str) -> None:
        """Rename a damaged copy to ``<uid>-damaged-<time>``."""
        path, moment = self._path(uid), datetime.now(UTC)
        path.rename(path.with_name(f"{uid}-damaged-{moment:%Y%m%dT%H%M%S.%fZ}"))

    def remove_unfinished(self) -> None:
        """Remove temporary files that a crash left; call it only while no copy is being written."""
        if self.folder.is_dir():
            for path in atomic.unfinished(self.folder, prefix="", suffix=_SUFFIX):
                path.unlink(missing_ok=True)

    def _read(self, uid: str) -> bytes | None:
        # A damaged ledger may contain any text as UID, even a path.
        if not claims.is_uid(uid):
            return None
        try:
            return self._path(uid).read_bytes()
        except FileNotFoundError:
            return None

    def _path(self, uid: str) -> Path:
        return self.folder / f"{uid}{_SUFFIX}"


def _content(record: Record) -> bytes:
    return f"{record.checksum}\n{record.text}\n".encode()
