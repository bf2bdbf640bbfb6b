"""Recovery of files from the ledger: after crashes, beside other instances, after reboots."""

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
    put_claim,
    real_gpu,
    share_result,
    simulated_inventory,
    spec_file,
)
from tests.support.waiting import PATIENCE_SECONDS


def recover_node(node: Setup) -> RecoveryReport:
    return recover(node.ledger, node.projection, boot_id=node.boot_id)


def claim_files(node: Setup) -> dict[str, bytes]:
    """Return the content of all CDI specs and limits documents by file name."""
    return {
        path.name: path.read_bytes()
        for folder in (node.cdi_folder, node.limits_folder)
        for path in folder.iterdir()
    }


def restarted_with_damaged_ledger(node: Setup) -> Setup:
    node.ledger.close()
    (node.folder / "plugin" / "ledger.sqlite3").write_bytes(b"garbage")
    return Setup(node.folder, node.claims, boot_id=node.boot_id)


def test_missing_and_damaged_files_are_restored_byte_for_byte(setup: Setup) -> None:
    a, b = put_claim(setup, "a", share_result()), put_claim(setup, "b", share_result())
    setup.prepare(a, b)
    before = claim_files(setup)
    (setup.cdi_folder / spec_file(a.uid)).unlink()
    limits = setup.limits_folder / f"{b.uid}.json"
    limits.chmod(0o644)
    limits.write_bytes(before[limits.name][:20])

    found = recover_node(setup)

    assert found.files_written == 2
    assert claim_files(setup) == before


def test_no_share_is_given_twice_after_a_damaged_ledger(setup: Setup) -> None:
    first = put_claim(setup, "held", share_result(tflops="300"))
    setup.prepare(first)
    after = restarted_with_damaged_ledger(setup)
    recover_node(after)

    second = put_claim(after, "more", share_result(tflops="300"))

    assert "found 300 plus 300 in use, expected at most 312" in error_of(
        after.prepare(second)[second.uid]
    )
    after.ledger.close()


class LateReader(Ledger):
    """Ledger of another instance, whose list of claims is that of its start."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._claims_at_start = super().claims()

    def claims(self) -> Sequence[PreparedClaim]:
        return self._claims_at_start


def test_file_of_a_claim_prepared_by_another_instance_is_kept(setup: Setup) -> None:
    with closing(LateReader(setup.folder / "plugin")) as late:
        ref = put_claim(setup, "a", share_result())
        setup.prepare(ref)
        before = claim_files(setup)

        found = recover(late, setup.projection, boot_id=setup.boot_id)

    assert (found.claims, found.claims_removed) == ([], 0)
    assert claim_files(setup) == before != {}


def test_claim_unprepared_by_another_instance_leaves_no_files(setup: Setup) -> None:
    ref = put_claim(setup, "a", share_result())
    setup.prepare(ref)
    with closing(LateReader(setup.folder / "plugin")) as late:
        setup.unprepare(ref)

        found = recover(late, setup.projection, boot_id=setup.boot_id)

    assert (len(found.claims), found.files_written) == (1, 0)
    assert claim_files(setup) == {}


def test_files_without_a_record_are_removed_unless_they_name_a_claim_to_fetch(setup: Setup) -> None:
    ref = put_claim(setup, "a", share_result())
    setup.prepare(ref)
    with setup.ledger.transaction() as step:
        step.remove(ref.uid)
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

    assert list(found.troubles) == [a.uid]
    assert "Directory not empty" in found.troubles[a.uid]
    assert setup.spec_of(b) is not None
    assert before[spec_file(b.uid)] == (setup.cdi_folder / spec_file(b.uid)).read_bytes()


def reboot(setup: Setup, *, minors: tuple[int, int]) -> Setup:
    """Return a node on the same disk in another boot, with empty folders under /run."""
    setup.ledger.close()
    for folder in (setup.cdi_folder, setup.limits_folder):
        for path in folder.iterdir():
            path.unlink()
    after = Setup(setup.folder, setup.claims, boot_id="boot-2")
    set_minor_numbers(after, minors)
    return after


def set_minor_numbers(node: Setup, minors: tuple[int, int]) -> None:
    cards = [
        real_gpu(card, minor=m) for card, m in zip(simulated_inventory().gpus, minors, strict=True)
    ]
    node.discovery.inventory = Inventory(gpus=tuple(cards))
    node.catalog.refresh()


@pytest.fixture
def prepared_ref(setup: Setup) -> ClaimRef:
    """Return a prepared claim on a real card, /dev/nvidia0."""
    set_minor_numbers(setup, (0, 1))
    ref = put_claim(setup, "a", share_result(GPU_0))
    assert isinstance(setup.prepare(ref)[ref.uid], PreparedClaim)
    return ref


def device_nodes_of(node: Setup, ref: ClaimRef) -> set[str]:
    spec = node.spec_of(ref)
    edits = [spec["containerEdits"], *(device["containerEdits"] for device in spec["devices"])]
    return {each["path"] for edit in edits for each in edit.get("deviceNodes", ())}


def test_restart_in_the_same_boot_needs_no_cards(setup: Setup, prepared_ref: ClaimRef) -> None:
    before = claim_files(setup)
    after = setup.restarted()
    (after.cdi_folder / spec_file(prepared_ref.uid)).unlink()

    found = recover_node(after)

    assert found.outdated == []
    assert claim_files(after) == before
    after.ledger.close()


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
    after.ledger.close()


def test_interrupted_refresh_is_repeated(setup: Setup, prepared_ref: ClaimRef) -> None:
    after = reboot(setup, minors=(1, 0))
    after.device_nodes.missing.add(1)

    with pytest.raises(RetryableError, match="nvidia1"):
        after.preparer.refresh(prepared_ref, deadline=time.monotonic() + PATIENCE_SECONDS)

    assert recover_node(after).outdated == [prepared_ref]
    after.ledger.close()


def test_card_missing_after_a_reboot_is_not_given_by_its_old_minor_number(
    setup: Setup, prepared_ref: ClaimRef
) -> None:
    after = reboot(setup, minors=(1, 0))
    inventory_left = after.discovery.inventory
    assert inventory_left is not None
    after.discovery.inventory = Inventory(gpus=inventory_left.gpus[1:])
    after.catalog.refresh()

    outcome = after.prepare(prepared_ref)[prepared_ref.uid]

    assert f"{GPU_0}: the GPU is gone from the node" in error_of(outcome)
    assert claim_files(after) == {}
    after.ledger.close()


def test_refresh_of_an_unprepared_claim_does_nothing(setup: Setup, prepared_ref: ClaimRef) -> None:
    setup.unprepare(prepared_ref)

    setup.preparer.refresh(prepared_ref, deadline=time.monotonic() + PATIENCE_SECONDS)

    assert claim_files(setup) == {}
    assert setup.ledger.claims() == []
