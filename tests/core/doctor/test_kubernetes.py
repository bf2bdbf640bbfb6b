"""Findings about Kubernetes: versions, feature gates, nodes and allocations."""

import copy
from typing import Any

import pytest

from tensorfusion_dra.core.doctor import kubernetes
from tensorfusion_dra.core.doctor.finding import Level
from tensorfusion_dra.core.kubernetes import slice_rules

DRIVER = "tensor-fusion.ai.dra-driver"


def node_with_info(**info: str) -> dict[str, Any]:
    ready = {"type": "Ready", "status": "True"}
    return {
        "metadata": {"name": "node-01"},
        "status": {"nodeInfo": info, "conditions": [ready]},
    }


@pytest.mark.parametrize(
    ("reported", "level"),
    [
        ("v1.33.9", Level.PROBLEM),
        ("v1.34.0", Level.OK),
        ("v1.36.2", Level.OK),
        ("v1.36.2-gke.100", Level.OK),
        ("v1.40.0", Level.OK),
        ("v2.0.0", Level.NOTE),
    ],
)
def test_kubernetes_before_1_34_is_a_problem(reported: str, level: Level) -> None:
    (finding,) = kubernetes.version({"gitVersion": reported})

    assert finding.level is level
    assert reported in finding.found


def test_version_without_git_version_is_read_from_major_and_minor() -> None:
    (finding,) = kubernetes.version({"major": "1", "minor": "33+"})

    assert finding.level is Level.PROBLEM


@pytest.mark.parametrize(("reported", "levels"), [("v1.34.8", [Level.WARNING]), ("v1.35.0", [])])
def test_scheduler_of_1_34_shares_only_the_first_card(reported: str, levels: list[Level]) -> None:
    assert [finding.level for finding in kubernetes.scheduler({"gitVersion": reported})] == levels


@pytest.mark.parametrize(
    ("versions", "level", "text"),
    [
        (["v1"], Level.OK, "v1 is used"),
        (["v1beta2", "v1beta1"], Level.OK, "v1beta2 is used"),
        (["v1beta1"], Level.PROBLEM, "v1beta1"),
    ],
)
def test_v1_or_v1beta2_must_be_served(versions: list[str], level: Level, text: str) -> None:
    (finding,) = kubernetes.served({"versions": [{"version": version} for version in versions]})

    assert finding.level is level
    assert text in finding.found


def test_missing_api_group_is_a_problem() -> None:
    (finding,) = kubernetes.served(None)

    assert (finding.level, finding.found) == (Level.PROBLEM, "not served")


@pytest.mark.parametrize(
    ("reported", "level"),
    [
        ("v1.33.4", Level.PROBLEM),
        ("v1.34.0", Level.WARNING),
        ("v1.34.1", Level.WARNING),
        ("v1.34.2", Level.OK),
        ("v1.36.2", Level.OK),
        ("", Level.OK),
    ],
)
def test_kubelet_that_is_too_old_or_may_deadlock_is_reported(reported: str, level: Level) -> None:
    (finding,) = kubernetes.kubelet(node_with_info(kubeletVersion=reported))

    assert finding.level is level


def test_node_that_is_not_ready_is_reported_with_its_reason() -> None:
    healthy, broken, silent = node_with_info(), node_with_info(), node_with_info()
    broken["status"]["conditions"] = [{"type": "Ready", "status": "False", "message": "no CNI"}]
    silent["status"]["conditions"] = []

    assert [f.level for f in kubernetes.ready(healthy)] == [Level.OK]
    assert [f.found for f in kubernetes.ready(broken)] == ["Ready is False: no CNI"]
    assert [f.level for f in kubernetes.ready(silent)] == [Level.NOTE]


def claim_for_a_part(*results: dict[str, Any], asks: bool = True) -> dict[str, Any]:
    exactly = {"capacity": {"requests": {"vram": "1Gi"}}} if asks else {}
    return {
        "metadata": {"namespace": "default", "name": "a"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
        "status": {"allocation": {"devices": {"results": list(results)}}},
    }


def test_claim_for_a_part_that_got_a_whole_card_is_a_problem() -> None:
    whole = claim_for_a_part({"driver": DRIVER})

    (finding,) = kubernetes.shares([whole], DRIVER)

    assert finding.level is Level.PROBLEM
    assert "default/a" in finding.found
    assert "kube-scheduler" in finding.cure


def test_parts_requested_whole_cards_other_drivers_and_admin_access_are_no_problem() -> None:
    claims = [
        claim_for_a_part({"driver": DRIVER, "consumedCapacity": {"vram": "1Gi"}}),
        claim_for_a_part({"driver": DRIVER}, asks=False),
        claim_for_a_part({"driver": "gpu.example.com"}),
        claim_for_a_part({"driver": DRIVER, "adminAccess": True}),
    ]

    (finding,) = kubernetes.shares(claims, DRIVER)

    assert finding.level is Level.OK
    assert list(kubernetes.shares(claims[1:], DRIVER)) == []


def several(
    count: int, *, device_class: str = "tensor-fusion.ai", kind: str = "ResourceClaim"
) -> Any:
    exactly = {"deviceClassName": device_class, "count": count}
    spec: dict[str, Any] = {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}
    if kind == "ResourceClaimTemplate":
        spec = {"spec": spec}
    return {"kind": kind, "metadata": {"namespace": "a", "name": "train"}, "spec": spec}


@pytest.mark.parametrize("kind", ["ResourceClaim", "ResourceClaimTemplate"])
def test_request_for_several_gpus_is_warned_about_before_1_36(kind: str) -> None:
    stored = [several(4, kind=kind), several(1), several(4, device_class="other")]

    (found,) = kubernetes.one_request_for_several(
        {"gitVersion": "v1.35.6"}, stored, {"tensor-fusion.ai"}
    )

    assert found.level is Level.WARNING
    assert found.found.startswith(f"{kind} a/train: one request has a count above 1")
    assert "one distinctAttribute tensor-fusion.ai.dra-driver/uuid over all" in found.expected


def test_alternative_for_several_gpus_is_warned_about_too() -> None:
    alternative = {"name": "two", "deviceClassName": "tensor-fusion.ai", "count": 2}
    claim = several(1)
    claim["spec"]["devices"]["requests"] = [{"name": "gpu", "firstAvailable": [alternative]}]

    assert list(
        kubernetes.one_request_for_several({"gitVersion": "v1.34.2"}, [claim], {"tensor-fusion.ai"})
    )


@pytest.mark.parametrize("reported", ["v1.36.2", "v1.37.0", ""])
def test_request_for_several_gpus_is_no_problem_since_1_36(reported: str) -> None:
    assert not list(
        kubernetes.one_request_for_several(
            {"gitVersion": reported}, [several(4)], {"tensor-fusion.ai"}
        )
    )


def stored_slice(*dropped: str) -> Any:
    stored = copy.deepcopy(dict(kubernetes.trial_slice("node-01")))
    (device,) = stored["spec"]["devices"]
    for field in dropped:
        holder = device["capacity"]["vram"] if field == "requestPolicy" else device
        del holder[field]
    return stored


def test_trial_slice_is_valid() -> None:
    assert slice_rules.slice_violations(kubernetes.trial_slice("node-01")["spec"]) == ()
    assert len(kubernetes.trial_slice("n" * 253)["metadata"]["name"]) <= 253


def test_unchanged_slice_means_that_every_gate_is_on() -> None:
    (finding,) = kubernetes.kept_of_slice(kubernetes.trial_slice("node-01"), stored_slice())

    assert finding.level is Level.OK


def test_missing_consumable_capacity_is_a_problem() -> None:
    stored = stored_slice("allowMultipleAllocations", "requestPolicy")

    (finding,) = kubernetes.kept_of_slice(kubernetes.trial_slice("node-01"), stored)

    assert finding.level is Level.PROBLEM
    assert "DRAConsumableCapacity is off" in finding.found
    assert "kube-scheduler" in finding.cure


def test_missing_device_taints_is_only_a_note() -> None:
    (finding,) = kubernetes.kept_of_slice(kubernetes.trial_slice("node-01"), stored_slice("taints"))

    assert finding.level is Level.NOTE
    assert "DRADeviceTaints is off" in finding.found


def test_each_gate_that_is_off_is_a_finding() -> None:
    stored = stored_slice("taints", "allowMultipleAllocations", "requestPolicy")

    found = list(kubernetes.kept_of_slice(kubernetes.trial_slice("node-01"), stored))

    assert [finding.level for finding in found] == [Level.PROBLEM, Level.NOTE]


def test_change_that_no_gate_explains_points_to_a_webhook() -> None:
    (finding,) = kubernetes.kept_of_slice(
        kubernetes.trial_slice("node-01"), stored_slice("attributes")
    )

    assert finding.level is Level.WARNING
    assert "webhook" in finding.cure


def test_unchanged_claim_is_fine() -> None:
    (finding,) = kubernetes.kept_of_claim(kubernetes.trial_claim("default"))

    assert finding.level is Level.OK


def test_claim_that_loses_its_capacity_is_a_problem() -> None:
    stored: Any = copy.deepcopy(dict(kubernetes.trial_claim("default")))
    del stored["spec"]["devices"]["requests"][0]["exactly"]["capacity"]

    (finding,) = kubernetes.kept_of_claim(stored)

    assert finding.level is Level.PROBLEM
    assert "DRAConsumableCapacity is off" in finding.found
