"""Stores of claims on disk, and records for them."""

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.state import claim_records
from tensorfusion_dra.state.claim_store import FOLDER, ClaimStore
from tests.support.builders.allocations import allocation
from tests.support.builders.claims import claim_record
from tests.support.builders.gpus import gpus
from tests.support.builders.nodes import RULES, node_facts

NODE: Final = node_facts(*gpus(2))
GPU_0, GPU_1 = NODE.devices


@contextmanager
def opened(folder: Path, **more: Any) -> Iterator[ClaimStore]:
    """Open the store in this folder, and close it at the end."""
    with closing(ClaimStore(folder, rules=RULES, **more)) as store:
        yield store


def file_of(folder: Path, claim_uid: str) -> Path:
    """Return the file of a record in this data folder."""
    return folder / FOLDER / f"{claim_uid}.json"


def set_format(file: Path, number: int) -> bytes:
    """Make a record one of another format, with its checksum; return the new content."""
    claim = json.loads(file.read_bytes())["claim"]
    checksum = claim_records.checksum(number, claim)
    file.write_text(json.dumps({"format": number, "checksum": checksum, "claim": claim}))
    return file.read_bytes()


def put(store: ClaimStore, *claims: PreparedClaim) -> None:
    """Record the claims in one transaction."""
    with store.transaction() as records:
        for claim in claims:
            records.put(claim)


def remove(store: ClaimStore, claim_uid: str) -> None:
    """Remove a record in a transaction of its own."""
    with store.transaction() as records:
        records.remove(claim_uid)


def recorded_claim(name: str, *, device: str = GPU_0, number: int = 1) -> PreparedClaim:
    """Return the record of a claim with one share; the number sets its share ID."""
    return claim_record(name, allocation(device, number), on=NODE)


def uids(store: ClaimStore) -> list[str]:
    """Return the UIDs of all recorded claims."""
    return [claim.ref.uid for claim in store.claims()]
