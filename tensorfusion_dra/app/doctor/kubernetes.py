"""Checks of Kubernetes: versions, APIs, feature gates, nodes and allocations."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from tensorfusion_dra.app.doctor.checks import Context, Place
from tensorfusion_dra.cluster.api import RESOURCE_VERSION, resource_path, segment
from tensorfusion_dra.cluster.cluster_lists import minor_version
from tensorfusion_dra.core import names, printable
from tensorfusion_dra.core.admission import class_admission
from tensorfusion_dra.core.devices import slices
from tensorfusion_dra.core.devices.gpu import is_partition
from tensorfusion_dra.core.errors import StatusError
from tensorfusion_dra.core.finding import Finding, not_checked, note, ok, problem, warning
from tensorfusion_dra.core.kubernetes import name_rules, releases, resource_claims
from tensorfusion_dra.core.kubernetes.device_rules import (
    GATE_BINDING_CONDITIONS,
    GATE_CONSUMABLE_CAPACITY,
    GATE_DEVICE_TAINTS,
)

_SHARES_BY_DEFAULT_MINOR: Final = 36
"""The first minor version whose feature gate DRAConsumableCapacity is on by default."""


def version(context: Context) -> Iterator[Finding]:
    """Check Kubernetes' version."""
    reported, minor = context.cluster.version, context.cluster.minor_version
    if minor is not None and minor < releases.OLDEST:
        yield problem(
            "API server",
            f"Kubernetes {reported}",
            expected=f"1.{releases.OLDEST} or later",
            remedy=f"upgrade the cluster to 1.{_SHARES_BY_DEFAULT_MINOR} or later, which needs no "
            "feature gates",
        )
    else:
        yield ok("API server", f"Kubernetes {reported}")


def slice_gates(context: Context) -> Iterator[Finding]:
    """Check which fields the API server keeps of a ResourceSlice in a dry run."""
    subject = "dry run of a ResourceSlice"
    sent = trial_slice(context.settings.node_name, waits=context.settings.enforcer_wait_seconds > 0)
    body = {"apiVersion": RESOURCE_VERSION, "kind": "ResourceSlice", **sent}
    try:
        stored = context.cluster.dry_run(resource_path("resourceslices"), body)
    except StatusError as error:
        yield not_checked(
            subject,
            str(error),
            remedy="run this with the right to create ResourceSlices of this node",
        )
        return
    dropped = slices.dropped_gates(sent, stored)
    if GATE_CONSUMABLE_CAPACITY in dropped:
        yield problem(
            subject,
            f"allowMultipleAllocations and requestPolicy dropped: {GATE_CONSUMABLE_CAPACITY} "
            "is off",
            expected="every field kept, so that pods can share a GPU",
            remedy=f"turn the feature gate {GATE_CONSUMABLE_CAPACITY} on in kube-apiserver, "
            "kube-scheduler, kube-controller-manager and the kubelets (Kubernetes 1.35), "
            "or upgrade to 1.36, where it is on",
        )
    if GATE_DEVICE_TAINTS in dropped:
        yield note(
            subject,
            f"taints dropped: {GATE_DEVICE_TAINTS} is off, so only its attribute "
            f"{names.ATTR_PHASE} marks an unhealthy GPU, and no partitions of GPUs in MIG mode are "
            "published",
            expected="taints kept, which keep new pods away from an unhealthy GPU, and away from "
            "partitions that they do not ask for",
            remedy=f"turn the feature gate {GATE_DEVICE_TAINTS} on if you want taints",
        )
    if GATE_BINDING_CONDITIONS in dropped:
        yield warning(
            subject,
            f"bindingConditions dropped: {GATE_BINDING_CONDITIONS} is off, so pods are bound to a "
            "node whose enforcer is missing, and wait there",
            expected="bindingConditions kept, as enforcer-wait-seconds needs them",
            remedy=f"turn the feature gate {GATE_BINDING_CONDITIONS} on in kube-apiserver and "
            "kube-scheduler (on by default from Kubernetes 1.36 on), or set "
            "enforcer-wait-seconds=0",
        )
    if not dropped:
        yield ok(subject, "every field kept")


def trial_slice(node_name: str, *, waits: bool = False) -> Mapping[str, Any]:
    """Return a ResourceSlice for a dry run, with every field that a feature gate may drop.

    Args:
        waits: True if devices carry binding conditions while the enforcer is missing.
    """
    device: dict[str, Any] = {
        "name": "doctor",
        "attributes": {"uuid": {"string": "GPU-of-the-doctor"}},
        "capacity": {
            "vram": {
                "value": "1Gi",
                "requestPolicy": {"default": "1Gi", "validRange": {"min": "1Mi", "step": "1Mi"}},
            }
        },
        "allowMultipleAllocations": True,
        "taints": [{"key": f"{names.DRIVER}/doctor", "effect": "NoSchedule"}],
    }
    if waits:
        device["bindingConditions"] = [names.BINDING_READY]
        device["bindingFailureConditions"] = [names.BINDING_FAILED]
    return {
        "metadata": {
            "name": f"tensorfusion-dra-doctor-{node_name}"[: name_rules.SUBDOMAIN_BYTES].rstrip(
                "-."
            )
        },
        "spec": {
            "driver": names.DRIVER,
            "nodeName": node_name,
            "pool": {"name": f"doctor/{node_name}", "generation": 1, "resourceSliceCount": 1},
            "devices": [device],
        },
    }


def allocations(context: Context) -> Iterator[Finding]:
    """Check that the scheduler allocates parts of devices to claims that request parts.

    If the feature gate is on in the API server and off in the scheduler, claims get whole devices.
    A negative amount of a claim of any driver stops the scheduler from 1.38 on.
    """
    found, whole = 0, []
    judge, effect = warning, "others get room that the device does not have"
    if (context.cluster.minor_version or 0) >= releases.NO_NEGATIVE_CLAIM:
        judge, effect = problem, "no pod with claims is scheduled until the claim is gone"
    for claim in context.cluster.claims():
        for error in resource_claims.negative_amounts(claim):
            yield judge(
                "allocated claims",
                f"{error}: {effect}",
                expected="amounts of 0 or more",
                remedy="delete the claim and the pods that use it; what wrote the amount does not "
                "check requests",
            )
        ours = [
            each
            for each in resource_claims.results(claim)
            if each.get("driver") == names.DRIVER
            and not each.get("adminAccess")
            and not is_partition(str(each.get("device")))
        ]
        if ours and any(
            (each.get("capacity") or {}).get("requests") for each in resource_claims.requests(claim)
        ):
            found += 1
            if not any(each.get("consumedCapacity") for each in ours):
                whole.append(f"{claim['metadata']['namespace']}/{claim['metadata']['name']}")
    subject = f"{found} allocated claims that request a part of a GPU"
    if whole:
        yield problem(
            subject,
            f"{printable.first(whole)} got devices without consumedCapacity",
            expected="consumedCapacity in every result",
            remedy="turn the feature gate DRAConsumableCapacity on in kube-scheduler, too; then "
            "delete these pods and claims, whose allocation never changes",
        )
    elif found:
        yield ok(subject, "all of them got a part")


def multi_gpu(context: Context) -> Iterator[Finding]:
    """Check for requests for several GPUs, which can be allocated the same GPU several times.

    For each device of a request, the scheduler of 1.35 searches again from the first device, which
    may have capacity for another share (kubernetes/kubernetes#140438).
    """
    cluster = context.cluster
    minor = cluster.minor_version
    if minor is None or class_admission.keeps_cards_apart(minor):
        return
    classes = own_classes(cluster.items(resource_path("deviceclasses")))
    found = [
        f"{kind} {item['metadata']['namespace']}/{item['metadata']['name']}"
        for kind in ("ResourceClaim", "ResourceClaimTemplate")
        for item in cluster.items(resource_path(f"{kind.lower()}s"))
        if any(
            request.get("deviceClassName") in classes and int(request.get("count") or 1) > 1
            for request in resource_claims.requests(item)
        )
    ]
    if found:
        yield warning(
            "requests for several GPUs",
            f"{printable.first(found)}: one request has a count above 1, and the scheduler of "
            f"Kubernetes {cluster.version} may allocate the same GPU to it several times, despite "
            "a distinctAttribute",
            expected="one request for each GPU, with one distinctAttribute "
            f"{names.DRIVER}/{names.ATTR_UUID} over all of them",
            remedy="write the claim as hack/examples/four-gpus.yaml does, or use the annotation "
            f"{names.ANNOTATION_GPU_COUNT}; or upgrade to 1.{releases.DEVICES_ONCE}",
        )


def own_classes(classes: Iterable[Mapping[str, Any]]) -> set[str]:
    """Return the names of the DeviceClasses that select, or configure, this driver's devices."""
    return {
        each["metadata"]["name"] for each in classes if names.DRIVER in json.dumps(each.get("spec"))
    }


def nodes(context: Context) -> Iterator[Finding]:
    """Check that the nodes that this driver runs on are Ready, and their kubelets' versions."""
    found = checked_nodes(context)
    for node in found:
        name, state = node["metadata"]["name"], node.get("status") or {}
        ready = {each["type"]: each for each in state.get("conditions") or []}.get("Ready", {})
        if ready.get("status") == "True":
            yield ok(f"node {name}", "Ready")
        else:
            text = f"Ready is {ready.get('status', 'Unknown')}: {ready.get('message', '')}"
            yield problem(
                f"node {name}",
                text.rstrip(": "),
                expected="a node that is Ready",
                remedy=f"kubectl describe node {name}",
            )
        reported = str((state.get("nodeInfo") or {}).get("kubeletVersion", ""))
        minor = minor_version(reported)
        if minor is not None and minor < releases.OLDEST:
            yield problem(
                f"kubelet of {name}",
                reported,
                expected=f"v1.{releases.OLDEST} or later",
                remedy="upgrade the kubelet of this node",
            )
        else:
            yield ok(f"kubelet of {name}", reported or "reports no version")
    if context.place is Place.NODE and not found:
        yield problem(
            f"node {context.settings.node_name}",
            "the API server has no Node of this name",
            expected="the name by which the kubelet registered this node",
            remedy="set --node-name; in the DaemonSet, NODE_NAME from spec.nodeName",
        )


def checked_nodes(context: Context) -> list[dict[str, Any]]:
    """Return the Node objects that the checks cover.

    That is this node. On a workstation it is the nodes with slices of this driver, or all nodes if
    none has slices.
    """
    if context.place is Place.NODE:
        node = context.cluster.find(f"/api/v1/nodes/{segment(context.settings.node_name)}")
        return [node] if node else []
    every = context.cluster.items("/api/v1/nodes")
    publishing = {
        item["spec"].get("nodeName")
        for item in context.cluster.slices(fieldSelector=f"spec.driver={names.DRIVER}")
    }
    return [node for node in every if node["metadata"]["name"] in publishing] or every
