"""The CDI spec of a prepared claim: what the container runtime adds to its containers.

Layout: one CDI device for each share (its device nodes), one for each request (its limits), and
edits of the whole spec (what every container with a card needs). Format rules: Container Device
Interface, SPEC.md and its versions table.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims.enforcers import enforcer as enforcers
from tensorfusion_dra.core.claims.enforcers.enforcer import Edits, Enforcer
from tensorfusion_dra.core.claims.prepared import PreparedClaim, PreparedShare

_BASE_VERSION: Final = "0.3.0"
_LATER_VERSION: Final = "0.5.0"
"""Since this version a device name may start with a digit, and a device node has a hostPath."""


def spec(claim: PreparedClaim, enforcer: Enforcer) -> dict[str, Any] | None:
    """The claim's spec; None if it holds none of our devices, since a spec needs a device."""
    if not claim.shares:
        return None
    devices: list[dict[str, Any]] = [
        {"name": share_device(claim, share), "containerEdits": _share_edits(claim, share)}
        for share in claim.shares
    ]
    devices += [
        {
            "name": request_device(claim, request),
            "containerEdits": _request_edits(enforcer.edits(claim, shares)),
        }
        for request, shares in enforcers.enforced(claim).items()
    ]
    everywhere: dict[str, Any] = {
        "env": [
            f"{names.ENV_NVIDIA_VISIBLE_DEVICES}={names.NVIDIA_VISIBLE_DEVICES_VOID}",
            f"{names.ENV_CUDA_DEVICE_ORDER}={names.CUDA_DEVICE_ORDER_PCI}",
        ]
    }
    if claim.common_nodes:
        everywhere["deviceNodes"] = _nodes(claim.common_nodes)
    if claim.driver_mounts:
        everywhere["mounts"] = [mount.as_cdi() for mount in claim.driver_mounts]
    document = {"kind": names.CDI_KIND, "devices": devices, "containerEdits": everywhere}
    return {"cdiVersion": _lowest_version(document), **document}


def ids_by_share(claim: PreparedClaim) -> tuple[tuple[str, ...], ...]:
    """The qualified CDI device names that the kubelet passes on, in the order of the shares.

    The first is the share's own: the kubelet takes it for the device's identity in the pod's
    health. The request's stands with the request's first share only, because the kubelet and
    older runtimes do not remove duplicates. The last is the card's in the spec of NVIDIA's
    container toolkit, where the node has one, with the request's first share of the card.
    """
    waiting = set(enforcers.enforced(claim))
    named: set[tuple[str, str]] = set()
    answer = []
    for share in claim.shares:
        ids = [f"{names.CDI_KIND}={share_device(claim, share)}"]
        if share.request in waiting:
            waiting.remove(share.request)
            ids.append(f"{names.CDI_KIND}={request_device(claim, share.request)}")
        if share.toolkit_device and (share.request, share.toolkit_device) not in named:
            named.add((share.request, share.toolkit_device))
            ids.append(share.toolkit_device)
        answer.append(tuple(ids))
    return tuple(answer)


def share_device(claim: PreparedClaim, share: PreparedShare) -> str:
    """The CDI device name of a share, unique on the node."""
    name = f"{claim.ref.uid}-{share.request}-{share.device}"
    return name if share.share_id is None else f"{name}-{share.share_id}"


def request_device(claim: PreparedClaim, request: str) -> str:
    """The CDI device name of a request; the colon keeps it apart from those of shares."""
    return f"{claim.ref.uid}-{request}:limits"


def _share_edits(claim: PreparedClaim, share: PreparedShare) -> dict[str, Any]:
    """The share's nodes, and the share itself in a variable of its own.

    The variable is also what keeps the edits of a simulated card from being empty, which a
    runtime refuses.
    """
    index = claim.shares.index(share)
    key = share.share_id or f"{claim.ref.uid}_{index}"
    told: dict[str, Any] = {"uuid": share.gpu_uuid, "request": share.request}
    if share.limit is not None:
        told.update(share.limit.as_json())
        told.update({name: str(amount) for name, amount in share.consumed.items()})
    variable = names.ENV_SHARE_PREFIX + key.upper().replace("-", "_")
    edits: dict[str, Any] = {"env": [f"{variable}={_compact(told)}"]}
    if share.device_nodes:
        edits["deviceNodes"] = _nodes(share.device_nodes)
    return edits


def _request_edits(edits: Edits) -> dict[str, Any]:
    found: dict[str, Any] = {"env": [f"{name}={value}" for name, value in edits.env.items()]}
    if edits.mounts:
        found["mounts"] = [mount.as_cdi() for mount in edits.mounts]
    return found


def _lowest_version(spec: Mapping[str, Any]) -> str:
    """Older runtimes refuse newer versions, so none is asked for that is not needed."""
    digit_first = any(device["name"][0].isdigit() for device in spec["devices"])
    edits = [spec["containerEdits"], *(device["containerEdits"] for device in spec["devices"])]
    elsewhere = any("hostPath" in node for each in edits for node in each.get("deviceNodes", ()))
    return _LATER_VERSION if digit_first or elsewhere else _BASE_VERSION


def _nodes(paths: Iterable[str]) -> list[dict[str, str]]:
    """Device nodes of the host, in the container always under /dev."""
    nodes = []
    for host_path in paths:
        path = f"/dev/{host_path.rpartition('/')[2]}"
        nodes.append({"path": path} if path == host_path else {"path": path, "hostPath": host_path})
    return nodes


def _compact(value: Mapping[str, object]) -> str:
    return json.dumps(value, separators=(",", ":"))
