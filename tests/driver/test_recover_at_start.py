"""What a restart finds of the claims that were prepared, and what it puts right."""

import pytest

from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.driver.recover import recover
from tests.support.prepared_node import Setup, put, share, spec_file


def test_a_restart_finds_every_claim_and_rebuilds_the_specs_after_a_reboot(setup: Setup) -> None:
    ref = put(setup, "a", share())
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


def test_a_damaged_spec_is_replaced_at_start(setup: Setup) -> None:
    ref = put(setup, "a", share())
    setup.prepare(ref)
    spec = setup.spec_of(ref)
    (setup.cdi_folder / spec_file(ref.uid)).write_text('{"cdiVersion": "0.3')

    recover(setup.ledger, setup.projection, boot_id=setup.boot_id)

    assert setup.spec_of(ref) == spec


def test_recovery_goes_on_when_the_cdi_folder_cannot_be_written(setup: Setup) -> None:
    ref = put(setup, "a", share())
    setup.prepare(ref)
    (setup.cdi_folder / spec_file(ref.uid)).unlink()
    setup.cdi_folder.rmdir()
    setup.cdi_folder.write_text("a file where the folder should be")

    recover(setup.ledger, setup.projection, boot_id=setup.boot_id)

    with pytest.raises(RetryableError):
        setup.projection.claim_uids()
