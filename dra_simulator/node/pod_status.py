"""Pod statuses that the kubelet writes, and the environment of containers."""

from collections.abc import Mapping
from typing import Any, Final

from dra_simulator import podclaims
from dra_simulator.node.node_status import ADDRESS
from dra_simulator.rest import Json

Document = Mapping[str, Any]

_READY: Final = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady")


def running(pod: Document) -> Json:
    """Return the status of a pod whose containers all run."""
    began = podclaims.now()
    return {
        "phase": "Running",
        "hostIP": ADDRESS,
        "hostIPs": [{"ip": ADDRESS}],
        "startTime": began,
        "conditions": _conditions(pod, ready=True),
        "containerStatuses": [
            _container(container, {"running": {"startedAt": began}}, ready=True)
            for container in pod["spec"]["containers"]
        ],
    }


def waiting(pod: Document, error: str) -> Json:
    """Return the status of a pod with a container that cannot be created."""
    state = {"waiting": {"reason": "CreateContainerError", "message": error}}
    return {
        "phase": "Pending",
        "conditions": _conditions(pod, ready=False),
        "containerStatuses": [
            _container(container, state, ready=False) for container in pod["spec"]["containers"]
        ],
    }


def ended(pod: Document, phase: str) -> Json:
    """Return the status of a pod whose processes have all exited by themselves."""
    code, reason = (0, "Completed") if phase == "Succeeded" else (1, "Error")
    state = {
        "terminated": {"exitCode": code, "reason": reason, "finishedAt": podclaims.now()},
    }
    return {
        "phase": phase,
        "conditions": _conditions(pod, ready=False),
        "containerStatuses": [
            _container(container, state, ready=False) for container in pod["spec"]["containers"]
        ],
    }


def env(pod: Document, container: Document) -> dict[str, str]:
    """Return the variables that a pod sets for a container, except those from other objects."""
    metadata = pod["metadata"]
    fields = {
        "metadata.name": metadata["name"],
        "metadata.namespace": metadata["namespace"],
        "metadata.uid": metadata["uid"],
        "spec.nodeName": pod["spec"].get("nodeName", ""),
    }
    found: dict[str, str] = {}
    for entry in container.get("env") or ():
        source = entry.get("valueFrom")
        if source is None:
            found[entry["name"]] = entry.get("value", "")
            continue
        path = (source.get("fieldRef") or {}).get("fieldPath")
        if path in fields:
            found[entry["name"]] = fields[path]
    return found


def _conditions(pod: Document, *, ready: bool) -> list[Json]:
    conditions: list[Json] = list((pod.get("status") or {}).get("conditions") or ())
    for kind in _READY:
        conditions = podclaims.with_condition(conditions, podclaims.condition(kind, status=ready))
    return conditions


def _container(container: Document, state: Json, *, ready: bool) -> Json:
    return {
        "name": container["name"],
        "image": container.get("image", ""),
        "imageID": "",
        "ready": ready,
        "started": ready,
        "restartCount": 0,
        "state": state,
    }
