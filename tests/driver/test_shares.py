"""What the share of a prepared claim gets: files, isolation and limits."""

from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.devices.gpu import Isolation
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.core.kubernetes.quantity import GIB
from tensorfusion_dra.driver.publish import DeviceCatalog
from tensorfusion_dra.driver.recover import recover
from tests.support.builders.devices import NODE
from tests.support.builders.stored_claims import stored_claim
from tests.support.prepared_node import (
    GPU_0,
    GPU_1,
    Setup,
    limits_of,
    put_annotated_claim,
    put_claim,
    share_result,
    simulated_inventory,
    use_real_cards,
)
from tests.support.threads import running
from tests.support.waiting import eventually

LIMIT = "tensor-fusion.ai/vram-limit"


def vram_gib(setup: Setup, ref: ClaimRef) -> float:
    (limits,) = limits_of(setup, ref)
    return float(limits["vramBytes"] / GIB)


def test_pods_annotations_set_the_limits_of_a_claim_without_annotations(setup: Setup) -> None:
    ref = put_claim(setup, "a", share_result())
    setup.pods.stored["default/a"] = {
        "tensor-fusion.ai/tflops-limit": "156",
        "tensor-fusion.ai/vram-limit": "32Gi",
    }

    setup.prepare(ref)

    assert limits_of(setup, ref) == [{"smPercent": 50, "vramBytes": 32 * GIB, "clamped": False}]


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


def test_claim_prepared_by_an_older_release_is_not_changed(setup: Setup) -> None:
    """Older releases accepted hard isolation from a tenant's annotation.

    The container of such a claim runs, so its record stays valid.
    """
    ref = put_annotated_claim(setup, "a", {"tensor-fusion.ai/isolation": "hard"})
    setup.catalog.set_node(replace(NODE, isolation=Isolation.HARD))
    setup.prepare(ref)
    spec = setup.spec_of(ref)

    after = setup.restarted()
    recover(after.store, after.node_files, boot_id=after.boot_id)
    after.prepared(ref)

    assert after.spec_of(ref) == spec


def test_claims_get_the_isolation_of_the_nodes_pool_unless_they_choose_a_softer_one(
    setup: Setup,
) -> None:
    setup.catalog.set_node(replace(NODE, isolation=Isolation.HARD))
    default = put_claim(setup, "a", share_result())
    repeated = put_annotated_claim(setup, "b", {"tensor-fusion.ai/isolation": "hard"})
    softer = put_annotated_claim(setup, "c", {"tensor-fusion.ai/isolation": "soft"}, device=GPU_1)

    shares = [setup.prepared(ref).shares[0] for ref in (default, repeated, softer)]

    assert [each.isolation for each in shares] == [Isolation.HARD, Isolation.HARD, Isolation.SOFT]


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
    recover(after.store, after.node_files, boot_id=after.boot_id)

    folder = "/run/tensor-fusion/shm/default/zebra"
    edits = first["devices"][1]["containerEdits"]
    assert "POD_NAME=zebra" in edits["env"]
    assert folder in [mount["hostPath"] for mount in edits["mounts"]]
    assert setup.host_files.folders == after.host_files.folders == {folder}
    assert after.spec_of(ref) == first
    (line,) = [line for line in logs if line["event"] == "claim_prepared"]
    assert (line["pod"], line["pods"]) == ("default/zebra", 2)


def test_driver_libraries_come_from_the_toolkit_or_mounts_or_the_claim_fails(
    setup: Setup,
) -> None:
    use_real_cards(setup)
    first = simulated_inventory().gpus[0]
    by_mounts = put_claim(setup, "mounts", share_result())
    setup.prepare(by_mounts)
    setup.driver_files.by_toolkit = {first.uuid}
    by_toolkit = put_claim(setup, "toolkit", share_result())
    (share,) = setup.prepared(by_toolkit).shares
    setup.driver_files.by_toolkit = set()
    setup.driver_files.missing = True
    neither = put_claim(setup, "neither", share_result(tflops="1", vram="1Gi"))

    error = setup.refused(neither)

    assert setup.spec_of(by_mounts)["containerEdits"]["mounts"][0]["hostPath"] == (
        "/host/libcuda.so.1"
    )
    assert share.toolkit_device == f"nvidia.com/gpu={first.uuid}"
    assert "mounts" not in setup.spec_of(by_toolkit)["containerEdits"]
    assert "libcuda.so.1: not found" in error


def prepare_with_limit(setup: Setup, name: str, limit: str) -> ClaimRef:
    ref = put_annotated_claim(setup, name, {LIMIT: limit}, vram="10Gi")
    setup.prepared(ref)
    return ref


def running_limit_changes(setup: Setup) -> AbstractContextManager[object]:
    limit_changes = setup.limit_changes(retry_seconds=0.01)
    return running(limit_changes.run, stop=limit_changes.stop)


def limit_gib(setup: Setup, ref: ClaimRef) -> float:
    record = setup.record(ref)
    assert record is not None
    (limit,) = [each.limit for each in record.shares]
    assert limit is not None
    return limit.vram_bytes / GIB


def set_card_memory(setup: Setup, vram_gib: int) -> None:
    """Change the memory of the node's cards."""
    setup.use_cards(
        *(replace(gpu, vram_bytes=vram_gib * GIB) for gpu in simulated_inventory().gpus)
    )


def test_limits_shrink_and_grow_with_the_capacity(setup: Setup) -> None:
    ref = prepare_with_limit(setup, "a", "80Gi")

    with running_limit_changes(setup):
        set_card_memory(setup, 40)
        assert eventually(lambda: limit_gib(setup, ref) == 40)
        assert eventually(lambda: "=40960" in str(setup.spec_of(ref)))
        set_card_memory(setup, 80)
        assert eventually(lambda: limit_gib(setup, ref) == 80)


def test_memory_of_a_claim_unprepared_before_the_first_reading_is_lent_at_once(
    setup: Setup,
) -> None:
    first = prepare_with_limit(setup, "a", "80Gi")
    second = put_claim(setup, "b", share_result(GPU_0, tflops="1", vram="60Gi"))
    setup.prepare(second)
    assert limit_gib(setup, first) == 20
    after = setup.restarted()
    after.discovery.inventory = None
    after.use(catalog=DeviceCatalog(after.discovery, NODE))

    after.unprepare(second)

    assert vram_gib(after, first) == limit_gib(after, first) == 80


def test_rules_changed_over_a_restart_apply_to_existing_claims(tmp_path: Path) -> None:
    setup = Setup(tmp_path, overcommit_limits=True)
    refs = [prepare_with_limit(setup, name, "80Gi") for name in "ab"]
    assert [limit_gib(setup, ref) for ref in refs] == [80, 80]

    after = setup.restarted()
    found = recover(after.store, after.node_files, boot_id=after.boot_id)

    assert [limit_gib(after, ref) for ref in refs] == [70, 10]
    assert [vram_gib(after, ref) for ref in refs] == [70, 10]
    assert {record.ref for record in found.rewritten} == {*refs}


def test_failed_write_to_the_store_is_retried(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = prepare_with_limit(setup, "a", "80Gi")
    failures = iter([RetryableError("the disk is full")] * 2)
    transaction = setup.store.transaction

    def failing() -> Any:
        for error in failures:
            raise error
        return transaction()

    monkeypatch.setattr(setup.store, "transaction", failing)
    with capture_logs() as logs, running_limit_changes(setup):
        set_card_memory(setup, 40)
        assert eventually(lambda: limit_gib(setup, ref) == 40)

    assert [line["event"] for line in logs].count("limits_recompute_failed") == 2
