"""Checks of claims at the API server when some of them cannot be read."""

from contextlib import suppress
from pathlib import Path
from typing import Any

from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.errors import RetryableError
from tests.support.confirming_node import ConfirmingNode, delete_claim
from tests.support.ports import ClaimsInMemory


class PartlyUnreadableClaims(ClaimsInMemory):
    """Claims of which some are answered with invalid JSON."""

    def __init__(self) -> None:
        super().__init__()
        self.unreadable: set[str] = set()

    def fetch(self, ref: ClaimRef, *, wait_seconds: float) -> Any:
        found = super().fetch(ref, wait_seconds=wait_seconds)
        if ref.name in self.unreadable:
            raise RetryableError(f"claim {ref}: found no JSON")
        return found


def node_with_unreadable_claims(folder: Path, *names: str) -> ConfirmingNode:
    claims = PartlyUnreadableClaims()
    node = ConfirmingNode(folder, claims)
    for name in ("a", "b", *names):
        node.prepare_new(name)
    claims.unreadable = {*names}
    return node


def test_unreadable_claims_do_not_prevent_the_release_of_others(tmp_path: Path) -> None:
    node = node_with_unreadable_claims(tmp_path, "unreadable-1", "unreadable-2")
    refs = {claim.ref.name: claim.ref for claim in node.ledger.claims()}
    delete_claim(node.claims, refs["b"])
    node.stale_claims.check_first([refs["unreadable-1"].uid, refs["unreadable-2"].uid])

    for _ in range(30):
        with suppress(RetryableError):
            node.run_round()

    assert node.recorded_names() == ["a", "unreadable-1", "unreadable-2"]
    node.ledger.close()


def test_round_ends_after_several_unreadable_claims_and_later_rounds_fetch_the_rest(
    tmp_path: Path,
) -> None:
    names = [f"unreadable-{number}" for number in range(8)]
    node = node_with_unreadable_claims(tmp_path, *names)
    fetched: list[str] = []

    for _ in range(15):
        with suppress(RetryableError):
            node.run_round()
        failed = [name for name in node.claims.fetched if "unreadable" in name]
        assert len(failed) <= 3
        fetched += node.claims.fetched

    assert {f"default/{name}" for name in ("a", "b", *names)} == {*fetched}
    node.ledger.close()


def test_malformed_claim_does_not_prevent_the_release_of_others(tmp_path: Path) -> None:
    node = ConfirmingNode(tmp_path)
    broken, gone = node.prepare_new("a"), node.prepare_new("b")
    node.claims.stored[str(broken)] = {"metadata": {"uid": broken.uid}, "status": "allocated"}
    delete_claim(node.claims, gone)

    for _ in range(20):
        with suppress(RetryableError):
            node.run_round()

    assert node.recorded_names() == ["a"]
    node.ledger.close()
