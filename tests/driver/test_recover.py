"""Files are made to follow from the records: after crashes, beside other instances, after boots."""

import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.devices.gpu import Inventory
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.driver.recover import RecoveryReport, recover
from tensorfusion_dra.state.ledger import Ledger
from tests.support.prepared_node import (
    GPU_0,
    Setup,
    error_of,
    inventory,
    put,
    real,
    share,
    spec_file,
)
from tests.support.waiting import PATIENCE_SECONDS


def recovered(node: Setup) -> RecoveryReport:
    return recover(node.ledger, node.projection, boot_id=node.boot_id)


def files(node: Setup) -> dict[str, bytes]:
    """Everything that others see of claims."""
    return {
        path.name: path.read_bytes()
        for folder in (node.cdi_folder, node.limits_folder)
        for path in folder.iterdir()
    }


def damaged_ledger(node: Setup) -> Setup:
    node.ledger.close()
    (node.folder / "plugin" / "ledger.sqlite3").write_bytes(b"garbage")
    return Setup(node.folder, node.claims, boot_id=node.boot_id)


def test_a_look_at_sound_files_writes_nothing(setup: Setup) -> None:
    setup.prepare(put(setup, "a", share()), put(setup, "b", share()))

    found = recovered(setup)

    assert len(found.claims) == 2
    assert (found.files_written, found.claims_removed, found.troubles) == (0, 0, {})


def test_missing_and_damaged_files_are_byte_for_byte_what_they_were(setup: Setup) -> None:
    a, b = put(setup, "a", share()), put(setup, "b", share())
    setup.prepare(a, b)
    before = files(setup)
    (setup.cdi_folder / spec_file(a.uid)).unlink()
    limits = setup.limits_folder / f"{b.uid}.json"
    limits.chmod(0o644)
    limits.write_bytes(before[limits.name][:20])

    found = recovered(setup)

    assert found.files_written == 2
    assert files(setup) == before


def test_after_a_damaged_ledger_every_file_stays_as_it_was(setup: Setup) -> None:
    setup.prepare(*(put(setup, f"c{n}", share(tflops="10", vram="1Gi")) for n in range(5)))
    before = files(setup)
    setup.claims.away = True

    after = damaged_ledger(setup)
    found = recovered(after)

    assert len(found.claims) == 5
    assert found.files_written == found.claims_removed == 0
    assert files(after) == before
    after.ledger.close()


def test_after_a_damaged_ledger_no_share_is_given_twice(setup: Setup) -> None:
    held = put(setup, "held", share(tflops="300"))
    setup.prepare(held)
    after = damaged_ledger(setup)
    recovered(after)

    more = put(after, "more", share(tflops="300"))

    assert "found 300 plus 300 in use, expected at most 312" in error_of(
        after.prepare(more)[more.uid]
    )
    after.ledger.close()


class LateReader(Ledger):
    """Another instance's ledger, whose list of claims is older than what the others do."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._seen = super().claims()

    def claims(self) -> Sequence[PreparedClaim]:
        return self._seen


def test_a_file_of_a_claim_that_another_instance_prepares_is_no_orphan(setup: Setup) -> None:
    with closing(LateReader(setup.folder / "plugin")) as late:
        ref = put(setup, "a", share())
        setup.prepare(ref)
        before = files(setup)

        found = recover(late, setup.projection, boot_id=setup.boot_id)

    assert (found.claims, found.claims_removed) == ([], 0)
    assert files(setup) == before != {}


def test_a_claim_that_another_instance_unprepares_leaves_nothing(setup: Setup) -> None:
    ref = put(setup, "a", share())
    setup.prepare(ref)
    with closing(LateReader(setup.folder / "plugin")) as late:
        setup.unprepare(ref)

        found = recover(late, setup.projection, boot_id=setup.boot_id)

    assert (len(found.claims), found.files_written) == (1, 0)
    assert files(setup) == {}


def test_files_without_a_record_go_unless_they_name_a_claim_to_ask_for(setup: Setup) -> None:
    ref = put(setup, "a", share())
    setup.prepare(ref)
    with setup.ledger.transaction() as step:
        step.remove(ref.uid)
    (setup.cdi_folder / spec_file("uid-orphan")).write_text("{}")
    (setup.limits_folder / "uid-other.json").write_text('{"claim": {"uid": "uid-else"}}')
    (setup.limits_folder / "uid-more.json").write_text("[")

    found = recovered(setup)

    assert found.unknown == [ref]
    assert found.claims_removed == 3
    assert sorted(files(setup)) == sorted([spec_file(ref.uid), f"{ref.uid}.json"])


def test_what_a_crash_left_of_a_write_is_removed(setup: Setup) -> None:
    setup.prepare(put(setup, "a", share()))
    left = setup.cdi_folder / f".{spec_file('uid-b')}.x1y2z3a4.tmp"
    left.touch()

    recovered(setup)

    assert not left.exists()


def test_one_claim_that_cannot_be_put_right_costs_no_other(setup: Setup) -> None:
    a = put(setup, "a", share())
    b = put(setup, "b", share())
    setup.prepare(a, b)
    before = files(setup)
    for ref in (a, b):
        (setup.cdi_folder / spec_file(ref.uid)).unlink()
    # An empty folder would be moved out of the way.
    (setup.cdi_folder / spec_file(a.uid) / "full").mkdir(parents=True)

    found = recovered(setup)

    assert list(found.troubles) == [a.uid]
    assert "Directory not empty" in found.troubles[a.uid]
    assert setup.spec_of(b) is not None
    assert before[spec_file(b.uid)] == (setup.cdi_folder / spec_file(b.uid)).read_bytes()


def rebooted(setup: Setup, *, minors: tuple[int, int]) -> Setup:
    """The same disk in another boot, with empty folders under /run."""
    setup.ledger.close()
    for folder in (setup.cdi_folder, setup.limits_folder):
        for path in folder.iterdir():
            path.unlink()
    after = Setup(setup.folder, setup.claims, boot_id="boot-2")
    with_minors(after, minors)
    return after


def with_minors(node: Setup, minors: tuple[int, int]) -> None:
    cards = [real(card, minor=m) for card, m in zip(inventory().gpus, minors, strict=True)]
    node.discovery.inventory = Inventory(gpus=tuple(cards))
    node.catalog.refresh()


@pytest.fixture
def prepared_ref(setup: Setup) -> ClaimRef:
    """A claim on a real card, /dev/nvidia0."""
    with_minors(setup, (0, 1))
    ref = put(setup, "a", share(GPU_0))
    assert isinstance(setup.prepare(ref)[ref.uid], PreparedClaim)
    return ref


def nodes_of(node: Setup, ref: ClaimRef) -> set[str]:
    spec = node.spec_of(ref)
    edits = [spec["containerEdits"], *(device["containerEdits"] for device in spec["devices"])]
    return {each["path"] for edit in edits for each in edit.get("deviceNodes", ())}


def test_a_restart_in_the_same_boot_needs_no_cards(setup: Setup, prepared_ref: ClaimRef) -> None:
    before = files(setup)
    after = setup.restarted()
    (after.cdi_folder / spec_file(prepared_ref.uid)).unlink()

    found = recovered(after)

    assert found.outdated == []
    assert files(after) == before
    after.ledger.close()


def test_after_a_reboot_no_spec_is_written_by_yesterdays_nodes(
    setup: Setup, prepared_ref: ClaimRef
) -> None:
    after = rebooted(setup, minors=(1, 0))

    found = recovered(after)

    assert found.outdated == [prepared_ref]
    assert files(after) == {}

    after.preparer.refresh(prepared_ref, deadline=time.monotonic() + PATIENCE_SECONDS)

    assert {"/dev/nvidia1"} <= nodes_of(after, prepared_ref)
    assert "/dev/nvidia0" not in nodes_of(after, prepared_ref)
    assert recovered(after).outdated == []
    after.ledger.close()


def test_a_refresh_that_was_interrupted_is_done_again(setup: Setup, prepared_ref: ClaimRef) -> None:
    after = rebooted(setup, minors=(1, 0))
    after.device_nodes.missing.add(1)

    with pytest.raises(RetryableError, match="nvidia1"):
        after.preparer.refresh(prepared_ref, deadline=time.monotonic() + PATIENCE_SECONDS)

    assert recovered(after).outdated == [prepared_ref]
    after.ledger.close()


def test_a_card_that_a_reboot_took_away_is_not_given_by_its_old_number(
    setup: Setup, prepared_ref: ClaimRef
) -> None:
    after = rebooted(setup, minors=(1, 0))
    inventory_left = after.discovery.inventory
    assert inventory_left is not None
    after.discovery.inventory = Inventory(gpus=inventory_left.gpus[1:])
    after.catalog.refresh()

    outcome = after.prepare(prepared_ref)[prepared_ref.uid]

    assert f"{GPU_0}: the GPU is gone from the node" in error_of(outcome)
    assert files(after) == {}
    after.ledger.close()


def test_refreshing_a_claim_that_is_unprepared_by_now_does_nothing(
    setup: Setup, prepared_ref: ClaimRef
) -> None:
    setup.unprepare(prepared_ref)

    setup.preparer.refresh(prepared_ref, deadline=time.monotonic() + PATIENCE_SECONDS)

    assert files(setup) == {}
    assert setup.ledger.claims() == []
