"""Findings about the ResourceSlices that nodes publish."""

from collections.abc import Collection, Iterator, Sequence
from typing import Final

from tensorfusion_dra.core.devices.slices import Slice
from tensorfusion_dra.core.doctor.finding import Finding, ok, problem, warning

_MOST_SHOWN: Final = 5


def of_node(slices: Sequence[Slice], *, node_name: str) -> Iterator[Finding]:
    """Judge this driver's slices of one node."""
    if slices:
        yield from findings(slices, nodes=None)
        return
    yield problem(
        f"ResourceSlices of node {node_name}",
        "none",
        expected="at least one: the kubelet deletes the slices of a plugin that is gone for 30 s",
        cure="check the node plugin's log for publish_retried, and whether the kubelet "
        "registered it",
    )


def of_cluster(slices: Sequence[Slice], *, nodes: Collection[str]) -> Iterator[Finding]:
    """Judge this driver's slices of all nodes.

    Args:
        slices: This driver's slices.
        nodes: The names of the cluster's nodes.
    """
    if slices:
        yield from findings(slices, nodes=nodes)
        return
    yield problem(
        "ResourceSlices of this driver",
        "none on any node",
        expected="at least one on each node with GPUs",
        cure="install the DaemonSet; if it is there: kubectl get pods -A -l "
        "app.kubernetes.io/name=tensorfusion-dra, and run tensorfusion-dra doctor on a node",
    )


def findings(slices: Sequence[Slice], *, nodes: Collection[str] | None) -> Iterator[Finding]:
    """Yield one finding for each fault, or a single one if there is none."""
    troubles = [*_incomplete(slices), *_exclusive(slices), *_unowned(slices)]
    if nodes is not None:
        troubles += _left_behind(slices, nodes)
    devices = sum(len(item["spec"].get("devices") or []) for item in slices)
    found_on = {item["spec"].get("nodeName") for item in slices}
    yield from troubles or [
        ok(
            "ResourceSlices of this driver",
            f"{len(slices)} on {len(found_on)} nodes, with {devices} devices",
        )
    ]


def _incomplete(slices: Sequence[Slice]) -> Iterator[Finding]:
    pools: dict[str, list[Slice]] = {}
    for item in slices:
        pools.setdefault(str(item["spec"]["pool"]["name"]), []).append(item)
    for name, items in sorted(pools.items()):
        generation = max(int(item["spec"]["pool"]["generation"]) for item in items)
        current = [i for i in items if i["spec"]["pool"]["generation"] == generation]
        wanted = current[0]["spec"]["pool"]["resourceSliceCount"]
        if len(current) != wanted:
            yield warning(
                f"pool {name}",
                f"{len(current)} slices of generation {generation}",
                expected=f"{wanted}: the scheduler ignores an incomplete pool",
                cure="wait a moment; if it persists, restart the node plugin of this node",
            )


def _exclusive(slices: Sequence[Slice]) -> Iterator[Finding]:
    devices = [device for item in slices for device in item["spec"].get("devices") or []]
    whole = [device["name"] for device in devices if not device.get("allowMultipleAllocations")]
    if whole:
        yield problem(
            "devices of this driver",
            f"{len(whole)} of {len(devices)} cannot be shared: {', '.join(whole[:_MOST_SHOWN])}",
            expected="allowMultipleAllocations on each, which the API server keeps with the "
            "feature gate DRAConsumableCapacity",
            cure="turn the feature gate on; the node plugins then publish again by themselves",
        )


def _unowned(slices: Sequence[Slice]) -> Iterator[Finding]:
    unowned = [
        item["metadata"]["name"]
        for item in slices
        if not any(
            owner.get("kind") == "Node" and owner.get("name") == item["spec"].get("nodeName")
            for owner in item["metadata"].get("ownerReferences") or []
        )
    ]
    if unowned:
        yield warning(
            "ResourceSlices of this driver",
            f"without their Node as owner: {', '.join(unowned[:_MOST_SHOWN])}",
            expected="owned by the Node, so that they are deleted with it",
            cure="find the other writer: kubectl get resourceslice NAME -o yaml "
            "--show-managed-fields",
        )


def _left_behind(slices: Sequence[Slice], nodes: Collection[str]) -> Iterator[Finding]:
    gone = sorted({str(item["spec"].get("nodeName")) for item in slices} - set(nodes))
    if gone:
        yield warning(
            "ResourceSlices of this driver",
            f"of nodes that do not exist: {', '.join(gone[:_MOST_SHOWN])}",
            expected="none: the garbage collector removes them with their Node",
            cure="check kube-controller-manager, or delete them",
        )
