"""Sums over the recorded claims: no other record is decoded, and they never outlive their truth."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.driver.outcomes import Failure
from tests.support.disk import no_room_after
from tests.support.prepared_node import (
    GPU_0,
    GPU_1,
    Setup,
    error_of,
    put_claim,
    share_result,
    simulated_inventory,
)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Setup]:
    setup = Setup(tmp_path)
    yield setup
    setup.ledger.close()


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collect the names of the claims whose records are decoded."""
    names: list[str] = []
    decode = PreparedClaim.from_json

    def counted(_: type[PreparedClaim], kept: Mapping[str, Any]) -> PreparedClaim:
        names.append(kept["name"])
        return decode(kept)

    monkeypatch.setattr(PreparedClaim, "from_json", classmethod(counted))
    return names


def claim(node: Setup, name: str, vram: str = "1Gi", **more: Any) -> ClaimRef:
    return put_claim(node, name, share_result(tflops="1", vram=vram, **more))


def is_prepared(node: Setup, ref: ClaimRef) -> bool:
    return not isinstance(node.prepare(ref)[ref.uid], Failure)


def test_first_prepare_decodes_no_record_and_unprepare_its_own(
    node: Setup, decoded: list[str]
) -> None:
    for number in range(20):
        assert is_prepared(node, claim(node, f"held-{number}", device=(GPU_0, GPU_1)[number % 2]))
    ref = claim(node, "a")
    decoded.clear()

    assert is_prepared(node, ref)

    assert decoded == []
    assert node.unprepare(ref) == {ref.uid: None}
    assert decoded == ["a"]


def test_records_are_summed_up_once_after_a_start(node: Setup, decoded: list[str]) -> None:
    held = [claim(node, f"held-{number}") for number in range(3)]
    assert all(is_prepared(node, ref) for ref in held)
    after = node.restarted()
    decoded.clear()

    assert is_prepared(after, claim(after, "a"))
    assert sorted(decoded) == ["held-0", "held-1", "held-2"]
    decoded.clear()
    assert is_prepared(after, claim(after, "b"))

    assert decoded == []
    after.ledger.close()


def test_claims_of_another_instance_count(node: Setup) -> None:
    assert is_prepared(node, claim(node, "a", "30Gi"))
    other = Setup(node.folder, node.claims)
    assert is_prepared(other, claim(other, "b", "30Gi"))

    refused = node.prepare(ref := claim(node, "c", "30Gi"))

    assert "in use" in error_of(refused[ref.uid])
    other.unprepare(claim(other, "b", "30Gi"))
    assert is_prepared(node, ref)
    other.ledger.close()


def test_claim_that_could_not_be_recorded_takes_nothing(node: Setup) -> None:
    assert is_prepared(node, claim(node, "a", "30Gi"))
    log = node.folder / "plugin" / "ledger.sqlite3-wal"
    lost = claim(node, "b", "30Gi")
    with no_room_after(log.stat().st_size):
        assert not is_prepared(node, lost)

    assert is_prepared(node, claim(node, "c", "30Gi"))


def test_cards_that_are_read_again_keep_the_sums_and_smaller_ones_do_not(
    node: Setup, decoded: list[str]
) -> None:
    assert is_prepared(node, claim(node, "a", "20Gi"))
    decoded.clear()

    node.catalog.refresh()
    assert is_prepared(node, claim(node, "b", "20Gi"))
    assert decoded == []
    node.discovery.inventory = simulated_inventory("2xA100-SXM4-40GB")
    node.catalog.refresh()
    refused = node.prepare(ref := claim(node, "c", "20Gi"))

    assert "in use, expected at most" in error_of(refused[ref.uid])
