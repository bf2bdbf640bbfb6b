"""The ring of the last operations."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.operation import EndedOperation, OperationKind, Result, Stage
from tensorfusion_dra.driver.operations import Operations
from tensorfusion_dra.driver.recent_operations import MOST_KEPT, RecentOperations
from tests.support.prepared_node import Setup, put_claim, share_result

NOW = datetime(2026, 3, 1, tzinfo=UTC)


def ended(number: int) -> EndedOperation:
    return EndedOperation(
        kind=OperationKind.PREPARE,
        claim=ClaimRef(namespace="default", name=f"claim-{number}", uid=f"uid-{number}"),
        result=Result.SUCCESS,
        error="",
        entered=[(Stage.QUEUE, 1.0), (Stage.READ, 1.25)],
        ended=1.5,
        seconds_by_stage={Stage.QUEUE: 0.25, Stage.READ: 0.25},
    )


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Setup]:
    setup = Setup(tmp_path)
    yield setup
    setup.ledger.close()


def test_newest_operation_is_first_and_the_oldest_are_dropped() -> None:
    recent = RecentOperations(now=lambda: NOW)

    for number in range(MOST_KEPT + 5):
        recent.operation_ended(ended(number))

    found = recent.views()
    assert len(found) == MOST_KEPT
    assert [each.claim.name for each in (found[0], found[-1])] == [
        f"claim-{MOST_KEPT + 4}",
        "claim-5",
    ]
    assert found[0].seconds == 0.5
    assert found[0].last_stage is Stage.READ
    assert found[0].ended_at == NOW


def test_failed_prepare_of_a_node_is_kept_with_its_stage_and_error(node: Setup) -> None:
    recent = RecentOperations()
    node.operations = Operations((recent,))
    node.preparer = node.with_claims(node.claims)
    good = put_claim(node, "good", share_result(tflops="10", vram="1Gi"))
    refused = put_claim(node, "refused", share_result("gpu-unknown"))

    node.prepare(good, refused)
    node.unprepare(good)

    unprepare, failed, prepare = recent.views()
    assert (prepare.kind, prepare.result) == (OperationKind.PREPARE, Result.SUCCESS)
    assert prepare.seconds == pytest.approx(sum(prepare.stages.values()))
    assert (failed.claim, failed.result) == (refused, Result.CLAIM_ERROR)
    assert failed.last_stage is Stage.ADMIT
    assert "gpu-unknown" in failed.error
    assert (unprepare.kind, unprepare.result) == (OperationKind.UNPREPARE, Result.SUCCESS)
