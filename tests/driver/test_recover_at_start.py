"""Recovery of prepared claims at start."""

import pytest

from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.driver.recover import recover
from tests.support.prepared_node import Setup, put_claim, share_result, spec_file


def test_recovery_continues_if_the_cdi_folder_cannot_be_written(setup: Setup) -> None:
    ref = put_claim(setup, "a", share_result())
    setup.prepare(ref)
    (setup.cdi_folder / spec_file(ref.uid)).unlink()
    setup.cdi_folder.rmdir()
    setup.cdi_folder.write_text("a file where the folder should be")

    recover(setup.ledger, setup.projection, boot_id=setup.boot_id)

    with pytest.raises(RetryableError):
        setup.projection.claim_uids()
