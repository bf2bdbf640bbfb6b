"""Node status that the kubelet reports; it does not depend on the machine."""

from typing import Final

from dra_simulator import podclaims
from dra_simulator.rest import Json

ADDRESS: Final = "127.0.0.1"
"""Address of the node, on which everything listens on loopback."""

_CAPACITY: Final = {"cpu": "8", "memory": "64Gi", "ephemeral-storage": "100Gi", "pods": "110"}


def ready(node_name: str) -> Json:
    """Return the status of a node that accepts pods."""
    now = podclaims.now()
    condition = {
        "type": "Ready",
        "status": "True",
        "lastHeartbeatTime": now,
        "lastTransitionTime": now,
        "reason": "KubeletReady",
        "message": "kubelet is posting ready status",
    }
    return {
        "capacity": dict(_CAPACITY),
        "allocatable": dict(_CAPACITY),
        "conditions": [condition],
        "addresses": [
            {"type": "InternalIP", "address": ADDRESS},
            {"type": "Hostname", "address": node_name},
        ],
        "nodeInfo": {
            "kubeletVersion": "v1.36.2",
            "containerRuntimeVersion": "simulated://1.36.2",
            "osImage": "simulated",
            "kernelVersion": "simulated",
            "operatingSystem": "linux",
            "architecture": "amd64",
        },
    }
