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
    error_of,
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


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        ({LIMIT: "1e999999999"}, "vram-limit: found exponent"),
        ({LIMIT: "1_000"}, "vram-limit: found '1_000'"),
        ({LIMIT: "-1"}, "vram-limit: found -1, expected 0 or more"),
        ({LIMIT: "1Gi"}, "vram limit: found 1Gi, expected at least its request 16Gi"),
        ({"tensor-fusion.ai/isolation": "none"}, "isolation: found 'none', expected one of soft"),
        ({"tensor-fusion.ai/qos": "best"}, "qos: found 'best', expected one of low"),
    ],
)
def test_malformed_annotation_fails_its_claim_and_leaves_no_record_or_files(
    setup: Setup, annotations: dict[str, str], expected: str
) -> None:
    ref = put_annotated_claim(setup, "a", annotations)

    text = error_of(setup.prepare(ref)[ref.uid])

    assert text.startswith("claim default/a: ")
    assert expected in text
    assert setup.ledger.claims() == []
    assert not setup.limits_folder.exists()


def test_later_limit_is_clamped_to_the_free_memory_with_a_log_line(setup: Setup) -> None:
    first = put_annotated_claim(setup, "a", {LIMIT: "60Gi"})
    second = put_annotated_claim(setup, "b", {LIMIT: "60Gi"}, tflops="1")

    with capture_logs() as logs:
        setup.prepare(first, second)

    assert vram_gib(setup, first) == 60
    assert vram_gib(setup, second) == 20
    shares = [line["shares"] for line in logs if line["event"] == "claim_prepared"]
    wanted = [[share.get("wanted_vram_bytes") for share in each] for each in shares]
    assert wanted == [[None], [60 * GIB]]
    assert shares[1][0]["vram_bytes"] == 20 * GIB


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


def test_memory_is_lent_again_when_the_later_tenant_leaves(setup: Setup) -> None:
    first = put_annotated_claim(setup, "a", {LIMIT: "80Gi"})
    second = put_claim(setup, "b", share_result(tflops="1", vram="40Gi"))
    setup.prepare(first, second)

    setup.unprepare(second)

    assert vram_gib(setup, first) == 80
    assert not (setup.limits_folder / f"{second.uid}.json").exists()


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
