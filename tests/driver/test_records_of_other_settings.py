"""Records that the settings or the release of today cannot enforce cost their own claims only."""

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
from tensorfusion_dra.driver.reconciler import Reconciler
from tensorfusion_dra.driver.recover import recover
from tensorfusion_dra.driver.stale_claims import StaleClaimCollector
from tensorfusion_dra.driver.status import StatusReporter
from tests.support.ports import EventsInMemory, Readiness
from tests.support.prepared_node import GPU_0, GPU_1, Setup, error_of, put, share, spec_file
from tests.support.waiting import PATIENCE_SECONDS, eventually


class Shown(StatusReporter):
    """Takes down what is shown at claims."""

    def __init__(self) -> None:
        super().__init__(claim_status=None)  # type: ignore[arg-type]
        self.troubles: list[tuple[str, str]] = []

    def report(self, claim: PreparedClaim, *, trouble: str | None = None) -> None:
        if trouble is not None:
            self.troubles.append((claim.ref.name, trouble))


def with_mps(node: Setup, *, several_cards: bool) -> Setup:
    """The node with MPS for new claims, and today's word on claims for several cards."""
    node.enforcer = node.enforcers["mps"] = Mps(several_cards=several_cards)
    node.status = Shown()
    node.preparer = node.with_claims(node.claims)
    return node


def after_a_restart(node: Setup, *, several_cards: bool) -> Setup:
    return with_mps(node.restarted(), several_cards=several_cards)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Setup]:
    """Prepared are "two" with two cards under MPS, and "one" with one."""
    setup = with_mps(Setup(tmp_path), several_cards=True)
    prepared(setup, put(setup, "two", share(GPU_0), share(GPU_1)))
    prepared(setup, put(setup, "one", share(GPU_0, tflops="1")))
    yield setup
    setup.ledger.close()


def prepared(node: Setup, ref: ClaimRef) -> PreparedClaim:
    outcome = node.prepare(ref)[ref.uid]
    assert isinstance(outcome, PreparedClaim), outcome
    return outcome


def ref_of(node: Setup, name: str) -> ClaimRef:
    return next(claim.ref for claim in node.ledger.claims() if claim.ref.name == name)


def of_a_later_release(node: Setup) -> Setup:
    """The record of "two" names an enforcer that this release does not have."""
    record = node.ledger.get(ref_of(node, "two").uid)
    assert record is not None
    with node.ledger.transaction() as step:
        step.put(replace(record, enforcer="of-a-later-release"))
    return after_a_restart(node, several_cards=True)


def without_several_cards(node: Setup) -> Setup:
    return after_a_restart(node, several_cards=False)


CHANGES = pytest.mark.parametrize(
    ("change", "text"),
    [
        (without_several_cards, "found 2 cards, expected one"),
        (of_a_later_release, "found the enforcer 'of-a-later-release', expected one of"),
    ],
)


@CHANGES
def test_a_start_and_every_look_after_it_go_on_and_put_the_others_right(
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
def test_such_a_claim_gets_no_answer_and_can_be_unprepared(
    node: Setup, change: Callable[[Setup], Setup], text: str
) -> None:
    after = change(node)
    one, two = ref_of(after, "one"), ref_of(after, "two")

    assert text in error_of(after.prepare(two)[two.uid])
    prepared(after, one)
    assert after.unprepare(two) == {two.uid: None}
    assert after.spec_of(two) is None
    assert [claim.ref for claim in after.ledger.claims()] == [one]
    after.ledger.close()


@CHANGES
def test_other_claims_come_and_go_on_its_cards_and_it_keeps_its_share(
    node: Setup, change: Callable[[Setup], Setup], text: str
) -> None:
    after = change(node)
    kept = after.ledger.get(ref_of(after, "two").uid)
    assert text

    after.unprepare(ref_of(after, "one"))
    prepared(after, put(after, "new", share(GPU_0, tflops="212", vram="64Gi")))
    more = put(after, "more", share(GPU_0, tflops="1", vram="1Mi"))

    assert "in use, expected at most" in error_of(after.prepare(more)[more.uid])
    assert after.division().divide() == ()
    assert after.ledger.get(ref_of(after, "two").uid) == kept
    after.ledger.close()


@CHANGES
def test_after_a_reboot_it_is_refreshed_and_told_like_any_other(
    node: Setup, change: Callable[[Setup], Setup], text: str
) -> None:
    after = change(node)
    with after.ledger.transaction() as step:
        for claim in step.claims_on([GPU_0, GPU_1]):
            step.put(replace(claim, boot_id="boot-0"))

    with kept_up(after), capture_logs() as logs:
        assert eventually(lambda: len(shown(after)) > 0)

    assert [name for name, _ in shown(after)] == ["two"] * len(shown(after))
    assert text in shown(after)[0][1]
    assert [line["event"] for line in logs].count("claim_recovery_failed") == 1
    assert {claim.boot_id for claim in after.ledger.claims()} == {"boot-1"}
    after.ledger.close()


def shown(node: Setup) -> list[tuple[str, str]]:
    assert isinstance(node.status, Shown)
    return node.status.troubles


@contextmanager
def kept_up(node: Setup) -> Iterator[None]:
    """Run reconciler inside the block."""
    reconciler = Reconciler(node.ledger, node.projection, boot_id=node.boot_id, seconds=0.05)
    stale_claims = StaleClaimCollector(node.claims, Readiness(), node.preparer, gone_seconds=600)
    thread = Thread(target=reconciler.run, args=(node.preparer, stale_claims, EventsInMemory()))
    reconciler.begin()
    thread.start()
    try:
        yield
    finally:
        reconciler.stop()
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()


def test_why_is_shown_at_the_claim_and_logged_once_and_taken_back_when_it_is_over(
    node: Setup,
) -> None:
    after = without_several_cards(node)

    with capture_logs() as logs, kept_up(after):
        assert eventually(lambda: len(shown(after)) > 3)
        after.enforcers["mps"] = Mps(several_cards=True)
        assert eventually(lambda: shown(after)[-1] == ("two", ""))
        told = len(shown(after))
        time.sleep(0.2)

    assert len(shown(after)) == told
    assert [line["event"] for line in logs].count("claim_recovery_failed") == 1
    after.ledger.close()
