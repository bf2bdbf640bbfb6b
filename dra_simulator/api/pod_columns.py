"""Row of a pod in `kubectl get pods` (pkg/printers/internalversion printPod, release 1.36)."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from dra_simulator.api.ages import age
from dra_simulator.api.schema import elements
from dra_simulator.api.strategy import Json, part

NONE: Final = "<none>"

_COMPLETED: Final = {
    "Succeeded": "The pod has completed successfully.",
    "Failed": "The pod failed.",
}


def cells(pod: Json) -> list[object]:
    """Return the cells of a pod's row."""
    metadata, spec, status = (part(pod, name) for name in ("metadata", "spec", "status"))
    containers = list(elements(spec.get("containers")))
    sidecars = {c.get("name") for c in elements(spec.get("initContainers")) if _is_sidecar(c)}
    initializing = _initializing(spec, status, sidecars)
    statuses = list(elements(status.get("containerStatuses")))
    started = [
        found
        for found in elements(status.get("initContainerStatuses"))
        if found.get("name") in sidecars
    ]
    if initializing and not _is_true(status, "Initialized"):
        reason = initializing
        counted = list(elements(status.get("initContainerStatuses")))
        ready = 0
    else:
        reason = _reason(status, statuses) or initializing or _summary(status)
        counted = [*started, *statuses]
        ready = sum(1 for found in statuses if _runs(found))
    ready += sum(1 for found in started if found.get("started") and found.get("ready"))
    return [
        metadata.get("name", ""),
        f"{ready}/{len(containers) + len(sidecars)}",
        _deleted(metadata, status) or reason,
        _restarts(counted),
        age(metadata.get("creationTimestamp")),
        next((str(ip.get("ip")) for ip in elements(status.get("podIPs")) if ip.get("ip")), NONE),
        spec.get("nodeName") or NONE,
        status.get("nominatedNodeName") or NONE,
        _gates(spec, status),
    ]


def conditions(pod: Json) -> list[Json]:
    """Return the conditions of a pod's row; clients use them to hide completed pods."""
    phase = str(part(pod, "status").get("phase", ""))
    if phase not in _COMPLETED:
        return []
    return [{"type": "Completed", "status": "True", "reason": phase, "message": _COMPLETED[phase]}]


def _summary(status: Json) -> str:
    for found in elements(status.get("conditions")):
        if found.get("type") == "PodScheduled" and found.get("reason") == "SchedulingGated":
            return "SchedulingGated"
    return str(status.get("reason") or status.get("phase", ""))


def _deleted(metadata: Json, status: Json) -> str:
    """Return the status of a pod in deletion; "" if it is not in deletion or has ended."""
    if "deletionTimestamp" not in metadata:
        return ""
    if status.get("reason") == "NodeLost":
        return "Unknown"
    return "" if status.get("phase") in _COMPLETED else "Terminating"


def _initializing(spec: Json, status: Json, sidecars: Iterable[object]) -> str:
    """Return why the pod has not reached its main containers; "" if it has."""
    total = len(list(elements(spec.get("initContainers"))))
    for index, found in enumerate(elements(status.get("initContainerStatuses"))):
        state = part(found, "state")
        ended, waiting = state.get("terminated"), part(state, "waiting").get("reason", "")
        if isinstance(ended, dict) and not ended.get("exitCode"):
            continue
        if found.get("name") in sidecars and found.get("started"):
            continue
        if isinstance(ended, dict):
            return f"Init:{_exit(ended)}"
        if waiting and waiting != "PodInitializing":
            return f"Init:{waiting}"
        return f"Init:{index}/{total}"
    return ""


def _reason(status: Json, statuses: list[Json]) -> str:
    """Return the reason of the first main container that has one; "" if none has."""
    reason, error, running = "", "", False
    for found in reversed(statuses):
        state = part(found, "state")
        ended, waiting = state.get("terminated"), part(state, "waiting").get("reason", "")
        if waiting:
            reason = str(waiting)
        elif isinstance(ended, dict):
            reason = _exit(ended)
            error = reason if ended.get("exitCode") else error
        elif _runs(found):
            running = True
    if reason != "Completed":
        return reason
    if running and _is_true(status, "Ready"):
        return "Running"
    return error or ("NotReady" if running else reason)


def _exit(ended: Json) -> str:
    if ended.get("reason"):
        return str(ended["reason"])
    if ended.get("signal"):
        return f"Signal:{ended['signal']}"
    return f"ExitCode:{ended.get('exitCode', 0)}"


def _restarts(statuses: Iterable[Json]) -> str:
    found = list(statuses)
    count = sum(int(str(entry.get("restartCount", 0))) for entry in found)
    latest = max(_ends(found), default="")
    return f"{count} ({age(latest)} ago)" if count and latest else str(count)


def _ends(statuses: Iterable[Json]) -> Iterator[str]:
    """Yield the times at which containers last ended before a restart."""
    for found in statuses:
        ended = part(part(found, "lastState"), "terminated").get("finishedAt")
        if isinstance(ended, str):
            yield ended


def _gates(spec: Json, status: Json) -> str:
    gates = [gate.get("conditionType") for gate in elements(spec.get("readinessGates"))]
    if not gates:
        return NONE
    return f"{sum(1 for gate in gates if _is_true(status, gate))}/{len(gates)}"


def _runs(found: Json) -> bool:
    return bool(found.get("ready")) and "running" in part(found, "state")


def _is_true(status: Json, kind: object) -> bool:
    conditions = elements(status.get("conditions"))
    return any(one.get("type") == kind and one.get("status") == "True" for one in conditions)


def _is_sidecar(container: Mapping[str, object]) -> bool:
    return container.get("restartPolicy") == "Always"
