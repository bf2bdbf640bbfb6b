"""Limits of shares: their sources, and their division among the tenants of a card."""

import time
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest
from structlog.testing import capture_logs

from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.enforcers.enforcer import Needs
from tensorfusion_dra.core.kubernetes.quantity import GIB
from tests.support.builders.stored_claims import stored_claim
from tests.support.prepared_node import (
    Setup,
    limits_of,
    put_annotated_claim,
    put_claim,
    share_result,
)
from tests.support.waiting import PATIENCE_SECONDS

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
