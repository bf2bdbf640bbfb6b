"""GPUResourceQuotas of Tensor Fusion."""

from typing import Any


def quota_document(
    limits: dict[str, Any] | None = None,
    workers: int | None = None,
    single: dict[str, Any] | None = None,
    **requests: Any,
) -> dict[str, Any]:
    """Return a quota of the namespace team-a with these totals, and what a claim may have."""
    total = {"requests": requests, "limits": limits, "maxWorkers": workers}
    return {
        "apiVersion": "tensor-fusion.ai/v1",
        "kind": "GPUResourceQuota",
        "metadata": {"name": "gpus", "namespace": "team-a"},
        "spec": {
            "total": {name: found for name, found in total.items() if found is not None},
            "single": single or {},
        },
    }
