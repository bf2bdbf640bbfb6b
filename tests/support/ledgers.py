"""Ledgers on disk, and records for them."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.state.ledger import Ledger
from tensorfusion_dra.state.ledger_file import FILE_NAME
from tests.support.builders.allocations import allocation
from tests.support.builders.claims import claim_record
from tests.support.builders.gpus import gpus
from tests.support.builders.nodes import node_facts

NODE: Final = node_facts(*gpus(2))
GPU_0, GPU_1 = NODE.devices


@contextmanager
def opened(folder: Path) -> Iterator[Ledger]:
    """Open the ledger in this folder, and close it at the end."""
    with closing(Ledger(folder)) as ledger:
        yield ledger


def existing(folder: Path, claims: int = 40) -> Path:
    """Create a ledger with many records, close it, and return its file."""
    with opened(folder) as ledger:
        put(ledger, *(recorded_claim(f"{number:02}", number=number) for number in range(claims)))
    return folder / FILE_NAME


def edited(path: Path, *statements: str) -> bytes:
    """Change the file as another program might, and return its new content."""
    with closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()
    return path.read_bytes()


def put(ledger: Ledger, *claims: PreparedClaim) -> None:
    """Record the claims in one transaction."""
    with ledger.transaction() as transaction:
        for claim in claims:
            transaction.put(claim)


def remove(ledger: Ledger, claim_uid: str) -> None:
    """Remove a record in a transaction of its own."""
    with ledger.transaction() as transaction:
        transaction.remove(claim_uid)


def recorded_claim(name: str, *, device: str = GPU_0, number: int = 1) -> PreparedClaim:
    """Return the record of a claim with one share; the number sets its share ID."""
    return claim_record(name, allocation(device, number), on=NODE)


def uids(ledger: Ledger) -> list[str]:
    """Return the UIDs of all recorded claims."""
    return [claim.ref.uid for claim in ledger.claims()]


def holders(ledger: Ledger, *devices: str) -> list[str]:
    """Return the names of the claims with shares of these devices."""
    with ledger.transaction() as transaction:
        return sorted(claim.ref.name for claim in transaction.claims_on(devices))
