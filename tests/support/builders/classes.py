"""DeviceClasses with a GpuShare."""

from typing import Any

from tensorfusion_dra.core import names


def share_class(name: str, *, driver: str = names.DRIVER, **parameters: Any) -> dict[str, Any]:
    """Return a class whose claims get the amounts, limits and more of these parameters."""
    share = {"apiVersion": "tensor-fusion.ai/v1alpha1", "kind": "GpuShare", **parameters}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {
            "selectors": [{"cel": {"expression": f'device.driver == "{names.DRIVER}"'}}],
            "config": [{"opaque": {"driver": driver, "parameters": share}}],
        },
    }
