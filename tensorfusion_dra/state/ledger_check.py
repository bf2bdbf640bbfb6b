"""What is damaged in a ledger is found and put right from the copies of its records."""

import sqlite3
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

import structlog

from tensorfusion_dra.state import records
from tensorfusion_dra.state.record_copies import RecordCopies
from tensorfusion_dra.state.records import DamageError, Record

log = structlog.get_logger()

_UID_BYTES: Final = "coalesce(CAST(uid AS BLOB), x'')"
"""What is damaged need not be text, and may even be missing."""


@dataclass(slots=True)
class Found:
    """What was not as it should be.

    Attributes:
        rebuilt: UIDs of claims whose records come from their copies now.
        lost: UIDs of claims whose records are damaged, and so are their copies.
    """

    rebuilt: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.rebuilt or self.lost)


def check_pages(connection: sqlite3.Connection) -> None:
    """Returns if the file is a sound database.

    Raises:
        DamageError: It is not.
    """
    (said,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    if said != "ok":
        raise DamageError(str(said))


def repair(connection: sqlite3.Connection, copies: RecordCopies) -> Found:
    """Makes every record readable and the same as its copy; inside a transaction.

    A record wins over its copy. A copy without a record was recorded once, and the end of the
    database's log is lost or all of it; or it was about to be recorded when the process was killed.
    Then the kubelet asks for its claim again, to prepare or to unprepare it.

    Raises:
        OSError: The copies cannot be read or written.
    """
    found = Found()
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


def repair_holdings(connection: sqlite3.Connection) -> None:
    """Has every device held by those claims whose records say so; inside a transaction.

    Raises:
        DamageError: A record cannot be read.
    """
    wanted = {
        (device.encode(), record.uid.encode())
        for record in _read_all(connection)
        for device in devices(record)
    }
    rows = "SELECT CAST(device AS BLOB), CAST(uid AS BLOB) FROM holdings"
    if set(connection.execute(rows)) == wanted:
        return
    connection.execute("DELETE FROM holdings")
    connection.executemany(
        "INSERT INTO holdings (device, uid) VALUES (?, ?)",
        [(device.decode(), uid.decode()) for device, uid in wanted],
    )
    log.error("holdings_damaged")


def devices(record: Record) -> set[str]:
    """The devices that a record's claim holds shares of."""
    return {share.device for share in records.claim(record).shares}


def _sound_records(
    connection: sqlite3.Connection, copies: RecordCopies, found: Found
) -> dict[str, Record]:
    """The records that can be read, by UID; the others are set aside. Each has its copy."""
    sound: dict[str, Record] = {}
    for uid, text, checksum in _rows(connection):
        try:
            record = records.read(uid, text, checksum)
        except DamageError as error:
            log.warning("record_set_aside", error=str(error))
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
    """The copy of a record that is not in the ledger; a damaged one is set aside."""
    try:
        return copies.get(uid)
    except DamageError as error:
        log.warning("record_copy_set_aside", error=str(error))
        copies.quarantine(uid, moment=datetime.now(UTC))
        return None


def _insert(connection: sqlite3.Connection, record: Record) -> None:
    connection.execute(
        "INSERT INTO claims (uid, record, seal) VALUES (?, ?, ?)",
        (record.uid, record.text, record.checksum),
    )
    connection.executemany(
        "INSERT OR IGNORE INTO holdings (device, uid) VALUES (?, ?)",
        [(device, record.uid) for device in devices(record)],
    )


def _quarantine(connection: sqlite3.Connection, uid: bytes, text: bytes | None) -> None:
    connection.execute(
        "INSERT INTO set_aside (uid, record, moment) VALUES (?, ?, ?)",
        (uid, text, datetime.now(UTC).isoformat()),
    )
    connection.execute(f"DELETE FROM claims WHERE {_UID_BYTES} = ?", (uid,))  # noqa: S608


def _read_all(connection: sqlite3.Connection) -> list[Record]:
    return [records.read(uid, text, checksum) for uid, text, checksum in _rows(connection)]


def _rows(connection: sqlite3.Connection) -> list[tuple[bytes, bytes | None, bytes | None]]:
    return connection.execute(
        f"SELECT {_UID_BYTES}, CAST(record AS BLOB), CAST(seal AS BLOB) FROM claims"  # noqa: S608
    ).fetchall()
