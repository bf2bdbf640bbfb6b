"""A record is damaged under a running share: what others get, and how it is rebuilt."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.devices.gpu import Isolation
from tensorfusion_dra.core.kubernetes.quantity import GIB
from tensorfusion_dra.core.observed import StoreView
from tensorfusion_dra.driver.recover import recover
from tests.support.builders.devices import NODE
from tests.support.ports import EventsInMemory
from tests.support.prepared_node import (
    GPU_0,
    GPU_1,
    HAMI_CORE,
    TENSOR_FUSION,
    Setup,
    limits_of,
    put_annotated_claim,
    put_claim,
    reconciling,
    share_result,
)
from tests.support.stores import file_of
from tests.support.waiting import eventually


def damage(node: Setup, *refs: ClaimRef) -> None:
    for ref in refs:
        file = file_of(node.folder / "plugin", ref.uid)
        file.write_bytes(file.read_bytes().replace(b"default", b"defau1t"))


def restarted_with_damage(node: Setup, *refs: ClaimRef) -> Setup:
    damage(node, *refs)
    after = node.restarted()
    after.claims.fetched.clear()
    return after


def files_of(node: Setup, ref: ClaimRef) -> dict[str, bytes]:
    folders = (node.folder / "plugin" / "claims", node.cdi_folder, node.limits_folder)
    paths = (path for folder in folders for path in folder.iterdir() if ref.uid in path.name)
    return {str(path): path.read_bytes() for path in paths}


@pytest.fixture
def ref(setup: Setup) -> ClaimRef:
    """A prepared claim on GPU 0, beside one that would like all memory of both GPUs."""
    lender = {"tensor-fusion.ai/vram-limit": "80Gi"}
    for device in (GPU_0, GPU_1):
        setup.prepared(put_annotated_claim(setup, f"on-{device}", lender, device=device))
    ref = put_claim(setup, "held", share_result(vram="20Gi"))
    setup.prepared(ref)
    return ref


def limits_gib(node: Setup) -> dict[str, float]:
    shares = [(claim.ref.name, share) for claim in node.store.claims() for share in claim.shares]
    return {name: share.limit.vram_bytes / GIB for name, share in shares if share.limit}


def forget_files(node: Setup, ref: ClaimRef) -> None:
    """As a reboot does, or whoever empties /run."""
    for path in files_of(node, ref):
        if "plugin" not in path:
            Path(path).unlink()


def forget_limits(node: Setup, ref: ClaimRef) -> None:
    (node.limits_folder / f"{ref.uid}.json").unlink()


@pytest.mark.parametrize(
    ("forget", "refused", "lent"),
    [
        (lambda *_: None, [GPU_0], [16, 80]),
        (forget_limits, [GPU_0], [16, 80]),  # the CDI spec names the GPU as well
        (forget_files, [GPU_0, GPU_1], [16, 16]),
    ],
    ids=["limits document", "CDI spec", "nothing"],
)
def test_its_gpus_or_all_if_unknown_take_no_claim_and_lend_nothing_until_it_is_rebuilt(
    setup: Setup,
    ref: ClaimRef,
    forget: Callable[[Setup, ClaimRef], None],
    refused: list[str],
    lent: list[float],
) -> None:
    before = limits_gib(setup)
    forget(setup, ref)
    after = restarted_with_damage(setup, ref)
    recover(after.store, after.node_files, boot_id=after.boot_id)
    after.limit_changes().divide()

    assert [limits_gib(after)[f"on-{device}"] for device in (GPU_0, GPU_1)] == lent
    for device in (GPU_0, GPU_1):
        new = put_claim(after, f"new-{device}", share_result(device, tflops="1", vram="1Gi"))
        if device in refused:
            text = after.refused(new)
            assert f"{device}: found the record of claim {ref.uid} damaged" in text
            assert "expected it to be rebuilt from its claim" in text
        else:
            after.prepared(new)
            after.unprepare(new)

    after.prepared(ref)  # by the kubelet, for a new sandbox

    assert limits_gib(after) == before
    after.prepared(put_claim(after, "last", share_result(tflops="1", vram="1Gi")))


def test_reconciler_rebuilds_it_from_its_claim_with_an_event(setup: Setup, ref: ClaimRef) -> None:
    before = setup.store.claims()
    files = files_of(setup, ref)
    after, events = restarted_with_damage(setup, ref), EventsInMemory()

    with reconciling(after, events=events) as reconciler:
        assert eventually(lambda: len(after.store.claims()) == 3)
        assert eventually(lambda: reconciler.view() == StoreView(restored=1))

    ((reason, message),) = events.written
    assert reason == "ClaimRecordDamaged"
    assert f"the record of claim {ref.uid} was found damaged" in message
    assert f"nothing more is given out on {GPU_0}" in message
    assert after.store.claims() == before
    assert files_of(after, ref) == files


def test_rebuilt_claim_is_the_last_to_borrow(tmp_path: Path) -> None:
    """What is lost: only the record has the order of the claims."""
    node, wants = Setup(tmp_path), {"tensor-fusion.ai/vram-limit": "80Gi"}
    a, b = (put_annotated_claim(node, name, wants, vram="10Gi") for name in "ab")
    for ref in (a, b):
        node.prepared(ref)
    before = limits_gib(node)

    after = restarted_with_damage(node, a)
    after.prepared(a)

    assert (before, limits_gib(after)) == ({"a": 70, "b": 10}, {"a": 10, "b": 70})


def test_event_is_retried_until_the_api_server_accepts_it(setup: Setup, ref: ClaimRef) -> None:
    forget_files(setup, ref)
    after, events = restarted_with_damage(setup, ref), EventsInMemory()
    events.away = True

    with reconciling(after, events=events) as reconciler:
        fetched = len(after.claims.fetched)
        assert eventually(lambda: len(after.claims.fetched) > fetched + 1)
        assert reconciler.view() == StoreView(damaged=1)
        events.away = False
        assert eventually(lambda: len(events.written) > 0)
        fetched = len(after.claims.fetched)
        assert eventually(lambda: len(after.claims.fetched) > fetched + 1)

    ((_, message),) = events.written
    assert "nothing more is given out on every GPU of this node" in message


def test_damage_while_the_node_runs_is_undone_without_a_claim(setup: Setup, ref: ClaimRef) -> None:
    before = files_of(setup, ref)
    damage(setup, ref)

    with reconciling(setup) as reconciler:
        assert eventually(lambda: reconciler.view() == StoreView(restored=1))

    assert files_of(setup, ref) == before
    assert setup.claims.fetched.count(str(ref)) == 1


def test_unprepare_without_a_readable_record_leaves_nothing(setup: Setup, ref: ClaimRef) -> None:
    after = restarted_with_damage(setup, ref)

    assert after.unprepare(ref) == {ref.uid: None}

    assert files_of(after, ref) == {}
    assert after.store.damaged() == {}
    after.prepared(put_claim(after, "new", share_result(vram="60Gi")))


def test_damaged_record_of_a_claim_that_stays_gone_is_removed(setup: Setup, ref: ClaimRef) -> None:
    del setup.claims.stored[str(ref)]
    after = restarted_with_damage(setup, ref)

    with reconciling(after):
        assert eventually(lambda: not files_of(after, ref))

    assert after.store.damaged() == {}


def test_two_damaged_records_on_one_gpu_are_both_rebuilt(setup: Setup, ref: ClaimRef) -> None:
    other = put_claim(setup, "other", share_result(tflops="1", vram="1Gi"))
    setup.prepared(other)
    after = restarted_with_damage(setup, ref, other)

    assert [after.prepared(each).ref for each in (ref, other)] == [ref, other]


def test_rebuilt_record_has_the_enforcer_and_the_fixed_limit_of_the_running_containers(
    tmp_path: Path,
) -> None:
    before = Setup(tmp_path, enforcer=HAMI_CORE, overcommit_limits=True)
    ref = put_annotated_claim(before, "a", {"tensor-fusion.ai/vram-limit": "60Gi"})
    limits = before.prepared(ref).shares[0].limit
    before.enforcer = TENSOR_FUSION
    shown = limits_of(before, ref)

    after = restarted_with_damage(before, ref)
    rebuilt = after.prepared(ref)

    assert rebuilt.enforcer == HAMI_CORE.name
    assert rebuilt.shares[0].limit == rebuilt.shares[0].granted == limits
    assert limits_of(after, ref) == shown


def test_pool_that_changed_to_hard_isolation_keeps_what_is_rebuilt(setup: Setup) -> None:
    setup.catalog.set_node(replace(NODE, isolation=Isolation.HARD))
    ref = put_claim(setup, "a", share_result())
    limit = setup.prepared(ref).shares[0].granted
    after = restarted_with_damage(setup, ref)
    after.catalog.set_node(replace(NODE, isolation=Isolation.HARD))

    assert after.prepared(ref).shares[0].granted == limit
