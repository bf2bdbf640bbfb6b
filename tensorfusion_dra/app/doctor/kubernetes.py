"""Checks of the API server, its feature gates, and the nodes."""

import json
from collections.abc import Iterator
from typing import Any

from tensorfusion_dra.app.doctor.checks import Context, Place
from tensorfusion_dra.cluster.api import RESOURCE_VERSION, resource_path, segment
from tensorfusion_dra.core import names
from tensorfusion_dra.core.devices import slices
from tensorfusion_dra.core.doctor import kubernetes
from tensorfusion_dra.core.doctor.finding import Finding, not_checked, problem
from tensorfusion_dra.core.errors import StatusError
from tensorfusion_dra.core.kubernetes.device_rules import GATE_CONSUMABLE_CAPACITY


def version(context: Context) -> Iterator[Finding]:
    """Check Kubernetes' version, and that the API group resource.k8s.io is served."""
    yield from kubernetes.version(context.cluster.find("/version") or {})
    yield from kubernetes.served(context.cluster.find("/apis/resource.k8s.io"))


def slice_gates(context: Context) -> Iterator[Finding]:
    """Check which fields the API server keeps of a ResourceSlice in a dry run.

    If it keeps those of consumable capacity, check as well that the scheduler can share devices.
    """
    cluster, waits = context.cluster, context.settings.enforcer_wait_seconds > 0
    sent = kubernetes.trial_slice(context.settings.node_name, waits=waits)
    body = {"apiVersion": RESOURCE_VERSION, "kind": "ResourceSlice", **sent}
    try:
        stored = cluster.dry_run(resource_path("resourceslices"), body)
    except StatusError as error:
        yield not_checked(
            "dry run of a ResourceSlice",
            str(error),
            cure="run this with the right to create ResourceSlices of this node",
        )
        return
    yield from kubernetes.kept_of_slice(sent, stored)
    if GATE_CONSUMABLE_CAPACITY not in slices.dropped_gates(sent, stored):
        yield from kubernetes.scheduler(cluster.find("/version") or {})


def allocations(context: Context) -> Iterator[Finding]:
    """Check that the scheduler allocates parts of devices to claims that request parts."""
    yield from kubernetes.shares(context.cluster.claims())


def multi_gpu(context: Context) -> Iterator[Finding]:
    """Check for claims and templates whose request for several GPUs this scheduler mishandles."""
    cluster = context.cluster
    stored = [
        {**item, "kind": kind}
        for kind, path in (
            ("ResourceClaim", "resourceclaims"),
            ("ResourceClaimTemplate", "resourceclaimtemplates"),
        )
        for item in cluster.items(resource_path(path))
    ]
    classes = {
        str(item["metadata"]["name"])
        for item in cluster.items(resource_path("deviceclasses"))
        if names.DRIVER in json.dumps(item.get("spec"))
    }
    yield from kubernetes.one_request_for_several(cluster.find("/version") or {}, stored, classes)


def nodes(context: Context) -> Iterator[Finding]:
    """Check the Node objects and kubelets of the nodes that this driver runs on."""
    found = checked_nodes(context)
    for node in found:
        yield from kubernetes.ready(node)
        yield from kubernetes.kubelet(node)
    if context.place is Place.NODE and not found:
        name = context.settings.node_name
        yield problem(
            f"node {name}",
            "the API server has no Node of this name",
            expected="the name by which the kubelet registered this node",
            cure="set --node-name; in the DaemonSet, NODE_NAME from spec.nodeName",
        )


def checked_nodes(context: Context) -> list[dict[str, Any]]:
    """Return the Node objects that the checks cover.

    That is this node. On a workstation it is the nodes with slices of this driver, or all nodes if
    none has slices.
    """
    if context.place is Place.NODE:
        path = f"/api/v1/nodes/{segment(context.settings.node_name)}"
        return list(filter(None, [context.cluster.find(path)]))
    every = context.cluster.items("/api/v1/nodes")
    slices = context.cluster.slices(fieldSelector=f"spec.driver={names.DRIVER}")
    publishing = {item["spec"].get("nodeName") for item in slices}
    return [node for node in every if node["metadata"]["name"] in publishing] or every
