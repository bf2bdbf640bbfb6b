"""Read-only access to the ledger of a node plugin that may be running."""

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.state import ledger_file, records
from tensorfusion_dra.state.ledger_file import FILE_NAME
from tensorfusion_dra.state.records import DamageError

_WAIT_SECONDS: Final = 2.0


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
                is_empty = ledger_file.check_tables(connection, path)
                return [] if is_empty else records.fetch_claims(connection)
    except DamageError as damage:
        raise RetryableError(
            f"ledger {path}: {damage}; the node plugin repairs it when it starts"
        ) from damage


def facts(folder: Path) -> LedgerFacts:
    """Return what `doctor` reports about the ledger in this folder, even if it is damaged."""
    file = folder / FILE_NAME
    found = LedgerFacts(path=str(file))
    try:
        with ledger_file.errors(file):
            if not file.exists():
                return replace(found, exists=False)
            found = replace(found, size_bytes=file.stat().st_size)
            with opened(file) as connection:
                (version,) = connection.execute("PRAGMA user_version").fetchone()
                found = replace(found, version=version)
                if version > ledger_file.VERSION:
                    return found
                (checked,) = connection.execute("PRAGMA quick_check(1)").fetchone()
                found = replace(found, damage="" if checked == "ok" else str(checked))
                claims = records.fetch_claims(connection)
    except DamageError as error:
        return replace(found, damage=found.damage or str(error))
    except RetryableError as error:
        return replace(found, trouble=str(error))
    return replace(found, claims={claim.ref.uid: str(claim.ref) for claim in claims})


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
