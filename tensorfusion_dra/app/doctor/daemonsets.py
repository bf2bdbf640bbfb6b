"""Check of the node plugin's DaemonSet: whether it has pods, and what it lacks if not."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from tensorfusion_dra.app.doctor.context import Context
from tensorfusion_dra.cluster.api import segment
from tensorfusion_dra.core.doctor import daemonset as rules
from tensorfusion_dra.core.doctor.finding import Finding

_DAEMONSETS: Final = "/apis/apps/v1/daemonsets"
_NODE_PLUGIN: Final = (
    "app.kubernetes.io/name=tensorfusion-dra,app.kubernetes.io/component=node-plugin"
)
_RUNTIME_CLASSES: Final = "/apis/node.k8s.io/v1/runtimeclasses"


def installed(context: Context) -> Sequence[dict[str, Any]]:
    """Return the DaemonSets of the node plugin, of all namespaces."""
    return context.probe.items(_DAEMONSETS, labelSelector=_NODE_PLUGIN)


def pods(context: Context) -> Iterator[Finding]:
    """Check that the DaemonSet has pods, and name the label or RuntimeClass that it lacks."""
    for item in installed(context):
        name = rules.runtime_class(item)
        there = not name or context.probe.find(f"{_RUNTIME_CLASSES}/{segment(name)}") is not None
        nodes = context.probe.items("/api/v1/nodes")
        yield from rules.pods(item, nodes, has_runtime_class=there)
