"""Repeated reading of all records, beside the node plugin's calls and without holding them up.

Each reading has a connection of its own, which SQLite's log serves beside the writer, and takes
none of the ledger's locks. Only records that are new or changed since the last reading are decoded.
So a reading of 500 claims of which none changed compares 500 checksums.
"""

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import Final

from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.state import ledger_file, ledger_queries, ledger_reading
from tensorfusion_dra.state.ledger_file import FILE_NAME
from tensorfusion_dra.state.records import DamageError


class RecordReader:
    """Reader of the records in one folder's ledger; safe for all threads."""

    def __init__(self, folder: Path) -> None:
        """Read nothing yet."""
        self._path: Final = folder.absolute() / FILE_NAME
        self._lock: Final = Lock()  # guards _known
        self._known: dict[str, tuple[str, PreparedClaim]] = {}  # checksum and claim, by claim UID

    def claims(self) -> Sequence[PreparedClaim]:
        """Return all claims, sorted by UID.

        Raises:
            RetryableError: The ledger cannot be read now, or is damaged.
        """
        with self._lock:
            try:
                with ledger_file.errors(self._path):
                    self._known = self._all() if self._path.exists() else {}
            except DamageError as damage:
                raise RetryableError(f"ledger: {damage}") from damage
            except RetryableError as error:
                # Without the path: the text is shown to those who may see the status page.
                raise RetryableError(str(error).replace(f" {self._path}", "")) from error
            return [claim for _, claim in self._known.values()]

    def _all(self) -> dict[str, tuple[str, PreparedClaim]]:
        with ledger_reading.opened(self._path) as connection:
            return self._read(connection)

    def _read(self, connection: sqlite3.Connection) -> dict[str, tuple[str, PreparedClaim]]:
        connection.execute("BEGIN")  # so that both queries see the same records
        found: dict[str, tuple[str, PreparedClaim]] = {}
        for uid, checksum in ledger_queries.checksums(connection):
            known = self._known.get(uid)
            if known is not None and checksum and known[0] == checksum:
                found[uid] = known
            elif (claim := ledger_queries.claim(connection, uid)) is not None:
                found[uid] = (checksum, claim)
        return found
