"""Pods as the webhook receives them."""

from collections.abc import Mapping
from typing import Any, Final

Json = dict[str, Any]

PREFIX: Final = "tensor-fusion.ai/"


def pod_annotations(**annotations: str) -> dict[str, str]:
    """Return annotations of Tensor Fusion; underscores in the names stand for dashes."""
    return {PREFIX + name.replace("_", "-"): text for name, text in annotations.items()}


def pod_document(annotations: Mapping[str, str], *containers: Json, **spec: Any) -> Json:
    """Return a pod, with one container `main` by default."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "train", "namespace": "team-a", "annotations": dict(annotations)},
        "spec": {"containers": list(containers) or [container_document()], **spec},
    }


def container_document(name: str = "main", **fields: Any) -> Json:
    """Return a container of a pod."""
    return {"name": name, "image": "train", **fields}
