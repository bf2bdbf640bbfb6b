"""Ledgers on the disk, and records to put into them."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.state.ledger import Ledger
from tensorfusion_dra.state.ledger_file import FILE_NAME
from tests.support.claims import node_offer, prepared, share
from tests.support.gpus import cards

NODE: Final = node_offer(*cards(2))
GPU_0, GPU_1 = NODE.devices


@contextmanager
def opened(folder: Path) -> Iterator[Ledger]:
    """The ledger in this folder, closed at the end."""
    with closing(Ledger(folder)) as ledger:
        yield ledger


def existing(folder: Path, claims: int = 40) -> Path:
    """The file of a ledger with many records, closed."""
    with opened(folder) as ledger:
        put(ledger, *(record(f"{number:02}", number=number) for number in range(claims)))
    return folder / FILE_NAME


def edited(path: Path, *statements: str) -> bytes:
    """Changes the file as a program other than this driver might; its content then."""
    with closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()
    return path.read_bytes()


def put(ledger: Ledger, *claims: PreparedClaim) -> None:
    """Records the claims in one step."""
    with ledger.transaction() as step:
        for claim in claims:
            step.put(claim)


def remove(ledger: Ledger, claim_uid: str) -> None:
    """Removes a record in a step of its own."""
    with ledger.transaction() as step:
        step.remove(claim_uid)


def record(name: str, *, device: str = GPU_0, number: int = 1) -> PreparedClaim:
    """The record of a claim with one share; the number makes its share ID."""
    return prepared(name, share(device, number), on=NODE)


def uids(ledger: Ledger) -> list[str]:
    """The UIDs of all recorded claims."""
    return [claim.ref.uid for claim in ledger.claims()]


def holders(ledger: Ledger, *devices: str) -> list[str]:
    """The names of the claims that hold shares of these devices."""
    with ledger.transaction() as step:
        return sorted(claim.ref.name for claim in step.claims_on(devices))
