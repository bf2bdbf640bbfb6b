"""Recovery of files and records, at the start and while the node runs, and damage to a record."""

import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.enforcer import Needs
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.devices.gpu import Isolation
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.core.kubernetes.quantity import GIB
from tensorfusion_dra.core.observed import StoreView
from tensorfusion_dra.driver.publish import CatalogBuilder
from tensorfusion_dra.driver.recover import recover
from tensorfusion_dra.driver.stale_claims import StaleClaimCollector
from tensorfusion_dra.enforcers.mps.enforcer import Mps
from tensorfusion_dra.state.claim_store import FOLDER, ClaimStore
from tests.support.builders.devices import NODE
from tests.support.logs import capture_logs
from tests.support.ports import EventsInMemory, OneNode
from tests.support.prepared_node import (
    GPU_0,
    GPU_1,
    HAMI_CORE,
    TENSOR_FUSION,
    RecordingReporter,
    Setup,
    limits_of,
    put_annotated_claim,
    put_claim,
    real_gpu,
    reconciling,
    share_result,
    simulated_inventory,
    spec_file,
    use_real_cards,
)
from tests.support.stores import file_of
from tests.support.waiting import eventually

WANTS_ALL = {"tensor-fusion.ai/vram-limit": "80Gi"}


def spec_path(node: Setup, ref: ClaimRef) -> Path:
    return node.cdi_folder / spec_file(ref.uid)


def prepared(node: Setup, *names: str) -> list[ClaimRef]:
    """Prepare claims of these names, each for a part of GPU 0."""
    return [node.prepared(put_claim(node, name, share_result())).ref for name in names]


def test_missing_and_damaged_files_are_restored_byte_for_byte(setup: Setup) -> None:
    a, b = prepared(setup, "a", "b")
    before = setup.files()
    spec_path(setup, a).unlink()
    limits = setup.limits_folder / f"{b.uid}.json"
    limits.chmod(0o644)
    limits.write_bytes(before[limits.name][:20])

    found = setup.recover()

    assert (found.files_written, found.outdated) == (2, [])
    assert setup.files() == before


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
    (gone,) = prepared(setup, "a")
    with closing(LateReader(setup)) as late:
        setup.unprepare(gone)
        (kept,) = prepared(setup, "b")
        before = setup.files()

        found = recover(late, setup.node_files, boot_id=setup.boot_id)

    assert (len(found.claims), found.claims_removed, found.files_written) == (1, 0, 0)
    assert setup.files() == before
    assert before.keys() == {spec_file(kept.uid), f"{kept.uid}.json"}


def test_files_without_a_record_are_removed_unless_they_name_a_claim_to_fetch(setup: Setup) -> None:
    (ref,) = prepared(setup, "a")
    with setup.store.transaction() as transaction:
        transaction.remove(ref.uid)
    (setup.cdi_folder / spec_file("uid-orphan")).write_text("{}")
    (setup.limits_folder / "uid-other.json").write_text('{"claim": {"uid": "uid-else"}}')
    (setup.limits_folder / "uid-more.json").write_text("[")

    found = setup.recover()

    assert (found.unknown, found.claims_removed) == ([ref], 3)
    assert setup.files().keys() == {spec_file(ref.uid), f"{ref.uid}.json"}


def test_failed_recovery_of_one_claim_does_not_stop_the_others(setup: Setup) -> None:
    a, b = prepared(setup, "a", "b")
    before = setup.spec_of(b)
    for ref in (a, b):
        spec_path(setup, ref).unlink()
    (spec_path(setup, a) / "full").mkdir(parents=True)  # an empty folder would be moved away

    found = setup.recover()

    assert list(found.reasons) == [a.uid]
    assert "Directory not empty" in found.reasons[a.uid]
    assert setup.spec_of(b) == before


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
    return prepared(setup, "a")[0]


def test_after_a_reboot_no_spec_has_device_nodes_of_the_earlier_boot(
    setup: Setup, prepared_ref: ClaimRef
) -> None:
    after = reboot(setup, minors=(1, 0))
    assert (after.recover().outdated, after.files()) == ([prepared_ref], {})

    after.refresh(prepared_ref)

    spec = str(after.spec_of(prepared_ref))
    assert ("/dev/nvidia0" in spec, "/dev/nvidia1" in spec) == (False, True)
    assert after.recover().outdated == []


def test_card_missing_after_a_reboot_is_not_given_by_its_old_minor_number(
    setup: Setup, prepared_ref: ClaimRef
) -> None:
    after = reboot(setup, minors=(1, 0))
    after.use_cards(simulated_inventory().gpus[1])

    assert f"{GPU_0}: the GPU is gone from the node" in after.refused(prepared_ref)
    assert after.files() == {}


def test_refresh_of_an_unprepared_claim_does_nothing(setup: Setup, prepared_ref: ClaimRef) -> None:
    setup.unprepare(prepared_ref)

    setup.refresh(prepared_ref)

    assert (setup.files(), setup.store.claims()) == ({}, [])


def test_recovery_continues_if_the_cdi_folder_cannot_be_written(setup: Setup) -> None:
    (ref,) = prepared(setup, "a")
    spec_path(setup, ref).unlink()
    setup.cdi_folder.rmdir()
    setup.cdi_folder.write_text("a file where the folder should be")

    setup.recover()

    with pytest.raises(RetryableError):
        setup.node_files.claim_uids()


# Claims that the present settings cannot enforce


class MpsOfAnotherRelease(Mps):
    """MPS for claims with several cards, which this release refuses."""

    def needs(self, claim: PreparedClaim) -> Needs:
        return Needs()


def use_mps(node: Setup, mps: Mps) -> Setup:
    """Let the node use this MPS for new claims."""
    node.enforcers["mps"] = mps
    node.use(enforcer=mps, status=RecordingReporter())
    return node


@pytest.fixture
def node(tmp_path: Path) -> Setup:
    """A node with two claims under MPS: `two` with two cards and `one` with one."""
    setup = use_mps(Setup(tmp_path), MpsOfAnotherRelease())
    setup.prepared(put_claim(setup, "two", share_result(GPU_0), share_result(GPU_1)))
    setup.prepared(put_claim(setup, "one", share_result(GPU_0, tflops="1")))
    return setup


def refs_of(node: Setup) -> tuple[ClaimRef, ClaimRef]:
    """Return the claims `one` and `two`."""
    one, two = sorted((claim.ref for claim in node.store.claims()), key=lambda ref: ref.name)
    return one, two


def with_record_of_a_later_release(node: Setup) -> Setup:
    """Restart the node with a record of `two` that names an unknown enforcer."""
    record = node.record(refs_of(node)[1])
    assert record is not None
    with node.store.transaction() as transaction:
        transaction.put(replace(record, enforcer="of-a-later-release"))
    return use_mps(node.restarted(), MpsOfAnotherRelease())


def without_several_cards(node: Setup) -> Setup:
    return use_mps(node.restarted(), Mps())


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
def test_unenforceable_claim_is_only_skipped_by_recovery_and_can_only_be_unprepared(
    node: Setup, change: Callable[[Setup], Setup], text: str
) -> None:
    after = change(node)
    one, two = refs_of(after)
    before = after.files()
    spec_path(after, one).unlink()

    found = after.recover()

    assert list(found.reasons) == [two.uid]
    assert found.reasons[two.uid].startswith("claim default/two: ")
    assert text in found.reasons[two.uid]
    assert [record.ref for record in found.unenforceable] == [two]
    assert after.files() == before

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
        for claim in list(transaction.by_uid.values()):
            transaction.put(replace(claim, boot_id="boot-0"))

    with capture_logs() as logs, reconciling(after):
        assert eventually(lambda: len(reported_reasons(after)) > 0)

    assert {name for name, _ in reported_reasons(after)} == {"two"}
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


# While the node runs


def test_spec_that_vanishes_is_written_again(setup: Setup) -> None:
    (ref,) = prepared(setup, "a")
    spec = setup.spec_of(ref)

    with reconciling(setup) as reconciler:
        spec_path(setup, ref).unlink()

        assert eventually(lambda: setup.spec_of(ref) == spec)

    assert reconciler.view() == StoreView()


def test_start_and_loop_do_not_fetch_claims_at_once(setup: Setup) -> None:
    prepared(setup, "a")
    setup.claims.fetched.clear()

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
    after.use(cards=CatalogBuilder(after.discovery, NODE))

    with capture_logs() as logs, reconciling(after, seconds=60):
        assert eventually(lambda: "claim_refresh_failed" in [line["event"] for line in logs])
        assert after.spec_of(prepared_ref) is None
        after.use_cards(*cards.gpus)
        assert eventually(lambda: after.spec_of(prepared_ref) == spec)

    assert [claim.boot_id for claim in after.store.claims()] == ["boot-2"]


# A record is damaged under a running share: what others get, and how it is rebuilt


def damage(node: Setup, *refs: ClaimRef) -> None:
    for ref in refs:
        file = file_of(node.folder / "plugin", ref.uid)
        file.write_bytes(file.read_bytes().replace(b"default", b"defau1t"))


def restarted_with_damage(node: Setup, *refs: ClaimRef) -> Setup:
    damage(node, *refs)
    after = node.restarted()
    after.claims.fetched.clear()
    return after


@pytest.fixture
def held(setup: Setup) -> ClaimRef:
    """A prepared claim on GPU 0, beside one that would like all memory of both GPUs."""
    for device in (GPU_0, GPU_1):
        setup.prepared(put_annotated_claim(setup, f"on-{device}", WANTS_ALL, device=device))
    return setup.prepared(put_claim(setup, "held", share_result(vram="20Gi"))).ref


def limits_gib(node: Setup) -> dict[str, float]:
    shares = [(claim.ref.name, share) for claim in node.store.claims() for share in claim.shares]
    return {name: share.limit.vram_bytes / GIB for name, share in shares if share.limit}


@pytest.mark.parametrize(
    ("lost", "refused", "lent"),
    [
        ((), [GPU_0], [16, 80]),
        (("limits",), [GPU_0], [16, 80]),  # the CDI spec names the GPU as well
        (("limits", "spec"), [GPU_0, GPU_1], [16, 16]),  # as a reboot does
    ],
    ids=["limits document", "CDI spec", "nothing"],
)
def test_its_gpus_or_all_if_unknown_take_no_claim_and_lend_nothing_until_it_is_rebuilt(
    setup: Setup, held: ClaimRef, lost: tuple[str, ...], refused: list[str], lent: list[float]
) -> None:
    before = limits_gib(setup)
    paths = {"limits": setup.limits_folder / f"{held.uid}.json", "spec": spec_path(setup, held)}
    for name in lost:
        paths[name].unlink()
    after = restarted_with_damage(setup, held)
    after.recover()
    after.divide()

    assert [limits_gib(after)[f"on-{device}"] for device in (GPU_0, GPU_1)] == lent
    for device in (GPU_0, GPU_1):
        new = put_claim(after, f"new-{device}", share_result(device, tflops="1", vram="1Gi"))
        if device in refused:
            text = after.refused(new)
            assert f"{device}: found the record of claim {held.uid} damaged" in text
            assert "expected it to be rebuilt from its claim" in text
        else:
            after.prepared(new)
            after.unprepare(new)

    after.prepared(held)  # by the kubelet, for a new sandbox

    assert limits_gib(after) == before
    after.prepared(put_claim(after, "last", share_result(tflops="1", vram="1Gi")))


def test_reconciler_rebuilds_it_from_its_claim_with_an_event(setup: Setup, held: ClaimRef) -> None:
    before, files = setup.store.claims(), setup.files()
    after, events = restarted_with_damage(setup, held), EventsInMemory()

    with reconciling(after, events=events) as reconciler:
        assert eventually(lambda: len(after.store.claims()) == 3)
        assert eventually(lambda: reconciler.view() == StoreView(restored=1))

    ((reason, message),) = events.written
    assert reason == "ClaimRecordDamaged"
    assert f"the record of claim {held.uid} was found damaged" in message
    assert f"nothing more is given out on {GPU_0}" in message
    assert (after.store.claims(), after.files()) == (before, files)


def test_rebuilt_claim_is_the_last_to_borrow(setup: Setup) -> None:
    """What is lost: only the record has the order of the claims."""
    a, b = (put_annotated_claim(setup, name, WANTS_ALL, vram="10Gi") for name in "ab")
    setup.prepare(a, b)
    before = limits_gib(setup)

    after = restarted_with_damage(setup, a)
    after.prepared(a)

    assert (before, limits_gib(after)) == ({"a": 70, "b": 10}, {"a": 10, "b": 70})


def test_event_is_retried_until_the_api_server_accepts_it(setup: Setup, held: ClaimRef) -> None:
    spec_path(setup, held).unlink()
    (setup.limits_folder / f"{held.uid}.json").unlink()
    after, events = restarted_with_damage(setup, held), EventsInMemory()
    events.away = True

    def goes_round() -> bool:
        fetched = len(after.claims.fetched)
        return eventually(lambda: len(after.claims.fetched) > fetched + 1)

    with reconciling(after, events=events) as reconciler:
        assert goes_round()
        assert reconciler.view() == StoreView(damaged=1)
        events.away = False
        assert eventually(lambda: len(events.written) > 0)
        assert goes_round()

    ((_, message),) = events.written
    assert "nothing more is given out on every GPU of this node" in message


def test_damage_while_the_node_runs_is_undone_without_a_claim(setup: Setup, held: ClaimRef) -> None:
    record = file_of(setup.folder / "plugin", held.uid)
    before = record.read_bytes(), setup.files()
    damage(setup, held)

    with reconciling(setup) as reconciler:
        assert eventually(lambda: reconciler.view() == StoreView(restored=1))

    assert (record.read_bytes(), setup.files()) == before
    assert setup.claims.fetched.count(str(held)) == 1


def halves(node: Setup, *names: str) -> list[ClaimRef]:
    """Store claims of these names, each for half of GPU 0."""
    return [put_claim(node, name, share_result(vram="40Gi")) for name in names]


def test_folder_of_the_records_that_is_removed_beside_a_running_node_is_written_again(
    setup: Setup,
) -> None:
    a, b, third = halves(setup, "a", "b", "third")
    setup.prepared(a)
    records = setup.folder / "plugin" / FOLDER
    before = file_of(setup.folder / "plugin", a.uid).read_bytes()

    shutil.rmtree(records)
    setup.prepared(b)

    assert file_of(setup.folder / "plugin", a.uid).read_bytes() == before
    shutil.rmtree(records)
    assert "vram: found 40Gi plus 80Gi in use" in setup.refused(third)
    setup.store.check()
    assert {path.name for path in records.iterdir()} == {f"{ref.uid}.json" for ref in (a, b)}


@pytest.mark.parametrize("lost", [(), ("limits",)], ids=["limits document", "CDI spec"])
def test_gpus_of_claims_of_which_only_files_are_left_take_no_claim_until_they_are_prepared(
    setup: Setup, lost: tuple[str, ...]
) -> None:
    a, b, third = halves(setup, "a", "b", "third")
    setup.prepare(a, b)
    records, files = setup.store.claims(), setup.files()
    shutil.rmtree(setup.folder / "plugin" / FOLDER)
    if lost:
        shutil.rmtree(setup.limits_folder)

    after = setup.restarted()

    after.recover()
    text = after.refused(third)
    first = min(a.uid, b.uid)
    assert f"{GPU_0}: found the record of claim {first} damaged or missing" in text
    after.prepared(put_claim(after, "beside", share_result(GPU_1)))
    for ref in (a, b):
        after.prepared(ref)  # by the kubelet or the reconciler
    assert "in use" in after.refused(third)
    assert all(record in after.store.claims() for record in records)
    assert after.store.damaged() == {}
    assert files.items() <= after.files().items()


def test_files_of_claims_of_an_earlier_cluster_take_a_gpu_only_until_the_api_server_is_asked(
    setup: Setup,
) -> None:
    """As after kubeadm reset, which removes the data folder and stops no node."""
    a, b, third = halves(setup, "a", "b", "third")
    setup.prepare(a, b)
    shutil.rmtree(setup.folder / "plugin" / FOLDER)
    for ref in (a, b):
        del setup.claims.stored[str(ref)]

    after = setup.restarted()

    assert "damaged or missing" in after.refused(third)
    stale_claims = StaleClaimCollector(
        after.claims, OneNode(), after.preparer, gone_seconds=600, check_seconds=600
    )
    stale_claims.collect(after.recover().unknown)
    after.prepared(third)
    assert after.store.damaged() == {}
    assert after.spec_of(a) is not None  # its containers may be ending


def test_unprepare_without_a_readable_record_leaves_nothing(setup: Setup, held: ClaimRef) -> None:
    after = restarted_with_damage(setup, held)

    assert after.unprepare(held) == {held.uid: None}

    assert held.uid not in str([*after.files(), *after.store.damaged()])
    assert not file_of(after.folder / "plugin", held.uid).exists()
    after.prepared(put_claim(after, "new", share_result(vram="60Gi")))


def test_damaged_record_of_a_claim_that_stays_gone_is_removed(setup: Setup, held: ClaimRef) -> None:
    del setup.claims.stored[str(held)]
    after = restarted_with_damage(setup, held)

    with reconciling(after):
        assert eventually(lambda: held.uid not in str([*after.files(), *after.store.damaged()]))

    assert not file_of(after.folder / "plugin", held.uid).exists()


def test_two_damaged_records_on_one_gpu_are_both_rebuilt(setup: Setup) -> None:
    refs = prepared(setup, "a", "b")
    after = restarted_with_damage(setup, *refs)

    assert [after.prepared(ref).ref for ref in refs] == refs


def test_rebuilt_record_has_the_enforcer_and_the_fixed_limit_of_the_running_containers(
    tmp_path: Path,
) -> None:
    before = Setup(tmp_path, enforcer=HAMI_CORE, overcommit_limits=True)
    ref = put_annotated_claim(before, "a", {"tensor-fusion.ai/vram-limit": "60Gi"})
    limit, shown = before.prepared(ref).shares[0].limit, limits_of(before, ref)
    before.enforcer = TENSOR_FUSION

    after = restarted_with_damage(before, ref)
    rebuilt = after.prepared(ref)

    (share,) = rebuilt.shares
    assert (rebuilt.enforcer, share.limit) == (HAMI_CORE.name, limit)
    assert share.granted is not None
    assert share.granted.vram_bytes == share.reserved.vram_bytes
    assert limits_of(after, ref) == shown


def test_rebuilt_claim_of_a_whole_card_without_limits_counts_once(setup: Setup) -> None:
    """It is recorded once, so without limits at once: each put counts."""
    use_real_cards(setup)
    setup.host_files.absent.add("/run/tensor-fusion/libcuda_limiter.so")
    whole = put_claim(setup, "whole", share_result(tflops="312", vram="80Gi"))
    assert setup.prepared(whole).shares[0].limit is None

    after = restarted_with_damage(setup, whole)
    use_real_cards(after)
    after.host_files.absent |= setup.host_files.absent

    assert after.prepared(whole).shares[0].limit is None
    assert after.store.restored == 1


def test_pool_that_changed_to_hard_isolation_keeps_what_is_rebuilt(setup: Setup) -> None:
    setup.cards.set_node(replace(NODE, isolation=Isolation.HARD))
    ref = put_claim(setup, "a", share_result())
    limit = setup.prepared(ref).shares[0].granted
    after = restarted_with_damage(setup, ref)
    after.cards.set_node(replace(NODE, isolation=Isolation.HARD))

    assert after.prepared(ref).shares[0].granted == limit
