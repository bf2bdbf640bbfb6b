"""Findings about Kubernetes: versions, feature gates, nodes and allocations."""

import copy
from collections.abc import Iterable
from typing import Any

import pytest

from dra_simulator.api import object_rules
from tensorfusion_dra.core.doctor import kubernetes
from tensorfusion_dra.core.doctor.finding import Finding, Level
from tests.support import findings
from tests.support.findings import Expected

DRIVER = "tensor-fusion.ai.dra-driver"
OK = (Level.OK, "")


def of_kubelet(version: str) -> dict[str, Any]:
    info = {"kubeletVersion": version}
    return {"metadata": {"name": "node-01"}, "status": {"nodeInfo": info}}


def node(*conditions: dict[str, str]) -> dict[str, Any]:
    return {"metadata": {"name": "node-01"}, "status": {"conditions": list(conditions)}}


def of_versions(*served: str) -> dict[str, Any]:
    return {"versions": [{"version": version} for version in served]}


def claim_for_a_part(*results: dict[str, Any], asks: bool = True) -> dict[str, Any]:
    exactly = {"capacity": {"requests": {"vram": "1Gi"}}} if asks else {}
    return {
        "metadata": {"namespace": "default", "name": "a"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
        "status": {"allocation": {"devices": {"results": list(results)}}},
    }


PARTS = [
    claim_for_a_part({"driver": DRIVER, "consumedCapacity": {"vram": "1Gi"}}),
    claim_for_a_part({"driver": DRIVER}, asks=False),
    claim_for_a_part({"driver": "gpu.example.com"}),
    claim_for_a_part({"driver": DRIVER, "adminAccess": True}),
]


def several(
    count: int, *, device_class: str = "tensor-fusion.ai", kind: str = "ResourceClaim"
) -> Any:
    exactly = {"deviceClassName": device_class, "count": count}
    spec: dict[str, Any] = {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}
    if kind == "ResourceClaimTemplate":
        spec = {"spec": spec}
    return {"kind": kind, "metadata": {"namespace": "a", "name": "train"}, "spec": spec}


def several_in(version: str, *stored: Any) -> Iterable[Finding]:
    return kubernetes.one_request_for_several({"gitVersion": version}, stored, {"tensor-fusion.ai"})


ALTERNATIVE = {
    "metadata": {"namespace": "a", "name": "train"},
    "spec": {
        "devices": {
            "requests": [{"firstAvailable": [{"deviceClassName": "tensor-fusion.ai", "count": 2}]}]
        }
    },
}


def kept_without(*dropped: str) -> Iterable[Finding]:
    """Judge a slice that the API server stores without these fields."""
    sent = kubernetes.trial_slice("node-01")
    stored: Any = copy.deepcopy(dict(sent))
    (device,) = stored["spec"]["devices"]
    for field in dropped:
        holder = device["capacity"]["vram"] if field == "requestPolicy" else device
        del holder[field]
    return kubernetes.kept_of_slice(sent, stored)


SHARING = ("allowMultipleAllocations", "requestPolicy")
SHARING_OFF = (Level.PROBLEM, "DRAConsumableCapacity is off")


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (kubernetes.version({"gitVersion": "v1.33.9"}), [(Level.PROBLEM, "Kubernetes v1.33.9")]),
        (kubernetes.version({"major": "1", "minor": "33+"}), [(Level.PROBLEM, "1.33+")]),
        (kubernetes.version({"gitVersion": "v1.34.0"}), [OK]),
        (kubernetes.version({"gitVersion": "v1.36.2-gke.100"}), [OK]),
        (kubernetes.version({"gitVersion": "v1.40.0"}), [OK]),
        (kubernetes.version({"gitVersion": "v2.0.0"}), [(Level.NOTE, "v2.0.0")]),
        (kubernetes.scheduler({"gitVersion": "v1.34.8"}), [(Level.WARNING, "only the first card")]),
        (kubernetes.scheduler({"gitVersion": "v1.35.0"}), []),
        (kubernetes.served(of_versions("v1")), [(Level.OK, "v1 is used")]),
        (kubernetes.served(of_versions("v1beta2", "v1beta1")), [(Level.OK, "v1beta2 is used")]),
        (kubernetes.served(of_versions("v1beta1")), [(Level.PROBLEM, "v1beta1")]),
        (kubernetes.served(None), [(Level.PROBLEM, "not served")]),
        (kubernetes.kubelet(of_kubelet("v1.33.4")), [(Level.PROBLEM, "v1.34 or later")]),
        (kubernetes.kubelet(of_kubelet("v1.34.1")), [(Level.WARNING, "can stop calling")]),
        (kubernetes.kubelet(of_kubelet("v1.34.2")), [OK]),
        (kubernetes.kubelet(of_kubelet("")), [(Level.OK, "reports no version")]),
        (kubernetes.ready(node({"type": "Ready", "status": "True"})), [OK]),
        (
            kubernetes.ready(node({"type": "Ready", "status": "False", "message": "no CNI"})),
            [(Level.PROBLEM, "Ready is False: no CNI")],
        ),
        (kubernetes.ready(node()), [(Level.NOTE, "no condition Ready")]),
        (
            kubernetes.shares([claim_for_a_part({"driver": DRIVER})], DRIVER),
            [(Level.PROBLEM, "default/a got devices")],
        ),
        (kubernetes.shares(PARTS, DRIVER), [OK]),
        (kubernetes.shares(PARTS[1:], DRIVER), []),
        (
            several_in("v1.35.6", several(4)),
            [(Level.WARNING, "ResourceClaim a/train: one request has a count")],
        ),
        (
            several_in("v1.35.6", several(4, kind="ResourceClaimTemplate")),
            [(Level.WARNING, "one distinctAttribute tensor-fusion.ai.dra-driver/uuid over all")],
        ),
        (several_in("v1.34.2", ALTERNATIVE), [(Level.WARNING, "object a/train")]),
        (several_in("v1.35.6", several(1), several(4, device_class="other")), []),
        (several_in("v1.36.2", several(4)), []),
        (several_in("", several(4)), []),
        (kept_without(), [OK]),
        (kept_without(*SHARING), [SHARING_OFF]),
        (kept_without("taints"), [(Level.NOTE, "DRADeviceTaints is off")]),
        (kept_without("taints", *SHARING), [SHARING_OFF, (Level.NOTE, "DRADeviceTaints is off")]),
        (kept_without("attributes"), [(Level.WARNING, "look for an admission webhook")]),
    ],
)
def test_versions_nodes_claims_and_feature_gates(
    found: Iterable[Finding], expected: list[Expected]
) -> None:
    findings.check(found, expected)


def test_trial_slice_is_valid() -> None:
    assert object_rules.violations(kubernetes.trial_slice("node-01")["spec"]) == ()
    assert len(kubernetes.trial_slice("n" * 253)["metadata"]["name"]) <= 253
