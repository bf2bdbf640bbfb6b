"""Findings about Kubernetes: versions, APIs, feature gates, nodes and allocations."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from tensorfusion_dra.core import names, printable
from tensorfusion_dra.core.devices import slices
from tensorfusion_dra.core.doctor.finding import Finding, note, ok, problem, warning
from tensorfusion_dra.core.kubernetes import resource_claims
from tensorfusion_dra.core.kubernetes.device_rules import (
    GATE_BINDING_CONDITIONS,
    GATE_CONSUMABLE_CAPACITY,
    GATE_DEVICE_TAINTS,
    normal,
)

OLDEST_MINOR: Final = 34
SHARES_BY_DEFAULT_MINOR: Final = 36
"""The first minor version whose feature gate DRAConsumableCapacity is on by default."""

_DEADLOCKING_KUBELETS: Final = ("v1.34.0", "v1.34.1")
"""These deadlock after a plugin was idle for 30 minutes (Kubernetes' CHANGELOG-1.34)."""

_FIRST_CARD_MINOR: Final = 34
"""Its allocator looks up devices by the wrong index (kubernetes/kubernetes#133705)."""


def version(answer: Mapping[str, Any]) -> Iterator[Finding]:
    """Judge the API server's version, the document at /version."""
    reported = str(answer.get("gitVersion", ""))
    minor = minor_version(reported)
    if minor is not None and minor < OLDEST_MINOR:
        yield problem(
            "API server",
            f"Kubernetes {reported}",
            expected=f"1.{OLDEST_MINOR} or later, which serves resource.k8s.io/v1",
            cure=f"upgrade the cluster to 1.{OLDEST_MINOR}, or to 1.{SHARES_BY_DEFAULT_MINOR}, "
            "which needs no feature gates",
        )
    else:
        yield ok("API server", f"Kubernetes {reported}")


def scheduler(answer: Mapping[str, Any]) -> Iterator[Finding]:
    """Judge the scheduler's version, if it allocates parts of devices.

    Args:
        answer: The document at /version. A scheduler has the API server's version or an older one.
    """
    reported = str(answer.get("gitVersion", ""))
    if minor_version(reported) == _FIRST_CARD_MINOR:
        yield warning(
            "kube-scheduler",
            f"Kubernetes {reported} with DRAConsumableCapacity: it allocates shares of only the "
            "first card of each node, and crashes on a claim for more cards than a node has",
            expected="1.35 or later",
            cure="upgrade the control plane; until then turn DRAConsumableCapacity off, so that "
            "claims get whole cards, or use only nodes with one card and claims for one card",
        )


def served(group: Mapping[str, Any] | None) -> Iterator[Finding]:
    """Judge the served versions of the API group resource.k8s.io.

    Args:
        group: The document at /apis/resource.k8s.io; None if there is none.
    """
    subject = "API group resource.k8s.io"
    versions = [str(item.get("version")) for item in (group or {}).get("versions") or []]
    yield (
        ok(subject, f"{', '.join(versions)}; v1 is used")
        if "v1" in versions
        else problem(
            subject,
            ", ".join(versions) or "not served",
            expected="v1",
            cure="upgrade the cluster, or start kube-apiserver without "
            "--runtime-config=resource.k8s.io/v1=false",
        )
    )


def kubelet(node: Mapping[str, Any]) -> Iterator[Finding]:
    """Judge the version of the kubelet that a Node object reports."""
    name = node["metadata"]["name"]
    reported = str(node_info(node).get("kubeletVersion", ""))
    subject = f"kubelet of {name}"
    minor = minor_version(reported)
    if minor is not None and minor < OLDEST_MINOR:
        yield problem(
            subject,
            reported,
            expected=f"v1.{OLDEST_MINOR} or later, which calls DRA plugins by v1",
            cure="upgrade the kubelet of this node",
        )
    elif reported in _DEADLOCKING_KUBELETS:
        yield warning(
            subject,
            reported,
            expected="v1.34.2 or later: this one can stop calling a plugin that was idle for "
            "30 minutes",
            cure="upgrade the kubelet; until then restart it when pods hang in ContainerCreating",
        )
    else:
        yield ok(subject, reported or "reports no version")


def ready(node: Mapping[str, Any]) -> Iterator[Finding]:
    """Judge whether a node is Ready, so that pods are scheduled to it."""
    name = node["metadata"]["name"]
    conditions = (node.get("status") or {}).get("conditions") or []
    state: Mapping[str, Any] = next((c for c in conditions if c.get("type") == "Ready"), {})
    status = state.get("status", "Unknown")
    yield (
        ok(f"node {name}", "Ready")
        if status == "True"
        else problem(
            f"node {name}",
            f"Ready is {status}: {state.get('message', '')}".rstrip(": "),
            expected="a node that is Ready",
            cure=f"kubectl describe node {name}",
        )
    )


def node_info(node: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a Node's `status.nodeInfo`: versions of its software."""
    found: Mapping[str, Any] = (node.get("status") or {}).get("nodeInfo") or {}
    return found


def minor_version(text: str) -> int | None:
    """Return 36 for v1.36.2 and 1.36+; None if the text is not a version of Kubernetes 1."""
    found = re.match(r"v?1\.([0-9]+)", text)
    return int(found[1]) if found else None


def shares(claims: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """Judge whether the scheduler allocated parts of devices to claims that request parts.

    If the feature gate is on in the API server and off in the scheduler, claims get whole devices.

    Args:
        claims: ResourceClaims; only those with devices of this driver count.
    """
    partial = [
        claim
        for claim in claims
        if _results(claim)
        and any(
            (each.get("capacity") or {}).get("requests") for each in resource_claims.requests(claim)
        )
    ]
    whole = [
        f"{claim['metadata']['namespace']}/{claim['metadata']['name']}"
        for claim in partial
        if not any(result.get("consumedCapacity") for result in _results(claim))
    ]
    subject = f"{len(partial)} allocated claims that request a part of a GPU"
    if whole:
        yield problem(
            subject,
            f"{printable.first(whole)} got devices without consumedCapacity",
            expected="consumedCapacity in every result",
            cure="turn the feature gate DRAConsumableCapacity on in kube-scheduler, too; then "
            "delete these pods and claims, whose allocation never changes",
        )
    elif partial:
        yield ok(subject, "all of them got a part")


def one_request_for_several(
    answer: Mapping[str, Any],
    stored: Sequence[Mapping[str, Any]],
    classes: Collection[str],
) -> Iterator[Finding]:
    """Judge requests for several GPUs, which can be allocated the same GPU several times.

    For each device of a request, the schedulers of 1.34 and 1.35 search again from the first
    device, which may have capacity for another share (kubernetes/kubernetes#140438).

    Args:
        answer: The document at /version. A scheduler has the API server's version or an older one.
        stored: ResourceClaims and ResourceClaimTemplates.
        classes: Names of the DeviceClasses with this driver's GPUs.
    """
    reported = str(answer.get("gitVersion", ""))
    minor = minor_version(reported)
    if minor is None or minor >= SHARES_BY_DEFAULT_MINOR:
        return
    found = [
        f"{item.get('kind') or 'object'} {item['metadata']['namespace']}/{item['metadata']['name']}"
        for item in stored
        if any(
            request.get("deviceClassName") in classes and int(request.get("count") or 1) > 1
            for request in resource_claims.requests(item)
        )
    ]
    if found:
        yield warning(
            "requests for several GPUs",
            f"{printable.first(found)}: one request has a "
            f"count above 1, and the scheduler of Kubernetes {reported} may allocate the same GPU "
            "to it several times, despite a distinctAttribute",
            expected="one request for each GPU, with one distinctAttribute "
            f"{names.DRIVER}/{names.ATTR_UUID} over all of them",
            cure="write the claim as hack/examples/four-gpus.yaml does, or use the annotation "
            f"{names.ANNOTATION_GPU_COUNT}; or upgrade to 1.{SHARES_BY_DEFAULT_MINOR}",
        )


def _results(claim: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    found = resource_claims.results(claim)
    return [r for r in found if r.get("driver") == names.DRIVER and not r.get("adminAccess")]


TRIAL_NAME: Final = "tensorfusion-dra-doctor"

_POLICY: Final = {"default": "1Gi", "validRange": {"min": "1Mi", "step": "1Mi"}}
_DEVICE: Final[Mapping[str, Any]] = {
    "name": "doctor",
    "attributes": {"uuid": {"string": "GPU-of-the-doctor"}},
    "capacity": {"vram": {"value": "1Gi", "requestPolicy": _POLICY}},
    "allowMultipleAllocations": True,
    "taints": [{"key": f"{names.DRIVER}/doctor", "effect": "NoSchedule"}],
}
_BINDING: Final = {
    "bindingConditions": [names.BINDING_READY],
    "bindingFailureConditions": [names.BINDING_FAILED],
}
_EVERYWHERE: Final = (
    f"turn the feature gate {GATE_CONSUMABLE_CAPACITY} on in kube-apiserver, kube-scheduler, "
    "kube-controller-manager and the kubelets (Kubernetes 1.34 and 1.35), or upgrade to 1.36, "
    "where it is on"
)


def trial_slice(node_name: str, *, waits: bool = False) -> Mapping[str, Any]:
    """Return a ResourceSlice for a dry run, with every field that a feature gate may drop.

    Args:
        waits: True if devices carry binding conditions while the enforcer is missing.
    """
    device = {**_DEVICE, **(_BINDING if waits else {})}
    return {
        "metadata": {"name": f"{TRIAL_NAME}-{node_name}"[:253].rstrip("-.")},
        "spec": {
            "driver": names.DRIVER,
            "nodeName": node_name,
            "pool": {"name": f"doctor/{node_name}", "generation": 1, "resourceSliceCount": 1},
            "devices": [device],
        },
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
    if GATE_BINDING_CONDITIONS in dropped:
        yield warning(
            subject,
            f"bindingConditions dropped: {GATE_BINDING_CONDITIONS} is off, so pods are bound to a "
            "node whose enforcer is missing, and wait there",
            expected="bindingConditions kept, as enforcer-wait-seconds needs them",
            cure=f"turn the feature gate {GATE_BINDING_CONDITIONS} on in kube-apiserver and "
            "kube-scheduler (on by default from Kubernetes 1.36 on), or set "
            "enforcer-wait-seconds=0",
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
