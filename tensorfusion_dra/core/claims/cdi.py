"""CDI specs: what the container runtime adds to the containers of a prepared claim.

A spec has one CDI device for each share (its device nodes), one for each request (its limits), one
more for each request with device metadata (the file with it), and edits of the whole spec (what
every container with a card needs). Format rules: Container Device Interface, SPEC.md and its
versions table.

Example: request `gpu` of the claim with UID U has share S1 of gpu-0 and share S2 of gpu-1. The
spec has three devices:

    U-gpu-gpu-0-S1    /dev/nvidia0, and a variable that describes the share
    U-gpu-gpu-1-S2    /dev/nvidia1, and a variable that describes the share
    U-gpu:limits      the enforcer's variables and mounts

The kubelet gets the first and the third name for share S1, and the second for S2, so a container
that uses the request gets each of them once. With device metadata there is a fourth device,
`U-gpu:metadata`, whose name goes with S1 as well.
"""

import json
from collections.abc import Iterable
from typing import Any, Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims import device_metadata
from tensorfusion_dra.core.claims import enforcer as enforcer_rules
from tensorfusion_dra.core.claims.enforcer import Enforcer
from tensorfusion_dra.core.claims.prepared import PreparedClaim, PreparedShare
from tensorfusion_dra.core.devices.gpu import device_name
from tensorfusion_dra.core.kubernetes import quantity, untyped_json

_VERSION: Final = "0.5.0"
"""First version in which a device name may start with a digit, as most UIDs of claims do, and a
device node has a hostPath."""


def spec(claim: PreparedClaim, enforcer: Enforcer, *, metadata_folder: str = "") -> dict[str, Any]:
    """Return the claim's spec.

    Args:
        claim: The claim.
        enforcer: The enforcer that the claim names.
        metadata_folder: Folder of the files with devices' metadata on the host, for a claim with
            metadata.
    """
    devices: list[dict[str, Any]] = [
        {"name": share_device(claim, share), "containerEdits": _share_edits(claim, share)}
        for share in claim.shares
    ]
    for request, shares in enforcer_rules.enforced(claim).items():
        edits = enforcer.edits(claim, shares)
        found: dict[str, Any] = {"env": [f"{name}={value}" for name, value in edits.env.items()]}
        if edits.mounts:
            found["mounts"] = [mount.as_cdi() for mount in edits.mounts]
        if edits.hooks:
            found["hooks"] = [hook.as_cdi() for hook in edits.hooks]
        devices.append({"name": request_device(claim, request), "containerEdits": found})
    if claim.metadata is not None:
        mounts = device_metadata.mounts(claim, claim.metadata, metadata_folder)
        devices += [
            {"name": metadata_device(claim, name), "containerEdits": {"mounts": [mount.as_cdi()]}}
            for name, mount in mounts.items()
        ]
    common: dict[str, Any] = {
        "env": [
            f"{names.ENV_NVIDIA_VISIBLE_DEVICES}={names.NVIDIA_VISIBLE_DEVICES_VOID}",
            f"{names.ENV_CUDA_DEVICE_ORDER}={names.CUDA_DEVICE_ORDER_PCI}",
        ]
    }
    if claim.common_nodes:
        common["deviceNodes"] = _nodes(claim.common_nodes)
    if claim.driver_mounts:
        common["mounts"] = [mount.as_cdi() for mount in claim.driver_mounts]
    return {
        "cdiVersion": _VERSION,
        "kind": names.CDI_KIND,
        "devices": devices,
        "containerEdits": common,
    }


def devices_of(document: object) -> frozenset[str] | None:
    """Return the devices of the shares in a claim's spec; None if the value is not such a spec."""
    try:
        spec: Any = document
        texts = [
            text.partition("=")[2]
            for device in spec["devices"]
            for text in device["containerEdits"].get("env", ())
            if text.startswith(names.ENV_SHARE_PREFIX)
        ]
        return frozenset(device_name(json.loads(text)["uuid"]) for text in texts) or None
    except (KeyError, TypeError, AttributeError, ValueError):
        return None


def ids_by_share(claim: PreparedClaim) -> tuple[tuple[str, ...], ...]:
    """Return the qualified CDI device names that the kubelet passes on, in the order of the shares.

    The names of one share, in order:

    1. The share's own device. The kubelet uses the first name as the device's identity in the
       pod's health.
    2. The request's device, only with the request's first share: the kubelet and older runtimes
       do not remove duplicates.
    3. The request's metadata, if it has any, in the same way.
    4. The card's device in the spec of NVIDIA's container toolkit, if the node has one, only with
       the request's first share of that card.
    """
    remaining_requests = set(enforcer_rules.enforced(claim))
    remaining_metadata = set(device_metadata.requests(claim)) if claim.metadata else set()
    named: set[tuple[str, str]] = set()
    ids_of_shares = []
    for share in claim.shares:
        ids = [f"{names.CDI_KIND}={share_device(claim, share)}"]
        if share.request in remaining_requests:
            remaining_requests.remove(share.request)
            ids.append(f"{names.CDI_KIND}={request_device(claim, share.request)}")
        if share.request in remaining_metadata:
            remaining_metadata.remove(share.request)
            ids.append(f"{names.CDI_KIND}={metadata_device(claim, share.request)}")
        if share.toolkit_device and (share.request, share.toolkit_device) not in named:
            named.add((share.request, share.toolkit_device))
            ids.append(share.toolkit_device)
        ids_of_shares.append(tuple(ids))
    return tuple(ids_of_shares)


def share_device(claim: PreparedClaim, share: PreparedShare) -> str:
    """Return the CDI device name of a share, unique on the node."""
    name = f"{claim.ref.uid}-{share.request}-{share.device}"
    return name if share.share_id is None else f"{name}-{share.share_id}"


def request_device(claim: PreparedClaim, request: str) -> str:
    """Return the CDI device name of a request; the colon distinguishes it from names of shares."""
    return f"{claim.ref.uid}-{request}:limits"


def metadata_device(claim: PreparedClaim, request: str) -> str:
    """Return the CDI device name of a request's metadata; admin access has one, too."""
    return f"{claim.ref.uid}-{request}:metadata"


def _share_edits(claim: PreparedClaim, share: PreparedShare) -> dict[str, Any]:
    """Return the edits of a share: its device nodes, and a variable that describes the share.

    A simulated card has no device nodes. The variable keeps its edits from being empty, which
    runtimes refuse.
    """
    key = share.share_id or f"{claim.ref.uid}_{claim.shares.index(share)}"
    description: dict[str, Any] = {"uuid": share.gpu_uuid, "request": share.request}
    if share.limit is not None:
        description.update(share.limit.as_json())
        description.update(quantity.texts(share.consumed))
    variable = names.ENV_SHARE_PREFIX + key.upper().replace("-", "_")
    text = untyped_json.compact_json(description)
    edits: dict[str, Any] = {"env": [f"{variable}={text}"]}
    if share.device_nodes:
        edits["deviceNodes"] = _nodes(share.device_nodes)
    return edits


def _nodes(paths: Iterable[str]) -> list[dict[str, str]]:
    """Return CDI device nodes of these host paths; in the container they are always under /dev.

    Those of partitions are in a folder there.
    """
    nodes = []
    for host_path in paths:
        folder, _, name = host_path.rpartition("/")
        below = f"{names.CAPABILITIES_FOLDER}/"
        path = f"/dev/{below if f'{folder}/'.endswith(f'/{below}') else ''}{name}"
        nodes.append({"path": path} if path == host_path else {"path": path, "hostPath": host_path})
    return nodes
