"""From the kubelet's call to record, spec and answer, with a real ledger and CDI directory."""

import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from tensorfusion_dra.core import cdi
from tensorfusion_dra.core.claim import ClaimRef
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.core.gpu import Inventory
from tensorfusion_dra.core.health import CardEvent, EventKind
from tensorfusion_dra.core.prepared import PreparedClaim
from tensorfusion_dra.driver.catalog import CatalogReader
from tensorfusion_dra.driver.recover import recover
from tests.support.ports import (
    ClaimsInMemory,
    FixedDiscovery,
)
from tests.support.prepared_node import (
    GPU_0,
    GPU_1,
    NODE,
    Setup,
    error_of,
    inventory,
    put,
    real,
    share,
    spec_file,
)
from tests.support.stored_claims import stored_claim


@pytest.fixture
def setup(tmp_path: Path) -> Iterator[Setup]:
    node = Setup(tmp_path)
    yield node
    node.ledger.close()


def test_an_allocated_claim_is_recorded_and_gets_a_spec_with_its_limits(setup: Setup) -> None:
    ref = put(setup, "a", share())

    outcome = setup.prepare(ref)[ref.uid]

    assert isinstance(outcome, PreparedClaim)
    assert setup.ledger.get(ref.uid) == outcome
    limits = next(d for d in setup.spec_of(ref)["devices"] if d["name"].endswith(":limits"))
    assert "TF_CUDA_SM_PERCENT_LIMIT=33" in limits["containerEdits"]["env"]
    assert "TF_GPU_MEMORY_LIMIT=16384" in limits["containerEdits"]["env"]


def test_a_prepared_claim_is_answered_again_without_the_api_server(setup: Setup) -> None:
    ref = put(setup, "a", share())
    first = setup.prepare(ref)
    setup.claims.away = True

    again = setup.prepare(ref)

    assert again == first
    assert setup.claims.fetched == ["default/a"]


def test_a_spec_that_vanished_is_written_again_by_the_next_call(setup: Setup) -> None:
    ref = put(setup, "a", share())
    setup.prepare(ref)
    spec = setup.spec_of(ref)
    (setup.cdi_folder / spec_file(ref.uid)).unlink()

    setup.prepare(ref)

    assert setup.spec_of(ref) == spec


def test_unprepare_removes_spec_and_record_and_may_be_repeated(setup: Setup) -> None:
    ref = put(setup, "a", share())
    setup.prepare(ref)
    setup.claims.away = True

    outcomes = [setup.unprepare(ref), setup.unprepare(ref)]

    assert outcomes == [{ref.uid: None}] * 2
    assert setup.ledger.get(ref.uid) is None
    assert setup.spec_of(ref) is None


def test_one_bad_claim_of_a_call_costs_no_other(setup: Setup) -> None:
    good = put(setup, "good", share())
    bad = ClaimRef(namespace="default", name="missing", uid="uid-missing")

    outcomes = setup.prepare(bad, good)

    assert isinstance(outcomes[good.uid], PreparedClaim)
    assert "default/missing" in error_of(outcomes[bad.uid])


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        ([share(pool="default/node-02")], r"pool default/node-02, this node's is default/node-01"),
        ([share("gpu-unknown")], rf"device gpu-unknown unknown, this node has .*{GPU_0}"),
        ([share(tflops="-100")], r"tflops: found -100, expected 0 or more"),
        ([share(vram="many")], r"vram: found 'many', expected a quantity"),
        ([share(vram=None)], r"vram: found no consumed capacity"),
        ([share(tflops="313")], r"tflops: 313 beside 0 held is over 312"),
        ([share(vram="48Gi"), share(vram="48Gi")], r"vram: 48Gi beside 48Gi held is over 80Gi"),
        ([share(device=None)], r"device: found None, expected a name"),
    ],
)
def test_what_cannot_be_given_is_refused_and_leaves_nothing(
    setup: Setup, results: list[dict[str, Any]], expected: str
) -> None:
    ref = put(setup, "bad", *results)

    text = error_of(setup.prepare(ref)[ref.uid])

    assert text.startswith("claim default/bad: ")
    assert re.search(expected, text), text
    assert setup.ledger.claims() == []
    assert setup.spec_of(ref) is None


def test_a_replaced_claim_is_refused(setup: Setup) -> None:
    put(setup, "a", share(), uid="uid-new")
    old = ClaimRef(namespace="default", name="a", uid="uid-old")

    text = error_of(setup.prepare(old)["uid-old"])

    assert text == "claim default/a: found UID uid-new, expected uid-old: it was replaced"


def test_a_claim_without_allocation_is_refused(setup: Setup) -> None:
    claim = stored_claim("a", share())
    claim["status"] = {}
    ref = setup.claims.put(claim)

    assert "found no allocation" in error_of(setup.prepare(ref)[ref.uid])


@pytest.mark.parametrize("uid", ["../../etc/cron.d/x", "a/b", "", "x" * 64, "ümlaut", "a\n"])
def test_a_uid_that_is_no_file_name_is_refused_and_unprepared_as_unknown(
    setup: Setup, uid: str
) -> None:
    ref = ClaimRef(namespace="default", name="a", uid=uid)

    outcome = setup.prepare(ref)[uid]

    assert "UID" in error_of(outcome)
    assert setup.claims.fetched == []
    assert setup.unprepare(ref) == {uid: None}


def test_the_last_unit_fits_and_one_more_does_not(setup: Setup) -> None:
    first = put(setup, "a", share(tflops="211999m", vram="1Gi"))
    second = put(setup, "b", share(tflops="100001m", vram="1Gi"))
    third = put(setup, "c", share(tflops="1m", vram="1Gi"))

    outcomes = setup.prepare(first, second, third)

    assert isinstance(outcomes[second.uid], PreparedClaim)
    assert "tflops: 1m beside 312 held is over 312" in error_of(outcomes[third.uid])


def test_a_device_given_alone_is_not_shared(setup: Setup) -> None:
    alone = put(setup, "alone", {**share(), "shareID": None, "consumedCapacity": None})
    other = put(setup, "other", share())

    outcomes = setup.prepare(alone, other)

    assert isinstance(outcomes[alone.uid], PreparedClaim)
    assert "given alone, but default/alone has it" in error_of(outcomes[other.uid])


def test_admin_access_stands_beside_everyone_and_takes_nothing(setup: Setup) -> None:
    whole = put(setup, "whole", share(tflops="312", vram="80Gi"))
    admin = put(setup, "admin", {**share(), "adminAccess": True})

    outcomes = setup.prepare(whole, admin)

    assert isinstance(outcomes[admin.uid], PreparedClaim)
    assert [d["name"].endswith(":limits") for d in setup.spec_of(admin)["devices"]] == [False]


def test_two_shares_of_one_card_in_one_claim_have_two_identities(setup: Setup) -> None:
    ref = put(setup, "two", share(request="small"), share(request="large", tflops="200"))

    outcome = setup.prepare(ref)[ref.uid]

    assert isinstance(outcome, PreparedClaim)
    ids = cdi.ids_by_share(outcome)
    assert len({first for first, *_ in ids}) == 2
    assert all(len(each) == 2 for each in ids)


def test_results_of_other_drivers_are_left_to_them(setup: Setup) -> None:
    foreign = {**share("nic-0"), "driver": "nic.example.com"}
    mixed = put(setup, "mixed", foreign, share())
    none_of_ours = put(setup, "foreign", foreign)

    outcomes = setup.prepare(mixed, none_of_ours)

    ours = outcomes[mixed.uid]
    assert isinstance(ours, PreparedClaim)
    assert [held.device for held in ours.shares] == [GPU_0]
    assert outcomes[none_of_ours.uid] == PreparedClaim(ref=none_of_ours, shares=())
    assert setup.spec_of(none_of_ours) is None


def test_a_prioritized_lists_choice_answers_for_the_main_request(setup: Setup) -> None:
    ref = put(setup, "a", share(request="gpu/large"))

    outcome = setup.prepare(ref)[ref.uid]

    assert isinstance(outcome, PreparedClaim)
    assert outcome.shares[0].request == "gpu"


def test_a_missing_device_node_fails_the_claim_until_it_is_there(setup: Setup) -> None:
    cards = tuple(real(gpu, minor=gpu.index) for gpu in inventory().gpus)
    setup.discovery.inventory = Inventory(gpus=cards)
    setup.catalog.refresh()
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


def test_a_call_for_a_claim_waits_for_the_one_before_until_its_deadline(setup: Setup) -> None:
    ref = put(setup, "a", share())
    asked, answer = Event(), Event()
    fetch = setup.claims.fetch

    class SlowClaims(ClaimsInMemory):
        def fetch(self, ref: ClaimRef, *, wait_seconds: float) -> Any:
            asked.set()
            answer.wait(5)
            return fetch(ref, wait_seconds=wait_seconds)

    slow = setup.with_claims(SlowClaims())
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(slow.prepare, [ref], deadline=time.monotonic() + 5)
        asked.wait(5)

        second = slow.prepare([ref], deadline=time.monotonic() + 0.1)[ref.uid]
        answer.set()

        assert "another call for it is still running" in error_of(second)
        assert isinstance(first.result()[ref.uid], PreparedClaim)


def test_many_calls_at_once_never_admit_more_than_the_card(setup: Setup) -> None:
    refs = [put(setup, f"c{n}", share(tflops="50", vram="1Gi")) for n in range(16)]

    with ThreadPoolExecutor(16) as pool:
        outcomes = list(pool.map(lambda ref: setup.prepare(ref)[ref.uid], refs))

    admitted = [each for each in outcomes if isinstance(each, PreparedClaim)]
    assert len(admitted) == 6  # 6 x 50 of 312
    assert len(setup.ledger.claims()) == 6


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
    setup.claims.away = True
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
