"""Read-only access to the ledger of a node plugin that may be running."""

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.core.kubernetes.quantity import QuantityError
from tensorfusion_dra.state import ledger_file, ledger_schema, ledger_transaction
from tensorfusion_dra.state.ledger_file import FILE_NAME
from tensorfusion_dra.state.records import DamageError

_WAIT_SECONDS: Final = 2.0
_DAMAGED: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerFacts:
    """State of the ledger.

    Attributes:
        trouble: Reason why it could not be opened; "" if it could.
        damage: Damage that SQLite or a malformed record shows; "" for none.
        version: Version of its schema.
        claims: ``namespace/name`` of its claims, by UID; None if they could not be read.
    """

    path: str
    exists: bool = True
    trouble: str = ""
    damage: str = ""
    version: int = 0
    size_bytes: int = 0
    claims: Mapping[str, str] | None = None


def claims(folder: Path) -> Sequence[PreparedClaim]:
    """Return the claims in this folder's ledger; report damage, but do not repair it.

    Raises:
        RetryableError: The ledger cannot be read, or is damaged.
        FatalError: A newer release wrote it.
    """
    path = folder.absolute() / FILE_NAME
    try:
        with ledger_file.errors(path):
            if not path.exists():
                return []
            with opened(path) as connection:
                ledger_schema.check_current(connection, path)
                return ledger_transaction.fetch_claims(connection)
    except DamageError as damage:
        raise RetryableError(
            f"ledger {path}: {damage}; the node plugin repairs it when it starts"
        ) from damage


def facts(folder: Path) -> LedgerFacts:
    """Return what `doctor` reports about the ledger in this folder, even if it is damaged."""
    file = folder / FILE_NAME
    try:
        size = file.stat().st_size
    except FileNotFoundError:
        return LedgerFacts(path=str(file), exists=False)
    except OSError as error:
        return LedgerFacts(path=str(file), trouble=error.strerror or str(error))
    try:
        with opened(file) as connection:
            return _facts(file, size, connection)
    except sqlite3.Error as error:
        damaged = getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGED
        return LedgerFacts(
            path=str(file),
            size_bytes=size,
            damage=str(error) if damaged else "",
            trouble="" if damaged else str(error),
        )


def _facts(file: Path, size: int, connection: sqlite3.Connection) -> LedgerFacts:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (checked,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    damage = "" if checked == "ok" else str(checked)
    claims: dict[str, str] = {}
    (tables,) = connection.execute(
        "SELECT count(*) FROM sqlite_master WHERE name = 'claims'"
    ).fetchone()
    if not tables:
        damage = damage or "found a database without the table claims, expected a ledger"
        return LedgerFacts(path=str(file), damage=damage, version=version, size_bytes=size)
    for uid, record in connection.execute("SELECT uid, record FROM claims"):
        try:
            claims[uid] = str(PreparedClaim.from_json(json.loads(record)).ref)
        except (ValueError, KeyError, TypeError, AttributeError, QuantityError) as error:
            damage = damage or f"the record of claim {uid} cannot be read: {error!r}"
    return LedgerFacts(
        path=str(file), damage=damage, version=version, size_bytes=size, claims=claims
    )


@contextmanager
def opened(file: Path) -> Iterator[sqlite3.Connection]:
    """Yield a connection that only reads, beside a node plugin that writes.

    Raises:
        sqlite3.Error: The file cannot be read.
    """
    # Read-only but not immutable, because the node plugin may write at the same time.
    connection = sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True, timeout=_WAIT_SECONDS)
    with closing(connection):
        connection.execute("PRAGMA query_only = ON")
        yield connection
