"""Containers of a pod that has not been validated."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.kubernetes.untyped_json import as_list, as_map

Json = dict[str, Any]

_KINDS: Final = ("initContainers", "containers")


def with_paths(pod: Mapping[str, Any]) -> Iterator[tuple[str, Json]]:
    """Yield every container with its path, init containers first."""
    spec = as_map(pod.get("spec"))
    for kind in _KINDS:
        for index, container in enumerate(as_list(spec.get(kind))):
            if isinstance(container, dict):
                yield f"spec.{kind}[{index}]", container


def requests_whole_gpus(container: Mapping[str, Any]) -> bool:
    """Return True if the container requests or limits NVIDIA's extended resource."""
    resources = as_map(container.get("resources"))
    return any(names.NVIDIA_GPU in as_map(resources.get(kind)) for kind in ("requests", "limits"))
