"""Limits, isolation and the files that carry them, over a real ledger and real folders."""

import copy
import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Event
from typing import Any

import pytest
from structlog.testing import capture_logs

from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.enforcers.enforcer import Needs
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.devices.sharing import Isolation
from tensorfusion_dra.core.kubernetes.quantity import GIB
from tensorfusion_dra.driver.recover import recover
from tests.support.prepared_node import (
    GPU_0,
    GPU_1,
    NODE,
    Setup,
    error_of,
    inventory,
    on_real_cards,
    put,
    share,
    spec_file,
)
from tests.support.stored_claims import stored_claim
from tests.support.waiting import PATIENCE_SECONDS

LIMIT = "tensor-fusion.ai/vram-limit"


def with_annotations(setup: Setup, name: str, said: dict[str, str], **amounts: Any) -> ClaimRef:
    claim = stored_claim(name, share(**amounts))
    claim["metadata"]["annotations"] = said
    return setup.claims.put(claim)


def limits_of(setup: Setup, ref: ClaimRef) -> Any:
    document = json.loads((setup.limits_folder / f"{ref.uid}.json").read_text())
    return [each.get("limits") for each in document["shares"]]


def vram_gib(setup: Setup, ref: ClaimRef) -> float:
    (limits,) = limits_of(setup, ref)
    return float(limits["vramBytes"] / GIB)


def test_without_a_word_the_limits_are_what_the_claim_consumes(setup: Setup) -> None:
    ref = put(setup, "a", share())

    setup.prepare(ref)

    assert limits_of(setup, ref) == [{"smPercent": 33, "vramBytes": 16 * GIB, "clamped": False}]


def test_the_pods_annotations_set_the_limits_of_a_claim_that_says_nothing(setup: Setup) -> None:
    ref = put(setup, "a", share())
    setup.pods.stored["default/a"] = {
        "tensor-fusion.ai/tflops-limit": "156",
        "tensor-fusion.ai/vram-limit": "32Gi",
    }

    setup.prepare(ref)

    assert limits_of(setup, ref) == [{"smPercent": 50, "vramBytes": 32 * GIB, "clamped": False}]


def test_a_claim_that_says_something_itself_needs_no_look_at_its_pod(setup: Setup) -> None:
    ref = with_annotations(setup, "a", {LIMIT: "20Gi"})

    setup.prepare(ref)

    assert vram_gib(setup, ref) == 20
    assert setup.pods.asked == []


def test_several_pods_on_one_claim_get_the_smallest_limits_and_the_log_says_so(
    setup: Setup,
) -> None:
    claim = stored_claim("a", share())
    claim["status"]["reservedFor"].append({"resource": "pods", "name": "b", "uid": "uid-of-b"})
    ref = setup.claims.put(claim)
    setup.pods.stored |= {"default/a": {LIMIT: "40Gi"}, "default/b": {LIMIT: "24Gi"}}

    with capture_logs() as logs:
        setup.prepare(ref)

    assert vram_gib(setup, ref) == 24
    assert "shared_claim_uses_smallest_limits" in [line["event"] for line in logs]


def test_pods_that_share_a_claim_share_the_folder_and_the_name_of_the_first(setup: Setup) -> None:
    on_real_cards(setup)
    claim = stored_claim("a", share())
    claim["status"]["reservedFor"] = [
        {"resource": "pods", "name": name, "uid": f"uid-of-{name}"} for name in ("zebra", "ape")
    ]
    ref = setup.claims.put(claim)

    with capture_logs() as logs:
        setup.prepare(ref)
    first = setup.spec_of(ref)
    later = setup.restarted()
    recover(later.ledger, later.projection, boot_id=later.boot_id)
    later.ledger.close()

    folder = "/run/tensor-fusion/shm/default/zebra"
    edits = first["devices"][1]["containerEdits"]
    assert "POD_NAME=zebra" in edits["env"]
    assert folder in [mount["hostPath"] for mount in edits["mounts"]]
    assert setup.host_files.folders == later.host_files.folders == {folder}
    assert later.spec_of(ref) == first
    (line,) = [line for line in logs if line["event"] == "claim_shared_by_pods"]
    assert (line["pod"], line["pods"]) == ("default/zebra", 2)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({LIMIT: "1e999999999"}, "vram-limit: found exponent"),
        ({LIMIT: "1_000"}, "vram-limit: found '1_000'"),
        ({LIMIT: "-1"}, "vram-limit: found -1, expected 0 or more"),
        ({LIMIT: "1Gi"}, "vram limit: found 1Gi, expected at least its request 16Gi"),
        ({"tensor-fusion.ai/isolation": "none"}, "isolation: found 'none', expected one of soft"),
        ({"tensor-fusion.ai/qos": "best"}, "qos: found 'best', expected one of low"),
    ],
)
def test_a_malformed_word_fails_its_claim_and_leaves_nothing(
    setup: Setup, said: dict[str, str], expected: str
) -> None:
    ref = with_annotations(setup, "a", said)

    text = error_of(setup.prepare(ref)[ref.uid])

    assert text.startswith("claim default/a: ")
    assert expected in text
    assert setup.ledger.claims() == []
    assert not setup.limits_folder.exists()


def test_a_later_limit_is_clamped_to_what_is_left_and_the_log_says_so(setup: Setup) -> None:
    first = with_annotations(setup, "a", {LIMIT: "60Gi"})
    second = with_annotations(setup, "b", {LIMIT: "60Gi"}, tflops="1")

    with capture_logs() as logs:
        setup.prepare(first, second)

    assert vram_gib(setup, first) == 60
    assert vram_gib(setup, second) == 20
    (line,) = [line for line in logs if line["event"] == "limit_clamped"]
    assert (line["wanted_bytes"], line["vram_bytes"]) == (60 * GIB, 20 * GIB)


def test_a_later_request_takes_back_what_an_earlier_tenant_had_beyond_its_own(
    setup: Setup,
) -> None:
    first = with_annotations(setup, "a", {LIMIT: "80Gi"})
    setup.prepare(first)
    assert vram_gib(setup, first) == 80
    second = put(setup, "b", share(tflops="1", vram="40Gi"))

    setup.prepare(second)

    assert vram_gib(setup, first) == 40
    assert vram_gib(setup, second) == 40


def test_what_was_taken_back_returns_when_the_later_tenant_leaves(setup: Setup) -> None:
    first = with_annotations(setup, "a", {LIMIT: "80Gi"})
    second = put(setup, "b", share(tflops="1", vram="40Gi"))
    setup.prepare(first, second)

    setup.unprepare(second)

    assert vram_gib(setup, first) == 80
    assert not (setup.limits_folder / f"{second.uid}.json").exists()


def test_a_tenant_that_comes_while_another_is_being_prepared_is_not_forgotten(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = with_annotations(setup, "a", {LIMIT: "80Gi"})
    second = put(setup, "b", share(tflops="1", vram="40Gi"))
    being_prepared = Event()
    provide = setup.host_files.provide

    def slowly(needs: Needs) -> None:
        if not being_prepared.is_set():
            being_prepared.set()
            time.sleep(0.3)  # long enough for the other to come in between
        provide(needs)

    monkeypatch.setattr(setup.host_files, "provide", slowly)
    with ThreadPoolExecutor(1) as pool:
        earlier = pool.submit(setup.prepare, first)
        being_prepared.wait(PATIENCE_SECONDS)
        setup.prepare(second)
        earlier.result()

    assert vram_gib(setup, first) == 40
    assert vram_gib(setup, second) == 40


def of_hard_class(setup: Setup, name: str, said: dict[str, str]) -> ClaimRef:
    parameters = {
        "apiVersion": "tensor-fusion.ai/v1alpha1",
        "kind": "GpuShare",
        "isolation": "hard",
    }
    claim = stored_claim(name, share())
    claim["metadata"]["annotations"] = said
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
def test_a_tenant_cannot_take_the_limits_off_by_its_own_word(
    setup: Setup, by: str, isolation: str, expected: str
) -> None:
    said = {"tensor-fusion.ai/isolation": isolation}
    ref = with_annotations(setup, "a", said if by == "claim" else {})
    setup.pods.stored["default/a"] = said if by == "pod" else {}
    other = put(setup, "b", share(vram="1Gi"))

    outcomes = setup.prepare(ref, other)

    assert expected in error_of(outcomes[ref.uid])
    assert setup.spec_of(ref) is None
    assert isinstance(outcomes[other.uid], PreparedClaim)


def test_a_claim_that_an_older_release_prepared_stays_as_it_is(setup: Setup) -> None:
    """Older releases took a tenant's word for hard; its container runs, and its record counts."""
    ref = of_hard_class(setup, "a", {})
    setup.prepare(ref)
    claim = copy.deepcopy(dict(setup.claims.stored[str(ref)]))
    claim["metadata"]["annotations"] = {"tensor-fusion.ai/isolation": "hard"}
    claim["status"]["allocation"]["devices"].pop("config", None)
    setup.claims.put(claim)
    spec = setup.spec_of(ref)

    later = setup.restarted()
    recover(later.ledger, later.projection, boot_id=later.boot_id)
    again = later.prepare(ref)[ref.uid]
    later.ledger.close()

    assert isinstance(again, PreparedClaim)
    assert later.spec_of(ref) == spec


def test_in_hard_isolation_no_limit_above_the_request_is_granted(setup: Setup) -> None:
    ref = of_hard_class(setup, "a", {LIMIT: "80Gi"})

    setup.prepare(ref)

    assert limits_of(setup, ref) == [{"smPercent": 33, "vramBytes": 16 * GIB, "clamped": True}]


def test_the_isolation_of_the_node_s_pool_is_an_administrator_s_word(setup: Setup) -> None:
    setup.catalog.set_node(replace(NODE, isolation=Isolation.HARD))
    silent, repeats = (
        put(setup, "a", share()),
        with_annotations(setup, "b", {"tensor-fusion.ai/isolation": "hard"}),
    )
    softer = with_annotations(setup, "c", {"tensor-fusion.ai/isolation": "soft"}, device=GPU_1)

    outcomes = setup.prepare(silent, repeats, softer)

    modes = []
    for outcome in outcomes.values():
        assert isinstance(outcome, PreparedClaim)
        modes += [each.isolation for each in outcome.shares]
    assert modes == [Isolation.HARD, Isolation.HARD, Isolation.SOFT]


def test_one_card_holds_one_isolation_mode_at_a_time(setup: Setup) -> None:
    soft = put(setup, "soft", share())
    hard = of_hard_class(setup, "hard", {})

    outcomes = setup.prepare(soft, hard)
    setup.unprepare(soft)
    again = setup.prepare(hard)[hard.uid]

    assert "isolation hard: found the card in isolation soft by default/soft" in error_of(
        outcomes[hard.uid]
    )
    assert isinstance(again, PreparedClaim)


def test_the_limits_document_is_read_only_and_goes_with_its_claim(setup: Setup) -> None:
    ref = put(setup, "a", share())
    setup.prepare(ref)
    file = setup.limits_folder / f"{ref.uid}.json"

    mode = file.stat().st_mode & 0o777
    document = json.loads(file.read_text())
    setup.unprepare(ref)

    assert mode == 0o444
    assert document["claim"] == {"namespace": "default", "name": "a", "uid": ref.uid}
    assert document["pods"] == [{"name": "a", "uid": "uid-of-a"}]
    assert list(setup.limits_folder.iterdir()) == []


def test_a_missing_limiter_fails_the_claim_with_its_path_until_it_is_there(setup: Setup) -> None:
    on_real_cards(setup)
    setup.host_files.missing = {"/run/tensor-fusion/libcuda_limiter.so"}
    ref = put(setup, "a", share())

    refused = setup.prepare(ref)[ref.uid]
    setup.host_files.missing = set()
    outcome = setup.prepare(ref)[ref.uid]

    assert "/run/tensor-fusion/libcuda_limiter.so" in error_of(refused)
    assert isinstance(outcome, PreparedClaim)
    assert setup.host_files.folders == {"/run/tensor-fusion/shm/default/a"}


def test_a_pod_in_soft_isolation_gets_limiter_and_shared_memory_and_no_way_around(
    setup: Setup,
) -> None:
    on_real_cards(setup)
    ref = put(setup, "a", share())
    setup.prepare(ref)

    (limits,) = [d for d in setup.spec_of(ref)["devices"] if d["name"].endswith(":limits")]
    env = dict(entry.split("=", 1) for entry in limits["containerEdits"]["env"])
    mounts = {m["containerPath"]: m for m in limits["containerEdits"]["mounts"]}

    assert env["TF_ISOLATION_MODE"] == "soft"
    assert env["LD_PRELOAD"] == "/tensor-fusion-limiter/libcuda_limiter.so"
    assert env["DISABLE_GPU_LIMITER"] == ""
    assert (env["POD_NAMESPACE"], env["POD_NAME"]) == ("default", "a")
    assert mounts["/run/tensor-fusion/shm"]["hostPath"] == "/run/tensor-fusion/shm/default/a"
    assert "ro" in mounts["/tensor-fusion-limiter/libcuda_limiter.so"]["options"]
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in setup.spec_of(ref)["containerEdits"]["env"]


def test_driver_libraries_come_by_the_toolkit_or_by_mounts_and_never_not_at_all(
    setup: Setup,
) -> None:
    on_real_cards(setup)
    first = inventory().gpus[0]
    by_mounts = put(setup, "mounts", share())
    setup.prepare(by_mounts)
    setup.driver_files.by_toolkit = {first.uuid}
    by_toolkit = put(setup, "toolkit", share())
    outcome = setup.prepare(by_toolkit)[by_toolkit.uid]
    setup.driver_files.by_toolkit = set()
    setup.driver_files.missing = True
    neither = put(setup, "neither", share(tflops="1", vram="1Gi"))

    refused = setup.prepare(neither)[neither.uid]

    assert setup.spec_of(by_mounts)["containerEdits"]["mounts"][0]["hostPath"] == (
        "/host/libcuda.so.1"
    )
    assert isinstance(outcome, PreparedClaim)
    assert outcome.shares[0].toolkit_device == f"nvidia.com/gpu={first.uuid}"
    assert "mounts" not in setup.spec_of(by_toolkit)["containerEdits"]
    assert "libcuda.so.1: not found" in error_of(refused)


def test_a_restart_rebuilds_specs_and_limits_after_a_reboot(setup: Setup) -> None:
    ref = put(setup, "a", share())
    setup.prepare(ref)
    spec, limits = setup.spec_of(ref), limits_of(setup, ref)
    (setup.cdi_folder / spec_file(ref.uid)).unlink()
    (setup.limits_folder / f"{ref.uid}.json").unlink()
    (setup.limits_folder / "uid-orphan.json").write_text("{}")

    after = setup.restarted()
    recover(after.ledger, after.projection, boot_id=after.boot_id)
    after.ledger.close()

    assert (setup.spec_of(ref), limits_of(setup, ref)) == (spec, limits)
    assert [path.name for path in setup.limits_folder.iterdir()] == [f"{ref.uid}.json"]
    assert GPU_0 in str(spec)
