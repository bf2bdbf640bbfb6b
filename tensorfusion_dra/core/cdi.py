"""The CDI spec of a prepared claim: what the container runtime adds to its containers.

Layout: one CDI device for each share (its device nodes), one for each request (its limits), and
edits of the whole spec (what every container with a card needs). Format rules: Container Device
Interface, SPEC.md and its versions table.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.prepared import PreparedClaim, PreparedShare
from tensorfusion_dra.core.quantity import MIB

_BASE_VERSION: Final = "0.3.0"
_LATER_VERSION: Final = "0.5.0"
"""Since this version a device name may start with a digit, and a device node has a hostPath."""


def spec(claim: PreparedClaim) -> dict[str, Any] | None:
    """The claim's spec; None if it holds none of our devices, since a spec needs a device."""
    if not claim.shares:
        return None
    devices: list[dict[str, Any]] = [
        {"name": share_device(claim, share), "containerEdits": _share_edits(claim, share)}
        for share in claim.shares
    ]
    devices += [
        {"name": request_device(claim, request), "containerEdits": {"env": env}}
        for request, env in _env_by_request(claim).items()
    ]
    edits: dict[str, Any] = {
        "env": [f"{names.ENV_NVIDIA_VISIBLE_DEVICES}={names.NVIDIA_VISIBLE_DEVICES_VOID}"]
    }
    if claim.common_nodes:
        edits["deviceNodes"] = _nodes(claim.common_nodes)
    document = {"kind": names.CDI_KIND, "devices": devices, "containerEdits": edits}
    return {"cdiVersion": _lowest_version(document), **document}


def ids_by_share(claim: PreparedClaim) -> tuple[tuple[str, ...], ...]:
    """The qualified CDI device names that the kubelet passes on, in the order of the shares.

    The first is the share's own: the kubelet takes it for the device's identity in the pod's
    health. The request's stands with the request's first share only, because the kubelet and
    older runtimes do not remove duplicates.
    """
    with_limits = set(_env_by_request(claim))
    answer = []
    for share in claim.shares:
        ids = [share_device(claim, share)]
        if share.request in with_limits:
            with_limits.remove(share.request)
            ids.append(request_device(claim, share.request))
        answer.append(tuple(f"{names.CDI_KIND}={name}" for name in ids))
    return tuple(answer)


def share_device(claim: PreparedClaim, share: PreparedShare) -> str:
    """The CDI device name of a share, unique on the node."""
    name = f"{claim.ref.uid}-{share.request}-{share.device}"
    return name if share.share_id is None else f"{name}-{share.share_id}"


def request_device(claim: PreparedClaim, request: str) -> str:
    """The CDI device name of a request; the colon keeps it apart from those of shares."""
    return f"{claim.ref.uid}-{request}:limits"


def file_name(claim_uid: str) -> str:
    """The file that holds a claim's spec."""
    return f"{names.CDI_FILE_PREFIX}{claim_uid}.json"


def claim_uid_of(file: str) -> str | None:
    """The claim whose spec a file of this name holds; None if it is not one of ours."""
    if file.startswith(names.CDI_FILE_PREFIX) and file.endswith(".json"):
        return file.removeprefix(names.CDI_FILE_PREFIX).removesuffix(".json")
    return None


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


def _env_by_request(claim: PreparedClaim) -> dict[str, list[str]]:
    """The limits that a container of each request gets.

    A container may use one request of the claim or all of them, and with all of them the last
    variable of a name wins. So every request's map by UUID names all cards of the claim, with
    its own amounts where several requests share a card: no card is ever without a limit. The
    scalar limits are the smallest of the request's cards for the same reason.
    """
    whole_claim = _limits_by_uuid(claim.shares)
    env: dict[str, list[str]] = {}
    for request in dict.fromkeys(share.request for share in claim.shares):
        own = _limits_by_uuid(share for share in claim.shares if share.request == request)
        if own:
            env[request] = _limit_env(own, {**whole_claim, **own})
    return env


def _limits_by_uuid(shares: Iterable[PreparedShare]) -> dict[str, tuple[int, int]]:
    """Percent and bytes by card; several shares of one card add up."""
    limits: dict[str, tuple[int, int]] = {}
    for share in shares:
        if share.limit is not None:
            percent, vram = limits.get(share.gpu_uuid, (0, 0))
            limits[share.gpu_uuid] = (
                min(100, percent + share.limit.sm_percent),
                vram + share.limit.vram_bytes,
            )
    return limits


def _limit_env(
    own: Mapping[str, tuple[int, int]], every: Mapping[str, tuple[int, int]]
) -> list[str]:
    memory_mib = min(vram for _, vram in own.values()) // MIB
    return [
        f"{names.ENV_SM_PERCENT_LIMIT}={min(percent for percent, _ in own.values())}",
        f"{names.ENV_MEMORY_LIMIT}={memory_mib}",
        f"{names.ENV_MEMORY_LIMIT_OLD}={memory_mib}",
        f"{names.ENV_UP_LIMIT_BY_UUID}={_compact({uuid: p for uuid, (p, _) in every.items()})}",
        f"{names.ENV_MEM_LIMIT_BY_UUID}={_compact({uuid: v for uuid, (_, v) in every.items()})}",
    ]


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
