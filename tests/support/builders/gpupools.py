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
