"""What the share of a prepared claim gets: files, isolation and limits."""

import copy
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from threading import Event, Thread
from typing import Any

import pytest
from structlog.testing import capture_logs

from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.enforcers.enforcer import Needs
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.devices.gpu import Inventory, Isolation
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.core.kubernetes.quantity import GIB
from tensorfusion_dra.driver.catalog import DeviceCatalog
from tensorfusion_dra.driver.recover import recover
from tests.support.builders.devices import NODE
from tests.support.builders.stored_claims import stored_claim
from tests.support.ports import FixedDiscovery
from tests.support.prepared_node import (
    GPU_0,
    GPU_1,
    Setup,
    error_of,
    limits_of,
    put_annotated_claim,
    put_claim,
    share_result,
    simulated_inventory,
    use_real_cards,
)
from tests.support.waiting import PATIENCE_SECONDS, eventually

LIMIT = "tensor-fusion.ai/vram-limit"


def vram_gib(setup: Setup, ref: ClaimRef) -> float:
    (limits,) = limits_of(setup, ref)
    return float(limits["vramBytes"] / GIB)


def test_limits_default_to_the_consumed_amounts(setup: Setup) -> None:
    ref = put_claim(setup, "a", share_result())

    setup.prepare(ref)

    assert limits_of(setup, ref) == [{"smPercent": 33, "vramBytes": 16 * GIB, "clamped": False}]


def test_pods_annotations_set_the_limits_of_a_claim_without_annotations(setup: Setup) -> None:
    ref = put_claim(setup, "a", share_result())
    setup.pods.stored["default/a"] = {
        "tensor-fusion.ai/tflops-limit": "156",
        "tensor-fusion.ai/vram-limit": "32Gi",
    }

    setup.prepare(ref)

    assert limits_of(setup, ref) == [{"smPercent": 50, "vramBytes": 32 * GIB, "clamped": False}]


def test_pod_is_not_read_if_the_claim_has_annotations(setup: Setup) -> None:
    ref = put_annotated_claim(setup, "a", {LIMIT: "20Gi"})

    setup.prepare(ref)

    assert vram_gib(setup, ref) == 20
    assert setup.pods.pods_read == []


def test_pods_of_one_claim_get_the_smallest_limits_with_a_log_line(
    setup: Setup,
) -> None:
    claim = stored_claim("a", share_result())
    claim["status"]["reservedFor"].append({"resource": "pods", "name": "b", "uid": "uid-of-b"})
    ref = setup.claims.put(claim)
    setup.pods.stored |= {"default/a": {LIMIT: "40Gi"}, "default/b": {LIMIT: "24Gi"}}

    with capture_logs() as logs:
        setup.prepare(ref)

    assert vram_gib(setup, ref) == 24
    assert "shared_claim_uses_smallest_limits" in [line["event"] for line in logs]


def test_later_request_takes_back_memory_lent_to_an_earlier_tenant(
    setup: Setup,
) -> None:
    first = put_annotated_claim(setup, "a", {LIMIT: "80Gi"})
    setup.prepare(first)
    assert vram_gib(setup, first) == 80
    second = put_claim(setup, "b", share_result(tflops="1", vram="40Gi"))

    setup.prepare(second)

    assert vram_gib(setup, first) == 40
    assert vram_gib(setup, second) == 40


def test_tenant_admitted_during_another_preparation_is_counted(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = put_annotated_claim(setup, "a", {LIMIT: "80Gi"})
    second = put_claim(setup, "b", share_result(tflops="1", vram="40Gi"))
    being_prepared = Event()
    provide = setup.host_files.provide

    def provide_slowly(needs: Needs) -> None:
        if not being_prepared.is_set():
            being_prepared.set()
            time.sleep(0.3)  # long enough to admit the second claim meanwhile
        provide(needs)

    monkeypatch.setattr(setup.host_files, "provide", provide_slowly)
    with ThreadPoolExecutor(1) as pool:
        earlier = pool.submit(setup.prepare, first)
        being_prepared.wait(PATIENCE_SECONDS)
        setup.prepare(second)
        earlier.result()

    assert vram_gib(setup, first) == 40
    assert vram_gib(setup, second) == 40


def put_claim_of_hard_class(setup: Setup, name: str, annotations: dict[str, str]) -> ClaimRef:
    parameters = {
        "apiVersion": "tensor-fusion.ai/v1alpha1",
        "kind": "GpuShare",
        "isolation": "hard",
    }
    claim = stored_claim(name, share_result())
    claim["metadata"]["annotations"] = annotations
    claim["status"]["allocation"]["devices"]["config"] = [
        {
            "source": "FromClass",
            "opaque": {"driver": "tensor-fusion.ai.dra-driver", "parameters": parameters},
        }
    ]
    return setup.claims.put(claim)


@pytest.mark.parametrize(
    ("isolation", "expected"),
    [
        ("hard", "isolation hard: found no limiter for it on this node, expected an enforcer"),
        ("shared", "isolation shared: found 100 of 312 tflops and 16Gi of 80Gi vram, expected the"),
    ],
)
@pytest.mark.parametrize("by", ["claim", "pod"])
def test_tenant_cannot_remove_its_limits_by_annotation(
    setup: Setup, by: str, isolation: str, expected: str
) -> None:
    annotations = {"tensor-fusion.ai/isolation": isolation}
    ref = put_annotated_claim(setup, "a", annotations if by == "claim" else {})
    setup.pods.stored["default/a"] = annotations if by == "pod" else {}
    other = put_claim(setup, "b", share_result(vram="1Gi"))

    outcomes = setup.prepare(ref, other)

    assert expected in error_of(outcomes[ref.uid])
    assert setup.spec_of(ref) is None
    assert isinstance(outcomes[other.uid], PreparedClaim)


def test_claim_prepared_by_an_older_release_is_not_changed(setup: Setup) -> None:
    """Older releases accepted hard isolation from a tenant's annotation.

    The container of such a claim runs, so its record stays valid.
    """
    ref = put_claim_of_hard_class(setup, "a", {})
    setup.prepare(ref)
    claim = copy.deepcopy(dict(setup.claims.stored[str(ref)]))
    claim["metadata"]["annotations"] = {"tensor-fusion.ai/isolation": "hard"}
    claim["status"]["allocation"]["devices"].pop("config", None)
    setup.claims.put(claim)
    spec = setup.spec_of(ref)

    after = setup.restarted()
    recover(after.ledger, after.node_files, boot_id=after.boot_id)
    again = after.prepare(ref)[ref.uid]
    after.ledger.close()

    assert isinstance(again, PreparedClaim)
    assert after.spec_of(ref) == spec


def test_claims_get_the_isolation_of_the_nodes_pool_unless_they_choose_a_softer_one(
    setup: Setup,
) -> None:
    setup.catalog.set_node(replace(NODE, isolation=Isolation.HARD))
    default, repeated = (
        put_claim(setup, "a", share_result()),
        put_annotated_claim(setup, "b", {"tensor-fusion.ai/isolation": "hard"}),
    )
    softer = put_annotated_claim(setup, "c", {"tensor-fusion.ai/isolation": "soft"}, device=GPU_1)

    outcomes = setup.prepare(default, repeated, softer)

    modes = []
    for outcome in outcomes.values():
        assert isinstance(outcome, PreparedClaim)
        modes += [each.isolation for each in outcome.shares]
    assert modes == [Isolation.HARD, Isolation.HARD, Isolation.SOFT]


def test_card_has_one_isolation_mode_at_a_time(setup: Setup) -> None:
    soft = put_claim(setup, "soft", share_result())
    hard = put_claim_of_hard_class(setup, "hard", {})

    outcomes = setup.prepare(soft, hard)
    setup.unprepare(soft)
    again = setup.prepare(hard)[hard.uid]

    assert "isolation hard: found the card in isolation soft by default/soft" in error_of(
        outcomes[hard.uid]
    )
    assert isinstance(again, PreparedClaim)


def test_pods_of_one_claim_share_the_folder_and_name_of_the_first_pod(setup: Setup) -> None:
    use_real_cards(setup)
    claim = stored_claim("a", share_result())
    claim["status"]["reservedFor"] = [
        {"resource": "pods", "name": name, "uid": f"uid-of-{name}"} for name in ("zebra", "ape")
    ]
    ref = setup.claims.put(claim)

    with capture_logs() as logs:
        setup.prepare(ref)
    first = setup.spec_of(ref)
    after = setup.restarted()
    recover(after.ledger, after.node_files, boot_id=after.boot_id)
    after.ledger.close()

    folder = "/run/tensor-fusion/shm/default/zebra"
    edits = first["devices"][1]["containerEdits"]
    assert "POD_NAME=zebra" in edits["env"]
    assert folder in [mount["hostPath"] for mount in edits["mounts"]]
    assert setup.host_files.folders == after.host_files.folders == {folder}
    assert after.spec_of(ref) == first
    (line,) = [line for line in logs if line["event"] == "claim_prepared"]
    assert (line["pod"], line["pods"]) == ("default/zebra", 2)


def test_limits_document_is_read_only_and_removed_with_its_claim(setup: Setup) -> None:
    ref = put_claim(setup, "a", share_result())
    setup.prepare(ref)
    file = setup.limits_folder / f"{ref.uid}.json"

    mode = file.stat().st_mode & 0o777
    document = json.loads(file.read_text())
    setup.unprepare(ref)

    assert mode == 0o444
    assert document["claim"] == {"namespace": "default", "name": "a", "uid": ref.uid}
    assert document["pods"] == [{"name": "a", "uid": "uid-of-a"}]
    assert list(setup.limits_folder.iterdir()) == []


def test_soft_isolation_mounts_limiter_and_shared_memory_and_disables_bypasses(
    setup: Setup,
) -> None:
    use_real_cards(setup)
    ref = put_claim(setup, "a", share_result())
    setup.prepare(ref)

    (limits,) = [d for d in setup.spec_of(ref)["devices"] if d["name"].endswith(":limits")]
    env = dict(entry.split("=", 1) for entry in limits["containerEdits"]["env"])
    mounts = {m["containerPath"]: m for m in limits["containerEdits"]["mounts"]}

    assert env["TF_ISOLATION_MODE"] == "soft"
    assert env["DISABLE_GPU_LIMITER"] == ""
    assert (env["POD_NAMESPACE"], env["POD_NAME"]) == ("default", "a")
    assert mounts["/run/tensor-fusion/shm"]["hostPath"] == "/run/tensor-fusion/shm/default/a"
    assert "ro" in mounts["/tensor-fusion-limiter/libcuda_limiter.so"]["options"]
    preload = mounts["/etc/ld.so.preload"]["hostPath"]
    assert setup.host_files.texts[preload] == "/tensor-fusion-limiter/libcuda_limiter.so\n"
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in setup.spec_of(ref)["containerEdits"]["env"]


def test_driver_libraries_come_from_the_toolkit_or_mounts_or_the_claim_fails(
    setup: Setup,
) -> None:
    use_real_cards(setup)
    first = simulated_inventory().gpus[0]
    by_mounts = put_claim(setup, "mounts", share_result())
    setup.prepare(by_mounts)
    setup.driver_files.by_toolkit = {first.uuid}
    by_toolkit = put_claim(setup, "toolkit", share_result())
    outcome = setup.prepare(by_toolkit)[by_toolkit.uid]
    setup.driver_files.by_toolkit = set()
    setup.driver_files.missing = True
    neither = put_claim(setup, "neither", share_result(tflops="1", vram="1Gi"))

    failed = setup.prepare(neither)[neither.uid]

    assert setup.spec_of(by_mounts)["containerEdits"]["mounts"][0]["hostPath"] == (
        "/host/libcuda.so.1"
    )
    assert isinstance(outcome, PreparedClaim)
    assert outcome.shares[0].toolkit_device == f"nvidia.com/gpu={first.uuid}"
    assert "mounts" not in setup.spec_of(by_toolkit)["containerEdits"]
    assert "libcuda.so.1: not found" in error_of(failed)


@contextmanager
def running_limit_changes(setup: Setup) -> Iterator[None]:
    limit_changes = setup.limit_changes(retry_seconds=0.01)
    thread = Thread(target=limit_changes.run)
    thread.start()
    try:
        yield
    finally:
        limit_changes.stop()
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()


def prepare_with_limit(setup: Setup, name: str, limit: str) -> ClaimRef:
    ref = put_annotated_claim(setup, name, {LIMIT: limit}, vram="10Gi")
    assert isinstance(setup.prepare(ref)[ref.uid], PreparedClaim)
    return ref


def limit_gib(setup: Setup, ref: ClaimRef) -> float:
    record = setup.ledger.get(ref.uid)
    assert record is not None
    (limit,) = [each.limit for each in record.shares]
    assert limit is not None
    return limit.vram_bytes / GIB


def set_card_memory(setup: Setup, vram_gib: int) -> None:
    """Change the memory of the node's cards."""
    cards = tuple(replace(gpu, vram_bytes=vram_gib * GIB) for gpu in simulated_inventory().gpus)
    setup.discovery.inventory = Inventory(gpus=cards)
    setup.catalog.refresh()


def test_limits_shrink_and_grow_with_the_capacity(setup: Setup) -> None:
    ref = prepare_with_limit(setup, "a", "80Gi")

    with running_limit_changes(setup):
        set_card_memory(setup, 40)
        assert eventually(lambda: limit_gib(setup, ref) == 40)
        assert eventually(lambda: "=40960" in str(setup.spec_of(ref)))
        set_card_memory(setup, 80)
        assert eventually(lambda: limit_gib(setup, ref) == 80)


def test_memory_of_a_claim_unprepared_before_the_first_reading_is_lent_later(
    setup: Setup,
) -> None:
    first = prepare_with_limit(setup, "a", "80Gi")
    second = put_claim(setup, "b", share_result(GPU_0, tflops="1", vram="60Gi"))
    setup.prepare(second)
    assert limit_gib(setup, first) == 20
    after = setup.restarted()
    after.discovery.inventory = None
    after.catalog = DeviceCatalog(FixedDiscovery(None), NODE)
    after.preparer = after.with_claims(after.claims)

    after.unprepare(second)
    before = limit_gib(after, first)
    after.catalog._discovery = FixedDiscovery(simulated_inventory())
    with running_limit_changes(after):
        after.catalog.refresh()
        assert eventually(lambda: limit_gib(after, first) == 80)

    assert before == 20
    after.ledger.close()


def test_rules_changed_over_a_restart_apply_to_existing_claims(setup: Setup) -> None:
    setup.rules = replace(setup.rules, overcommit_limits=True)
    setup.preparer = setup.with_claims(setup.claims)
    refs = [prepare_with_limit(setup, name, "80Gi") for name in "ab"]
    assert [limit_gib(setup, ref) for ref in refs] == [80, 80]

    after = setup.restarted()
    with running_limit_changes(after):
        assert eventually(lambda: [limit_gib(after, ref) for ref in refs] == [70, 10])
    after.ledger.close()


def test_unchanged_limits_are_not_written(setup: Setup) -> None:
    prepare_with_limit(setup, "a", "40Gi")
    log = setup.folder / "plugin" / "ledger.sqlite3-wal"
    before = log.read_bytes()

    assert setup.limit_changes().divide() == ()

    assert log.read_bytes() == before


def test_failed_write_to_the_ledger_is_retried(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = prepare_with_limit(setup, "a", "80Gi")
    failures = iter([RetryableError("the disk is full")] * 2)
    transaction = setup.ledger.transaction

    def failing() -> Any:
        for error in failures:
            raise error
        return transaction()

    monkeypatch.setattr(setup.ledger, "transaction", failing)
    with capture_logs() as logs, running_limit_changes(setup):
        set_card_memory(setup, 40)
        assert eventually(lambda: limit_gib(setup, ref) == 40)

    assert [line["event"] for line in logs].count("limits_recompute_failed") == 2
