"""The ledger of one process on a real disk: records, transactions and restarts."""

from pathlib import Path

import pytest

from tensorfusion_dra.core.claims.claim import AllocatedClaim
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.errors import ClaimError
from tensorfusion_dra.state.ledger import Ledger
from tests.support.builders.allocations import allocation, exclusive_allocation
from tests.support.builders.claims import allocated_claim, claim_fit, fitted_claim
from tests.support.ledgers import (
    GPU_0,
    GPU_1,
    NODE,
    holders,
    opened,
    put,
    recorded_claim,
    remove,
    uids,
)


def put_and_admit(ledger: Ledger, known: PreparedClaim, claim: AllocatedClaim) -> None:
    with ledger.transaction() as step:
        step.put(known)
        step.put(claim_fit(claim, on=NODE, beside=step.claims_on([GPU_0, GPU_1])).claim)


def durable(folder: Path) -> dict[str, bytes]:
    """Return the files that survive a power cut: without SQLite's shared memory and the copies."""
    paths = (path for path in folder.iterdir() if path.is_file())
    return {path.name: path.read_bytes() for path in paths if not path.name.endswith("-shm")}


def test_records_survive_a_restart(tmp_path: Path) -> None:
    a, b = recorded_claim("a"), recorded_claim("b", device=GPU_1)
    with opened(tmp_path) as ledger:
        put(ledger, a)
        put(ledger, b)

    with opened(tmp_path) as ledger:
        assert ledger.get("uid-a") == a
        assert ledger.claims() == [a, b]
        assert holders(ledger, GPU_0, GPU_1) == ["a", "b"]
        assert holders(ledger, GPU_1) == ["b"]


def test_removing_an_unknown_claim_writes_nothing(tmp_path: Path) -> None:
    with opened(tmp_path) as ledger:
        put(ledger, recorded_claim("a"))
        before = durable(tmp_path)

        remove(ledger, "uid-unknown")

        assert durable(tmp_path) == before


def test_record_replaces_an_older_one(tmp_path: Path) -> None:
    with opened(tmp_path) as ledger:
        put(ledger, fitted_claim("a", allocation(GPU_0, 1), allocation(GPU_1, 2), on=NODE))

        put(ledger, recorded_claim("a", device=GPU_1))

        assert uids(ledger) == ["uid-a"]
        assert holders(ledger, GPU_0) == []
        assert holders(ledger, GPU_1) == ["a"]


def test_claims_on_devices_are_found_once_each(tmp_path: Path) -> None:
    with opened(tmp_path) as ledger:
        put(
            ledger,
            fitted_claim(
                "a", allocation(GPU_0, 1), allocation(GPU_0, 2), allocation(GPU_1, 3), on=NODE
            ),
            fitted_claim("b", exclusive_allocation(GPU_1, admin_access=True), on=NODE),
        )

        assert holders(ledger, GPU_0, GPU_0) == ["a"]
        assert holders(ledger, GPU_1) == ["a", "b"]
        assert holders(ledger, GPU_0, GPU_1) == ["a", "b"]
        assert holders(ledger, "gpu-other") == []


def test_unchanged_records_are_not_decoded_again(tmp_path: Path) -> None:
    with opened(tmp_path) as ledger, opened(tmp_path) as other:
        put(ledger, recorded_claim("b"))
        first = ledger.claims()

        put(ledger, recorded_claim("a", number=2))
        own = ledger.claims()
        remove(other, "uid-a")
        put(other, recorded_claim("c", number=3))

        assert own[1] is first[0]
        assert [claim.ref.uid for claim in own] == ["uid-a", "uid-b"]
        assert uids(ledger) == ["uid-b", "uid-c"]


def test_transaction_sees_its_own_changes(tmp_path: Path) -> None:
    a, b = recorded_claim("a"), recorded_claim("b", number=2)
    with opened(tmp_path) as ledger:
        put(ledger, a)

        with ledger.transaction() as step:
            assert step.get("uid-a") == a
            step.remove("uid-a")
            step.put(b)

            assert step.get("uid-a") is None
            assert step.get("uid-b") == b
            assert step.claims_on([GPU_0]) == [b]


def test_failed_transaction_adds_nothing(tmp_path: Path) -> None:
    with opened(tmp_path) as ledger:
        put(ledger, recorded_claim("a"))

        with pytest.raises(ClaimError):
            put_and_admit(
                ledger,
                recorded_claim("b", number=2),
                allocated_claim("c", exclusive_allocation(GPU_0)),
            )

        assert uids(ledger) == ["uid-a"]
        put(ledger, recorded_claim("b", number=2))
        assert uids(ledger) == ["uid-a", "uid-b"]


def test_records_survive_a_power_cut(tmp_path: Path) -> None:
    rebooted = tmp_path / "rebooted"
    rebooted.mkdir()
    with opened(tmp_path / "running") as ledger:
        put(ledger, recorded_claim("a"))

        for name, content in durable(tmp_path / "running").items():
            (rebooted / name).write_bytes(content)

    with opened(rebooted) as ledger:
        assert uids(ledger) == ["uid-a"]
