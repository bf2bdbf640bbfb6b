"""A claim that cannot be read costs no other claim its turn."""

from contextlib import suppress
from pathlib import Path
from typing import Any

from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.errors import RetryableError
from tests.support.confirming_node import ConfirmingNode, deleted
from tests.support.ports import ClaimsInMemory


class Unreadable(ClaimsInMemory):
    """Claims of which some give no answer that can be read."""

    def __init__(self) -> None:
        super().__init__()
        self.unreadable: set[str] = set()

    def fetch(self, ref: ClaimRef, *, wait_seconds: float) -> Any:
        found = super().fetch(ref, wait_seconds=wait_seconds)
        if ref.name in self.unreadable:
            raise RetryableError(f"claim {ref}: found no JSON")
        return found


def unreadable(folder: Path, *names: str) -> ConfirmingNode:
    claims = Unreadable()
    node = ConfirmingNode(folder, claims)
    for name in ("a", "b", *names):
        node.prepared(name)
    claims.unreadable = {*names}
    return node


def test_a_claim_that_cannot_be_read_keeps_no_other_from_being_freed(tmp_path: Path) -> None:
    node = unreadable(tmp_path, "unreadable-1", "unreadable-2")
    refs = {claim.ref.name: claim.ref for claim in node.ledger.claims()}
    deleted(node.claims, refs["b"])
    node.stale_claims.ask_first([refs["unreadable-1"].uid, refs["unreadable-2"].uid])

    for _ in range(30):
        with suppress(RetryableError):
            node.look()

    assert node.held() == ["a", "unreadable-1", "unreadable-2"]
    node.ledger.close()


def test_a_round_ends_when_several_claims_cannot_be_read_and_all_get_their_turn(
    tmp_path: Path,
) -> None:
    names = [f"unreadable-{number}" for number in range(8)]
    node = unreadable(tmp_path, *names)
    asked: list[str] = []

    for _ in range(15):
        with suppress(RetryableError):
            node.look()
        failed = [name for name in node.claims.fetched if "unreadable" in name]
        assert len(failed) <= 3
        asked += node.claims.fetched

    assert {f"default/{name}" for name in ("a", "b", *names)} == {*asked}
    node.ledger.close()


def test_a_claim_that_is_no_claim_keeps_no_other_from_being_freed(tmp_path: Path) -> None:
    node = ConfirmingNode(tmp_path)
    broken, gone = node.prepared("a"), node.prepared("b")
    node.claims.stored[str(broken)] = {"metadata": {"uid": broken.uid}, "status": "allocated"}
    deleted(node.claims, gone)

    for _ in range(20):
        with suppress(RetryableError):
            node.look()

    assert node.held() == ["a"]
    node.ledger.close()
