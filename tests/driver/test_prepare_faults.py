"""What trouble with the API server, a disk, the driver or a card costs a claim."""

import time
from pathlib import Path

import pytest

from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.devices.gpu import Inventory
from tensorfusion_dra.core.devices.health import CardEvent, EventKind
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.driver.catalog import CatalogReader
from tests.support.ports import FixedDiscovery
from tests.support.prepared_node import (
    GPU_0,
    GPU_1,
    NODE,
    Setup,
    error_of,
    inventory,
    on_real_cards,
    put,
    real,
    share,
)


def test_a_missing_device_node_fails_the_claim_until_it_is_there(setup: Setup) -> None:
    on_real_cards(setup)
    setup.device_nodes.missing = {0}
    ref = put(setup, "a", share())

    refused = setup.prepare(ref)[ref.uid]
    setup.device_nodes.missing = set()
    outcome = setup.prepare(ref)[ref.uid]

    assert "/dev/nvidia0" in error_of(refused)
    assert isinstance(outcome, PreparedClaim)
    assert outcome.shares[0].device_nodes == ("/dev/nvidia0",)
    assert setup.spec_of(ref)["containerEdits"]["deviceNodes"] == [
        {"path": "/dev/nvidiactl"},
        {"path": "/dev/nvidia-uvm"},
    ]


def test_a_real_card_without_minor_number_is_not_handed_out_without_its_node(setup: Setup) -> None:
    cards = tuple(real(gpu, minor=None) for gpu in inventory().gpus)
    setup.discovery.inventory = Inventory(gpus=cards)
    setup.catalog.refresh()
    ref = put(setup, "a", share())

    assert "tells no minor number" in error_of(setup.prepare(ref)[ref.uid])


def test_a_card_that_got_another_minor_number_is_answered_with_its_new_node(setup: Setup) -> None:
    first, second = inventory().gpus
    setup.discovery.inventory = Inventory(gpus=(real(first, minor=0), real(second, minor=1)))
    setup.catalog.refresh()
    ref = put(setup, "a", share())
    setup.prepare(ref)
    setup.discovery.inventory = Inventory(gpus=(real(first, minor=1), real(second, minor=0)))
    setup.catalog.refresh()

    setup.prepare(ref)

    nodes = setup.spec_of(ref)["devices"][0]["containerEdits"]["deviceNodes"]
    assert nodes == [{"path": "/dev/nvidia1"}]


def test_the_api_server_being_away_fails_the_claim_and_not_the_next_try(setup: Setup) -> None:
    ref = put(setup, "a", share())
    setup.claims.away = True
    refused = setup.prepare(ref)[ref.uid]
    setup.claims.away = False

    outcome = setup.prepare(ref)[ref.uid]

    assert "no answer" in error_of(refused)
    assert isinstance(outcome, PreparedClaim)


def test_a_cdi_folder_that_cannot_be_written_fails_the_claim_until_it_can(setup: Setup) -> None:
    ref = put(setup, "a", share())
    setup.cdi_folder.write_text("a file where the folder should be")
    refused = setup.prepare(ref)[ref.uid]
    setup.cdi_folder.unlink()

    outcome = setup.prepare(ref)[ref.uid]

    assert str(setup.cdi_folder) in error_of(refused)
    assert isinstance(outcome, PreparedClaim)
    assert setup.spec_of(ref) is not None


def test_cards_that_could_not_be_read_yet_fail_the_claim(setup: Setup, tmp_path: Path) -> None:
    blind = CatalogReader(FixedDiscovery(None), NODE)
    preparer = setup.with_claims(setup.claims, blind)
    ref = put(setup, "a", share())

    outcome = preparer.prepare([ref], deadline=time.monotonic() + 0.2)[ref.uid]

    assert "GPUs could not be read yet" in error_of(outcome)


def test_a_sick_card_that_is_there_is_handed_out_to_whom_the_scheduler_gave_it(
    setup: Setup,
) -> None:
    ref = put(setup, "a", share())
    uuid = inventory().gpus[0].uuid
    setup.catalog.report(CardEvent(gpu_uuid=uuid, kind=EventKind.XID, code=79))

    assert list(setup.catalog.sick()) == [GPU_0]
    assert isinstance(setup.prepare(ref)[ref.uid], PreparedClaim)


def test_a_card_that_is_gone_fails_its_claims_alone_and_says_why(setup: Setup) -> None:
    held, new = put(setup, "a", share()), put(setup, "b", share())
    beside = put(setup, "c", share(GPU_1))
    setup.prepare(held)
    setup.discovery.inventory = Inventory(gpus=inventory().gpus[1:])
    setup.catalog.refresh()

    outcomes = setup.prepare(held, new, beside)

    text = f"{GPU_0}: the GPU is gone from the node, expected a working GPU"
    assert error_of(outcomes[held.uid]) == f"claim default/a: {text}"
    assert error_of(outcomes[new.uid]) == f"claim default/b: {text}"
    assert isinstance(outcomes[beside.uid], PreparedClaim)
    assert setup.unprepare(held) == {held.uid: None}


def test_a_driver_that_hangs_fails_no_claim(setup: Setup) -> None:
    ref = put(setup, "a", share())
    setup.discovery.inventory = None
    for _ in range(3):
        with pytest.raises(RetryableError):
            setup.catalog.refresh()

    assert set(setup.catalog.sick()) == {GPU_0, GPU_1}
    assert isinstance(setup.prepare(ref)[ref.uid], PreparedClaim)
