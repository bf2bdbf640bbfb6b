"""Detection and repair of damage inside a ledger, from the copies of its records.

Repair applies three rules. A sound record stays, and its copy is written again if it differs. A
damaged record moves to the table ``set_aside``, and its copy takes its place. A copy without a
record becomes a record. A claim is lost only if both its record and its copy are damaged.
"""

import sqlite3
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

import structlog

from tensorfusion_dra.state import records
from tensorfusion_dra.state.records import DamageError, Record, RecordCopies

log = structlog.get_logger()

_UID_BYTES: Final = "coalesce(CAST(uid AS BLOB), x'')"
"""As bytes, because a damaged UID need not be valid text, and may even be NULL."""


@dataclass(slots=True)
class RepairReport:
    """Result of a repair; false if there was no damage.

    Attributes:
        rebuilt: UIDs of claims whose records were restored from their copies.
        lost: UIDs of claims whose records and copies are both damaged.
    """

    rebuilt: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.rebuilt or self.lost)


def check_pages(connection: sqlite3.Connection) -> None:
    """Check the integrity of the database file.

    Raises:
        DamageError: The file is not a sound database.
    """
    (result,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    if result != "ok":
        raise DamageError(str(result))


def repair(connection: sqlite3.Connection, copies: RecordCopies) -> RepairReport:
    """Make every record readable and equal to its copy; call it inside a transaction.

    A record wins over its copy. A copy without a record has one of two causes: the end of the
    database's log, or all of it, is lost; or the process was killed just before it committed the
    record. In the second case the kubelet calls again, to prepare or to unprepare the claim.

    Raises:
        OSError: The copies cannot be read or written.
    """
    found = RepairReport()
    sound = _sound_records(connection, copies, found)
    for uid in sorted(copies.uids() - sound.keys()):
        copy = _copy(copies, uid)
        if copy is None:
            found.lost.append(uid)
        else:
            _insert(connection, copy)
            found.rebuilt.append(uid)
    found.lost = sorted(set(found.lost) - set(found.rebuilt))
    if found:
        log.warning("records_rebuilt", claims=len(found.rebuilt), lost=found.lost)
    return found


def _sound_records(
    connection: sqlite3.Connection, copies: RecordCopies, found: RepairReport
) -> dict[str, Record]:
    """Return the readable records by UID, write their copies, and quarantine damaged records."""
    sound: dict[str, Record] = {}
    for uid, text, checksum in _rows(connection):
        try:
            record = records.read(uid, text, checksum)
        except DamageError as error:
            log.warning("record_quarantined", error=str(error))
            _quarantine(connection, uid, text)
            found.lost.append(uid.decode(errors="replace"))
            continue
        if checksum is None:
            connection.execute(
                "UPDATE claims SET seal = ? WHERE uid = ?", (record.checksum, record.uid)
            )
        copies.ensure(record)
        sound[record.uid] = record
    return sound


def _copy(copies: RecordCopies, uid: str) -> Record | None:
    """Return the copy of a record that is not in the ledger; quarantine a damaged copy."""
    try:
        return copies.get(uid)
    except DamageError as error:
        log.warning("record_copy_quarantined", error=str(error))
        copies.quarantine(uid, moment=datetime.now(UTC))
        return None


def _insert(connection: sqlite3.Connection, record: Record) -> None:
    connection.execute(
        "INSERT INTO claims (uid, record, seal) VALUES (?, ?, ?)",
        (record.uid, record.text, record.checksum),
    )


def _quarantine(connection: sqlite3.Connection, uid: bytes, text: bytes | None) -> None:
    connection.execute(
        "INSERT INTO set_aside (uid, record, moment) VALUES (?, ?, ?)",
        (uid, text, datetime.now(UTC).isoformat()),
    )
    connection.execute(f"DELETE FROM claims WHERE {_UID_BYTES} = ?", (uid,))  # noqa: S608


def _rows(connection: sqlite3.Connection) -> list[tuple[bytes, bytes | None, bytes | None]]:
    return connection.execute(
        f"SELECT {_UID_BYTES}, CAST(record AS BLOB), CAST(seal AS BLOB) FROM claims"  # noqa: S608
    ).fetchall()
