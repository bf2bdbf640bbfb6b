"""GPUPools of Tensor Fusion."""

from typing import Any


def gpupool_document(name: str, *, default: bool = False, **spec: Any) -> dict[str, Any]:
    """Return a GPUPool with this spec; `default` marks it as the cluster's default pool."""
    annotations = {"tensor-fusion.ai/is-default-pool": "true"} if default else {}
    return {
        "apiVersion": "tensor-fusion.ai/v1",
        "kind": "GPUPool",
        "metadata": {"name": name, "annotations": annotations},
        "spec": spec,
    }


def pool_of_all_nodes(name: str, *, qos: str) -> dict[str, Any]:
    """Return a GPUPool of all nodes."""
    term = {"key": "kubernetes.io/hostname", "operator": "Exists"}
    selector = {"nodeSelectorTerms": [{"matchExpressions": [term]}]}
    return gpupool_document(
        name, qosConfig={"defaultQoS": qos}, nodeManagerConfig={"nodeSelector": selector}
    )
