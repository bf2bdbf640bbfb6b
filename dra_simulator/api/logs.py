"""Answers to requests for container logs. There are none, because nothing runs in a container."""

from typing import Final

from dra_simulator.api import failures
from dra_simulator.api.failures import ApiError
from dra_simulator.api.requests import Request
from dra_simulator.api.schema import elements
from dra_simulator.api.store import Stored
from dra_simulator.api.strategy import part

_LISTS: Final = ("initContainers", "containers", "ephemeralContainers")


def refusal(request: Request, pod: Stored) -> ApiError:
    """Return 400 with the reason why a pod has no log.

    The texts for wrong and waiting containers are those of pkg/registry/core/pod/strategy.go.
    """
    name = pod.name
    spec, status = part(pod.document, "spec"), part(pod.document, "status")
    containers = [str(found.get("name")) for field in _LISTS for found in elements(spec.get(field))]
    main = [str(found.get("name")) for found in elements(spec.get("containers"))]
    requested = request.query.get("container", "")
    if not requested and len(main) > 1:
        return failures.bad_request(
            f"a container name must be specified for pod {name}, choose one of:"
            f" [{' '.join(containers)}]"
        )
    container = requested or main[0]
    if container not in containers:
        return failures.bad_request(f"container {container} is not valid for pod {name}")
    for found in elements(status.get("containerStatuses")):
        waiting = part(part(found, "state"), "waiting").get("reason")
        if found.get("name") == container and waiting:
            return failures.bad_request(
                f'container "{container}" in pod "{name}" is waiting to start: {waiting}'
            )
    if status.get("phase") == "Pending":
        return failures.bad_request(f'container "{container}" in pod "{name}" is waiting to start')
    return failures.bad_request(
        f'container "{container}" in pod "{name}" has no log: nothing runs in simulated containers'
    )
