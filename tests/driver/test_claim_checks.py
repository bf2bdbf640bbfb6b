"""How often recorded claims are looked up at the API server."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tests.support.confirming_node import GONE_SECONDS, delete_claim
from tests.support.confirming_node import ConfirmingNode as Node
from tests.support.prepared_node import error_of, put_claim, share_result

HOUR = 3600.0


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """A node that does not look its claims up for days, unless there is a reason."""
    setup = Node(tmp_path, check_seconds=1e6)
    yield setup
    setup.ledger.close()


def test_hundred_claims_are_fetched_once_in_six_hours_and_evenly_over_that_time(
    tmp_path: Path,
) -> None:
    node = Node(tmp_path, check_seconds=6 * HOUR)
    names = {str(node.prepare_new(f"c{number:03}")) for number in range(100)}
    recorded = node.ledger.claims()

    hours = [fetched_in_an_hour(node, recorded) for _ in range(28)]

    # Seven hours, because a claim waits for the round after its time.
    parts = [
        {name for hour in hours[start : start + 7] for name in hour} for start in (0, 7, 14, 21)
    ]
    assert parts == [names] * 4
    # 22 in an hour are expected, as some claims are fetched again after only three hours.
    assert max(map(len, hours)) <= 50
    node.ledger.close()


def fetched_in_an_hour(node: Node, recorded: Sequence[PreparedClaim]) -> list[str]:
    node.claims.fetched.clear()
    for _ in range(60):
        node.now += 60
        node.stale_claims.collect(recorded)
    return list(node.claims.fetched)


def test_refused_claim_has_all_others_fetched_within_the_next_rounds(node: Node) -> None:
    refs = [node.prepare_new(f"c{number:03}") for number in range(25)]
    assert node.run_round() == []

    node.stale_claims.check_soon()
    rounds = [node.run_round() for _ in range(3)]
    node.stale_claims.check_soon()
    again = node.run_round()

    assert [len(fetched) for fetched in rounds] == [10, 10, 5]
    assert sorted(name for fetched in rounds for name in fetched) == [str(ref) for ref in refs]
    assert again == []


def test_stale_claim_that_takes_the_room_of_another_is_released(node: Node) -> None:
    stale = put_claim(node, "stale", share_result(vram="60Gi"))
    node.prepare(stale)
    delete_claim(node.claims, stale)
    assert node.run_rounds_for(HOUR) == []
    waiting = put_claim(node, "waiting", share_result(vram="40Gi"))

    refused = node.prepare(waiting)[waiting.uid]
    node.run_rounds_for(GONE_SECONDS + 120)
    prepared = node.prepare(waiting)[waiting.uid]

    assert "40Gi plus 60Gi in use" in error_of(refused)
    assert isinstance(prepared, PreparedClaim)


def test_new_claims_are_not_fetched_soon(tmp_path: Path) -> None:
    node = Node(tmp_path, check_seconds=6 * HOUR)
    node.run_round()

    for number in range(8):
        node.prepare_new(f"new-{number}")

    assert node.run_rounds_for(3 * HOUR - 60) == []
    assert len({*node.run_rounds_for(3 * HOUR + 180)}) == 8
    node.ledger.close()


def test_claims_that_seem_gone_are_fetched_in_every_round(node: Node) -> None:
    refs = [node.prepare_new(f"c{number}") for number in range(4)]
    for ref in refs[:2]:
        delete_claim(node.claims, ref)
    node.run_round()
    node.stale_claims.check_soon()
    node.run_round()

    rounds = [sorted(node.run_round()) for _ in range(5)]

    assert rounds == [[str(ref) for ref in refs[:2]]] * 5


def test_rebuilt_claims_are_fetched_first(node: Node) -> None:
    refs = [node.prepare_new(f"c{number:03}") for number in range(100)]
    rebuilt = refs[80:]
    node.run_round()
    node.stale_claims.check_soon()
    node.stale_claims.check_first(ref.uid for ref in rebuilt)

    fetched = node.run_round()

    assert sorted(fetched[:20]) == [str(ref) for ref in rebuilt]
    assert len(fetched) == 30
    assert len(node.run_round()) == 10
