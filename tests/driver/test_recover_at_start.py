"""Recovery of prepared claims at start."""

import pytest

from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.driver.recover import recover
from tests.support.prepared_node import Setup, put_claim, share_result, spec_file


def test_restart_keeps_every_claim_and_rebuilds_its_spec_after_a_reboot(setup: Setup) -> None:
    ref = put_claim(setup, "a", share_result())
    first = setup.prepare(ref)
    spec = setup.spec_of(ref)
    (setup.cdi_folder / spec_file(ref.uid)).unlink()
    (setup.cdi_folder / spec_file("uid-orphan")).write_text("{}")
    (setup.cdi_folder / "other-vendor.json").write_text("{}")

    after = setup.restarted()
    recover(after.ledger, after.projection, boot_id=after.boot_id)

    assert setup.spec_of(ref) == spec
    assert sorted(path.name for path in setup.cdi_folder.iterdir()) == [
        "other-vendor.json",
        spec_file(ref.uid),
    ]
    assert after.prepare(ref) == first
    after.ledger.close()


def test_damaged_spec_is_replaced_at_start(setup: Setup) -> None:
    ref = put_claim(setup, "a", share_result())
    setup.prepare(ref)
    spec = setup.spec_of(ref)
    (setup.cdi_folder / spec_file(ref.uid)).write_text('{"cdiVersion": "0.3')

    recover(setup.ledger, setup.projection, boot_id=setup.boot_id)

    assert setup.spec_of(ref) == spec


def test_recovery_continues_if_the_cdi_folder_cannot_be_written(setup: Setup) -> None:
    ref = put_claim(setup, "a", share_result())
    setup.prepare(ref)
    (setup.cdi_folder / spec_file(ref.uid)).unlink()
    setup.cdi_folder.rmdir()
    setup.cdi_folder.write_text("a file where the folder should be")

    recover(setup.ledger, setup.projection, boot_id=setup.boot_id)

    with pytest.raises(RetryableError):
        setup.projection.claim_uids()
