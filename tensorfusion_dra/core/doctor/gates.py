"""Findings about the API server's feature gates, derived from dry runs.

No API lists the gates. If a gate is off, the API server silently drops the gate's fields and stores
the rest of the object. A dry run returns the object as it would be stored.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.devices import slices
from tensorfusion_dra.core.doctor.finding import Finding, note, ok, problem, warning
from tensorfusion_dra.core.kubernetes.slice_normal_form import (
    GATE_CONSUMABLE_CAPACITY,
    GATE_DEVICE_TAINTS,
    normal,
)

TRIAL_NAME: Final = "tensorfusion-dra-doctor"

_POLICY: Final = {"default": "1Gi", "validRange": {"min": "1Mi", "step": "1Mi"}}
_DEVICE: Final[Mapping[str, Any]] = {
    "name": "doctor",
    "attributes": {"uuid": {"string": "GPU-of-the-doctor"}},
    "capacity": {"vram": {"value": "1Gi", "requestPolicy": _POLICY}},
    "allowMultipleAllocations": True,
    "taints": [{"key": f"{names.DRIVER}/doctor", "effect": "NoSchedule"}],
}
_EVERYWHERE: Final = (
    f"turn the feature gate {GATE_CONSUMABLE_CAPACITY} on in kube-apiserver, kube-scheduler, "
    "kube-controller-manager and the kubelets (Kubernetes 1.34 and 1.35), or upgrade to 1.36, "
    "where it is on"
)


def trial_slice(node_name: str) -> Mapping[str, Any]:
    """Return a ResourceSlice for a dry run, with every field that a feature gate may drop."""
    return {
        "metadata": {"name": f"{TRIAL_NAME}-{node_name}"[:253].rstrip("-.")},
        "spec": {
            "driver": names.DRIVER,
            "nodeName": node_name,
            "pool": {"name": f"doctor/{node_name}", "generation": 1, "resourceSliceCount": 1},
            "devices": [_DEVICE],
        },
    }


def trial_claim(namespace: str) -> Mapping[str, Any]:
    """Return a ResourceClaim for a dry run, which requests a part of a device."""
    exactly = {
        "deviceClassName": names.DEVICE_CLASS,
        "capacity": {"requests": {"vram": "1Gi"}},
    }
    return {
        "metadata": {"name": TRIAL_NAME, "namespace": namespace},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
    }


def kept_of_slice(sent: Mapping[str, Any], stored: Mapping[str, Any]) -> Iterator[Finding]:
    """Judge the API server's feature gates by the result of a dry run of a slice."""
    subject = "dry run of a ResourceSlice"
    dropped = slices.dropped_gates(sent, stored)
    if GATE_CONSUMABLE_CAPACITY in dropped:
        yield problem(
            subject,
            f"allowMultipleAllocations and requestPolicy dropped: {GATE_CONSUMABLE_CAPACITY} "
            "is off",
            expected="every field kept, so that pods can share a GPU",
            cure=_EVERYWHERE,
        )
    if GATE_DEVICE_TAINTS in dropped:
        yield note(
            subject,
            f"taints dropped: {GATE_DEVICE_TAINTS} is off, so only its attribute "
            f"{names.ATTR_PHASE} marks an unhealthy GPU",
            expected="taints kept, which keep new pods away from an unhealthy GPU",
            # The scheduler of 1.34 schedules nothing before it has listed the DeviceTaintRules.
            cure=f"turn the feature gate {GATE_DEVICE_TAINTS} on if you want taints; on Kubernetes "
            "1.34 set --runtime-config=resource.k8s.io/v1alpha3=true of kube-apiserver as well, "
            "otherwise no pod is scheduled any more",
        )
    if dropped:
        return
    if normal(sent["spec"]["devices"]) == normal(stored["spec"].get("devices") or []):
        yield ok(subject, "every field kept")
    else:
        yield warning(
            subject,
            "stored differently than it was sent, which no feature gate explains",
            expected="every field kept",
            cure="look for an admission webhook or policy that changes ResourceSlices: "
            "kubectl get mutatingwebhookconfigurations,mutatingadmissionpolicies",
        )


def kept_of_claim(stored: Mapping[str, Any]) -> Iterator[Finding]:
    """Judge the API server's feature gates by the result of a dry run of a claim."""
    subject = "dry run of a ResourceClaim"
    (request,) = stored["spec"]["devices"]["requests"]
    kept = (request.get("exactly") or {}).get("capacity") or {}
    if kept.get("requests"):
        yield ok(subject, "capacity kept")
    else:
        yield problem(
            subject,
            f"capacity dropped: {GATE_CONSUMABLE_CAPACITY} is off",
            expected="every field kept, so that a claim gets the part that it requests",
            cure=_EVERYWHERE,
        )
