"""Preparation during faults of the API server, a disk, the NVIDIA driver or a card."""

import time
from pathlib import Path

import pytest

from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.devices.gpu import Inventory
from tensorfusion_dra.core.devices.health import CardEvent, EventKind
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.driver.catalog import DeviceCatalog
from tests.support.builders.devices import NODE
from tests.support.ports import FixedDiscovery
from tests.support.prepared_node import (
    GPU_0,
    GPU_1,
    Setup,
    error_of,
    put_claim,
    real_gpu,
    share_result,
    simulated_inventory,
    use_real_cards,
)


def test_claim_fails_until_its_device_node_exists(setup: Setup) -> None:
    use_real_cards(setup)
    setup.device_nodes.missing = {0}
    ref = put_claim(setup, "a", share_result())

    failed = setup.prepare(ref)[ref.uid]
    setup.device_nodes.missing = set()
    outcome = setup.prepare(ref)[ref.uid]

    assert "/dev/nvidia0" in error_of(failed)
    assert isinstance(outcome, PreparedClaim)
    assert outcome.shares[0].device_nodes == ("/dev/nvidia0",)
    assert setup.spec_of(ref)["containerEdits"]["deviceNodes"] == [
        {"path": "/dev/nvidiactl"},
        {"path": "/dev/nvidia-uvm"},
    ]


def test_claim_of_a_real_card_without_a_minor_number_fails(setup: Setup) -> None:
    cards = tuple(real_gpu(gpu, minor=None) for gpu in simulated_inventory().gpus)
    setup.discovery.inventory = Inventory(gpus=cards)
    setup.catalog.refresh()
    ref = put_claim(setup, "a", share_result())

    assert "found no minor number" in error_of(setup.prepare(ref)[ref.uid])


def test_changed_minor_number_gives_the_new_device_node(setup: Setup) -> None:
    first, second = simulated_inventory().gpus
    setup.discovery.inventory = Inventory(
        gpus=(real_gpu(first, minor=0), real_gpu(second, minor=1))
    )
    setup.catalog.refresh()
    ref = put_claim(setup, "a", share_result())
    setup.prepare(ref)
    setup.discovery.inventory = Inventory(
        gpus=(real_gpu(first, minor=1), real_gpu(second, minor=0))
    )
    setup.catalog.refresh()

    setup.prepare(ref)

    nodes = setup.spec_of(ref)["devices"][0]["containerEdits"]["deviceNodes"]
    assert nodes == [{"path": "/dev/nvidia1"}]


def test_claim_fails_during_an_api_server_outage_and_succeeds_after_it(setup: Setup) -> None:
    ref = put_claim(setup, "a", share_result())
    setup.claims.away = True
    failed = setup.prepare(ref)[ref.uid]
    setup.claims.away = False

    outcome = setup.prepare(ref)[ref.uid]

    assert "no answer" in error_of(failed)
    assert isinstance(outcome, PreparedClaim)


def test_claim_fails_while_the_cdi_folder_cannot_be_written(setup: Setup) -> None:
    ref = put_claim(setup, "a", share_result())
    setup.cdi_folder.write_text("a file where the folder should be")
    failed = setup.prepare(ref)[ref.uid]
    setup.cdi_folder.unlink()

    outcome = setup.prepare(ref)[ref.uid]

    assert str(setup.cdi_folder) in error_of(failed)
    assert isinstance(outcome, PreparedClaim)
    assert setup.spec_of(ref) is not None


def test_claim_fails_before_the_first_reading_of_the_cards(setup: Setup, tmp_path: Path) -> None:
    without_cards = DeviceCatalog(FixedDiscovery(None), NODE)
    preparer = setup.with_claims(setup.claims, without_cards)
    ref = put_claim(setup, "a", share_result())

    outcome = preparer.prepare([ref], deadline=time.monotonic() + 0.2)[ref.uid]

    assert "GPUs could not be read yet" in error_of(outcome)


def test_claim_on_a_sick_but_present_card_is_prepared(
    setup: Setup,
) -> None:
    ref = put_claim(setup, "a", share_result())
    uuid = simulated_inventory().gpus[0].uuid
    setup.catalog.note_event(CardEvent(gpu_uuid=uuid, kind=EventKind.XID, code=79))

    assert list(setup.catalog.sick()) == [GPU_0]
    assert isinstance(setup.prepare(ref)[ref.uid], PreparedClaim)


def test_missing_card_fails_only_its_own_claims(setup: Setup) -> None:
    known, new = put_claim(setup, "a", share_result()), put_claim(setup, "b", share_result())
    on_other_card = put_claim(setup, "c", share_result(GPU_1))
    setup.prepare(known)
    setup.discovery.inventory = Inventory(gpus=simulated_inventory().gpus[1:])
    setup.catalog.refresh()

    outcomes = setup.prepare(known, new, on_other_card)

    text = f"{GPU_0}: the GPU is gone from the node, expected a working GPU"
    assert error_of(outcomes[known.uid]) == f"claim default/a: {text}"
    assert error_of(outcomes[new.uid]) == f"claim default/b: {text}"
    assert isinstance(outcomes[on_other_card.uid], PreparedClaim)
    assert setup.unprepare(known) == {known.uid: None}


def test_hanging_driver_fails_no_claim(setup: Setup) -> None:
    ref = put_claim(setup, "a", share_result())
    setup.discovery.inventory = None
    for _ in range(3):
        with pytest.raises(RetryableError):
            setup.catalog.refresh()

    assert set(setup.catalog.sick()) == {GPU_0, GPU_1}
    assert isinstance(setup.prepare(ref)[ref.uid], PreparedClaim)
