"""Records that the current settings or release cannot enforce: only their own claims fail."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest
from structlog.testing import capture_logs

from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.enforcers.mps import Mps
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.driver.recover import Reconciler, recover
from tensorfusion_dra.driver.stale_claims import StaleClaimCollector
from tensorfusion_dra.driver.status import StatusReporter
from tests.support.ports import EventsInMemory, Readiness
from tests.support.prepared_node import (
    GPU_0,
    GPU_1,
    Setup,
    error_of,
    put_claim,
    share_result,
    spec_file,
)
from tests.support.waiting import PATIENCE_SECONDS, eventually


class RecordingReporter(StatusReporter):
    """Reporter that only records the troubles of claims."""

    def __init__(self) -> None:
        super().__init__(claim_status=None)  # type: ignore[arg-type]
        self.troubles: list[tuple[str, str]] = []

    def report(self, claim: PreparedClaim, *, trouble: str = "") -> None:
        self.troubles.append((claim.ref.name, trouble))


def use_mps(node: Setup, *, several_cards: bool) -> Setup:
    """Let the node use MPS for new claims, with or without claims for several cards."""
    node.enforcer = node.enforcers["mps"] = Mps(several_cards=several_cards)
    node.status = RecordingReporter()
    node.preparer = node.with_claims(node.claims)
    return node


def restarted_with_mps(node: Setup, *, several_cards: bool) -> Setup:
    return use_mps(node.restarted(), several_cards=several_cards)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Setup]:
    """A node with two claims under MPS: `two` with two cards and `one` with one."""
    setup = use_mps(Setup(tmp_path), several_cards=True)
    prepare_claim(setup, put_claim(setup, "two", share_result(GPU_0), share_result(GPU_1)))
    prepare_claim(setup, put_claim(setup, "one", share_result(GPU_0, tflops="1")))
    yield setup
    setup.ledger.close()


def prepare_claim(node: Setup, ref: ClaimRef) -> PreparedClaim:
    outcome = node.prepare(ref)[ref.uid]
    assert isinstance(outcome, PreparedClaim), outcome
    return outcome


def ref_of(node: Setup, name: str) -> ClaimRef:
    return next(claim.ref for claim in node.ledger.claims() if claim.ref.name == name)


def with_record_of_a_later_release(node: Setup) -> Setup:
    """Restart the node with a record of `two` that names an unknown enforcer."""
    record = node.ledger.get(ref_of(node, "two").uid)
    assert record is not None
    with node.ledger.transaction() as step:
        step.put(replace(record, enforcer="of-a-later-release"))
    return restarted_with_mps(node, several_cards=True)


def without_several_cards(node: Setup) -> Setup:
    return restarted_with_mps(node, several_cards=False)


CHANGES = pytest.mark.parametrize(
    ("change", "text"),
    [
        (without_several_cards, "found 2 cards, expected one"),
        (
            with_record_of_a_later_release,
            "found the enforcer 'of-a-later-release', expected one of",
        ),
    ],
)


@CHANGES
def test_recovery_skips_the_unenforceable_claim_and_repairs_the_others(
    node: Setup, change: Callable[[Setup], Setup], text: str
) -> None:
    after = change(node)
    one, two = ref_of(after, "one"), ref_of(after, "two")
    before = after.spec_of(two)
    (after.cdi_folder / spec_file(one.uid)).unlink()

    found = recover(after.ledger, after.projection, boot_id=after.boot_id)

    assert list(found.troubles) == [two.uid]
    assert found.troubles[two.uid].startswith("claim default/two: ")
    assert text in found.troubles[two.uid]
    assert [record.ref for record in found.unenforceable] == [two]
    assert after.spec_of(one) is not None
    assert after.spec_of(two) == before
    after.ledger.close()


@CHANGES
def test_unenforceable_claim_cannot_be_prepared_but_can_be_unprepared(
    node: Setup, change: Callable[[Setup], Setup], text: str
) -> None:
    after = change(node)
    one, two = ref_of(after, "one"), ref_of(after, "two")

    assert text in error_of(after.prepare(two)[two.uid])
    prepare_claim(after, one)
    assert after.unprepare(two) == {two.uid: None}
    assert after.spec_of(two) is None
    assert [claim.ref for claim in after.ledger.claims()] == [one]
    after.ledger.close()


@CHANGES
def test_unenforceable_claim_is_refreshed_and_reported_after_a_reboot(
    node: Setup, change: Callable[[Setup], Setup], text: str
) -> None:
    after = change(node)
    with after.ledger.transaction() as step:
        for claim in step.claims_on([GPU_0, GPU_1]):
            step.put(replace(claim, boot_id="boot-0"))

    with reconciling(after), capture_logs() as logs:
        assert eventually(lambda: len(reported_troubles(after)) > 0)

    assert [name for name, _ in reported_troubles(after)] == ["two"] * len(reported_troubles(after))
    assert text in reported_troubles(after)[0][1]
    assert [line["event"] for line in logs].count("claim_recovery_failed") == 1
    assert {claim.boot_id for claim in after.ledger.claims()} == {"boot-1"}
    after.ledger.close()


def reported_troubles(node: Setup) -> list[tuple[str, str]]:
    assert isinstance(node.status, RecordingReporter)
    return node.status.troubles


@contextmanager
def reconciling(node: Setup) -> Iterator[None]:
    """Run the reconciler during the block."""
    reconciler = Reconciler(node.ledger, node.projection, boot_id=node.boot_id, seconds=0.05)
    stale_claims = StaleClaimCollector(
        node.claims, Readiness(), node.preparer, gone_seconds=600, check_seconds=600
    )
    thread = Thread(
        target=reconciler.run,
        args=(node.preparer, stale_claims, EventsInMemory()),
        kwargs={"on_recovered": [].append},
    )
    reconciler.begin()
    thread.start()
    try:
        yield
    finally:
        reconciler.stop()
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()


def test_reason_is_reported_while_it_lasts_logged_once_and_then_withdrawn(
    node: Setup,
) -> None:
    after = without_several_cards(node)

    with capture_logs() as logs, reconciling(after):
        assert eventually(lambda: len(reported_troubles(after)) > 3)
        after.enforcers["mps"] = Mps(several_cards=True)
        assert eventually(lambda: reported_troubles(after)[-1] == ("two", ""))
        reports = len(reported_troubles(after))
        time.sleep(0.2)

    assert len(reported_troubles(after)) == reports
    assert [line["event"] for line in logs].count("claim_recovery_failed") == 1
    after.ledger.close()
