"""Recovery of files and records, at the start and while the node runs."""

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.enforcer import Needs
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.core.observed import StoreView
from tensorfusion_dra.driver.publish import DeviceCatalog
from tensorfusion_dra.driver.recover import RecoveryReport, recover
from tensorfusion_dra.driver.status import StatusReporter
from tensorfusion_dra.enforcers.mps import Mps
from tensorfusion_dra.state.claim_store import ClaimStore
from tests.support.builders.devices import NODE
from tests.support.prepared_node import (
    GPU_0,
    GPU_1,
    Setup,
    put_claim,
    real_gpu,
    reconciling,
    share_result,
    simulated_inventory,
    spec_file,
)
from tests.support.waiting import PATIENCE_SECONDS, eventually


def recover_node(node: Setup) -> RecoveryReport:
    return recover(node.store, node.node_files, boot_id=node.boot_id)


def claim_files(node: Setup) -> dict[str, bytes]:
    """Return the content of all CDI specs and limits documents by file name."""
    return {
        path.name: path.read_bytes()
        for folder in (node.cdi_folder, node.limits_folder)
        for path in folder.iterdir()
    }


def test_missing_and_damaged_files_are_restored_byte_for_byte(setup: Setup) -> None:
    a, b = put_claim(setup, "a", share_result()), put_claim(setup, "b", share_result())
    setup.prepare(a, b)
    before = claim_files(setup)
    (setup.cdi_folder / spec_file(a.uid)).unlink()
    limits = setup.limits_folder / f"{b.uid}.json"
    limits.chmod(0o644)
    limits.write_bytes(before[limits.name][:20])

    found = recover_node(setup)

    assert (found.files_written, found.outdated) == (2, [])
    assert claim_files(setup) == before


class LateReader(ClaimStore):
    """Store of another instance, whose list of claims is that of its start."""

    def __init__(self, node: Setup) -> None:
        super().__init__(node.folder / "plugin", rules=node.rules)
        self._claims_at_start = super().claims()

    def claims(self) -> Sequence[PreparedClaim]:
        return self._claims_at_start


def test_files_follow_what_another_instance_prepared_and_unprepared_meanwhile(
    setup: Setup,
) -> None:
    gone, kept = put_claim(setup, "a", share_result()), put_claim(setup, "b", share_result())
    setup.prepare(gone)
    with closing(LateReader(setup)) as late:
        setup.unprepare(gone)
        setup.prepare(kept)
        before = claim_files(setup)

        found = recover(late, setup.node_files, boot_id=setup.boot_id)

    assert (len(found.claims), found.claims_removed, found.files_written) == (1, 0, 0)
    assert claim_files(setup) == before
    assert sorted(before) == sorted([spec_file(kept.uid), f"{kept.uid}.json"])


def test_files_without_a_record_are_removed_unless_they_name_a_claim_to_fetch(setup: Setup) -> None:
    ref = put_claim(setup, "a", share_result())
    setup.prepare(ref)
    with setup.store.transaction() as transaction:
        transaction.remove(ref.uid)
    (setup.cdi_folder / spec_file("uid-orphan")).write_text("{}")
    (setup.limits_folder / "uid-other.json").write_text('{"claim": {"uid": "uid-else"}}')
    (setup.limits_folder / "uid-more.json").write_text("[")

    found = recover_node(setup)

    assert found.unknown == [ref]
    assert found.claims_removed == 3
    assert sorted(claim_files(setup)) == sorted([spec_file(ref.uid), f"{ref.uid}.json"])


def test_failed_recovery_of_one_claim_does_not_stop_the_others(setup: Setup) -> None:
    a = put_claim(setup, "a", share_result())
    b = put_claim(setup, "b", share_result())
    setup.prepare(a, b)
    before = claim_files(setup)
    for ref in (a, b):
        (setup.cdi_folder / spec_file(ref.uid)).unlink()
    # Recovery would move an empty folder away.
    (setup.cdi_folder / spec_file(a.uid) / "full").mkdir(parents=True)

    found = recover_node(setup)

    assert list(found.reasons) == [a.uid]
    assert "Directory not empty" in found.reasons[a.uid]
    assert setup.spec_of(b) is not None
    assert before[spec_file(b.uid)] == (setup.cdi_folder / spec_file(b.uid)).read_bytes()


def reboot(setup: Setup, *, minors: tuple[int, int]) -> Setup:
    """Return a node on the same disk in another boot, with empty folders under /run."""
    for folder in (setup.cdi_folder, setup.limits_folder):
        for path in folder.iterdir():
            path.unlink()
    setup.boot_id = "boot-2"
    after = setup.restarted()
    set_minor_numbers(after, minors)
    return after


def set_minor_numbers(node: Setup, minors: tuple[int, int]) -> None:
    cards = zip(simulated_inventory().gpus, minors, strict=True)
    node.use_cards(*(real_gpu(card, minor=minor) for card, minor in cards))


@pytest.fixture
def prepared_ref(setup: Setup) -> ClaimRef:
    """Return a prepared claim on a real card, /dev/nvidia0."""
    set_minor_numbers(setup, (0, 1))
    ref = put_claim(setup, "a", share_result(GPU_0))
    setup.prepared(ref)
    return ref


def device_nodes_of(node: Setup, ref: ClaimRef) -> set[str]:
    spec = node.spec_of(ref)
    edits = [spec["containerEdits"], *(device["containerEdits"] for device in spec["devices"])]
    return {each["path"] for edit in edits for each in edit.get("deviceNodes", ())}


def test_after_a_reboot_no_spec_has_device_nodes_of_the_earlier_boot(
    setup: Setup, prepared_ref: ClaimRef
) -> None:
    after = reboot(setup, minors=(1, 0))

    found = recover_node(after)

    assert found.outdated == [prepared_ref]
    assert claim_files(after) == {}

    after.preparer.refresh(prepared_ref, deadline=time.monotonic() + PATIENCE_SECONDS)

    assert {"/dev/nvidia1"} <= device_nodes_of(after, prepared_ref)
    assert "/dev/nvidia0" not in device_nodes_of(after, prepared_ref)
    assert recover_node(after).outdated == []


def test_card_missing_after_a_reboot_is_not_given_by_its_old_minor_number(
    setup: Setup, prepared_ref: ClaimRef
) -> None:
    after = reboot(setup, minors=(1, 0))
    after.use_cards(simulated_inventory().gpus[1])

    assert f"{GPU_0}: the GPU is gone from the node" in after.refused(prepared_ref)
    assert claim_files(after) == {}


def test_refresh_of_an_unprepared_claim_does_nothing(setup: Setup, prepared_ref: ClaimRef) -> None:
    setup.unprepare(prepared_ref)

    setup.preparer.refresh(prepared_ref, deadline=time.monotonic() + PATIENCE_SECONDS)

    assert claim_files(setup) == {}
    assert setup.store.claims() == []


def test_recovery_continues_if_the_cdi_folder_cannot_be_written(setup: Setup) -> None:
    ref = put_claim(setup, "a", share_result())
    setup.prepare(ref)
    (setup.cdi_folder / spec_file(ref.uid)).unlink()
    setup.cdi_folder.rmdir()
    setup.cdi_folder.write_text("a file where the folder should be")

    recover(setup.store, setup.node_files, boot_id=setup.boot_id)

    with pytest.raises(RetryableError):
        setup.node_files.claim_uids()


class RecordingReporter(StatusReporter):
    """Reporter that only records the troubles of claims."""

    def __init__(self) -> None:
        super().__init__(claim_status=None)  # type: ignore[arg-type]
        self.reasons: list[tuple[str, str]] = []

    def report(self, claim: PreparedClaim, *, reason: str = "") -> None:
        self.reasons.append((claim.ref.name, reason))


class MpsOfAnotherRelease(Mps):
    """MPS for claims with several cards, which this release refuses."""

    def needs(self, claim: PreparedClaim) -> Needs:
        return Needs()


def use_mps(node: Setup, *, several_cards: bool) -> Setup:
    """Let the node use MPS for new claims, with or without claims for several cards."""
    node.enforcers["mps"] = MpsOfAnotherRelease() if several_cards else Mps()
    node.use(enforcer=node.enforcers["mps"], status=RecordingReporter())
    return node


def restarted_with_mps(node: Setup, *, several_cards: bool) -> Setup:
    return use_mps(node.restarted(), several_cards=several_cards)


@pytest.fixture
def node(tmp_path: Path) -> Setup:
    """A node with two claims under MPS: `two` with two cards and `one` with one."""
    setup = use_mps(Setup(tmp_path), several_cards=True)
    setup.prepared(put_claim(setup, "two", share_result(GPU_0), share_result(GPU_1)))
    setup.prepared(put_claim(setup, "one", share_result(GPU_0, tflops="1")))
    return setup


def ref_of(node: Setup, name: str) -> ClaimRef:
    return next(claim.ref for claim in node.store.claims() if claim.ref.name == name)


def with_record_of_a_later_release(node: Setup) -> Setup:
    """Restart the node with a record of `two` that names an unknown enforcer."""
    record = node.record(ref_of(node, "two"))
    assert record is not None
    with node.store.transaction() as transaction:
        transaction.put(replace(record, enforcer="of-a-later-release"))
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

    found = recover(after.store, after.node_files, boot_id=after.boot_id)

    assert list(found.reasons) == [two.uid]
    assert found.reasons[two.uid].startswith("claim default/two: ")
    assert text in found.reasons[two.uid]
    assert [record.ref for record in found.unenforceable] == [two]
    assert after.spec_of(one) is not None
    assert after.spec_of(two) == before


@CHANGES
def test_unenforceable_claim_cannot_be_prepared_but_can_be_unprepared(
    node: Setup, change: Callable[[Setup], Setup], text: str
) -> None:
    after = change(node)
    one, two = ref_of(after, "one"), ref_of(after, "two")

    assert text in after.refused(two)
    after.prepared(one)
    assert after.unprepare(two) == {two.uid: None}
    assert after.spec_of(two) is None
    assert [claim.ref for claim in after.store.claims()] == [one]


@CHANGES
def test_unenforceable_claim_is_refreshed_and_reported_after_a_reboot(
    node: Setup, change: Callable[[Setup], Setup], text: str
) -> None:
    after = change(node)
    with after.store.transaction() as transaction:
        for claim in transaction.claims():
            transaction.put(replace(claim, boot_id="boot-0"))

    with reconciling(after), capture_logs() as logs:
        assert eventually(lambda: len(reported_reasons(after)) > 0)

    assert [name for name, _ in reported_reasons(after)] == ["two"] * len(reported_reasons(after))
    assert text in reported_reasons(after)[0][1]
    assert [line["event"] for line in logs].count("claim_recovery_failed") == 1
    assert {claim.boot_id for claim in after.store.claims()} == {"boot-1"}


def reported_reasons(node: Setup) -> list[tuple[str, str]]:
    assert isinstance(node.status, RecordingReporter)
    return node.status.reasons


def test_reason_is_reported_while_it_lasts_logged_once_and_then_withdrawn(
    node: Setup,
) -> None:
    after = without_several_cards(node)

    with capture_logs() as logs, reconciling(after):
        assert eventually(lambda: len(reported_reasons(after)) > 3)
        after.enforcers["mps"] = MpsOfAnotherRelease()
        assert eventually(lambda: reported_reasons(after)[-1] == ("two", ""))
        reports = len(reported_reasons(after))
        time.sleep(0.2)

    assert len(reported_reasons(after)) == reports
    assert [line["event"] for line in logs].count("claim_recovery_failed") == 1


def test_spec_that_vanishes_is_written_again(setup: Setup) -> None:
    ref = put_claim(setup, "a", share_result())
    setup.prepare(ref)
    spec = setup.spec_of(ref)

    with reconciling(setup) as reconciler:
        (setup.cdi_folder / spec_file(ref.uid)).unlink()

        assert eventually(lambda: setup.spec_of(ref) == spec)

    assert reconciler.view() == StoreView()


def test_start_and_loop_do_not_fetch_claims_at_once(setup: Setup) -> None:
    setup.prepare(put_claim(setup, "a", share_result()))
    setup.claims.fetched.clear()
    setup.claims.away = True

    with reconciling(setup, seconds=60):
        time.sleep(0.1)

    assert setup.claims.fetched == []


def test_specs_are_rebuilt_after_a_reboot_once_the_cards_are_known(
    setup: Setup, prepared_ref: ClaimRef
) -> None:
    spec = setup.spec_of(prepared_ref)
    after = reboot(setup, minors=(0, 1))
    cards, after.discovery.inventory = after.discovery.inventory, None
    assert cards is not None
    after.use(catalog=DeviceCatalog(after.discovery, NODE))

    with reconciling(after, seconds=60), capture_logs() as logs:
        assert eventually(lambda: "claim_refresh_failed" in [line["event"] for line in logs])
        assert after.spec_of(prepared_ref) is None
        after.use_cards(*cards.gpus)
        assert eventually(lambda: after.spec_of(prepared_ref) == spec)

    assert [claim.boot_id for claim in after.store.claims()] == ["boot-2"]
