"""Reasons for which a node is unfit for a pod, whatever devices it has.

These are the filters NodeUnschedulable, TaintToleration and NodeAffinity of kube-scheduler 1.36, in
the order in which it runs them. CPU, memory, ports, volumes and affinity between pods are not among
them.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from tensorfusion_dra.core.errors import InputError
from tensorfusion_dra.core.kubernetes import node_selector
from tensorfusion_dra.core.kubernetes.node_selector import NodeLabels
from tensorfusion_dra.core.kubernetes.untyped_json import as_list, as_map

_UNSCHEDULABLE: Final = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
REPELLING: Final = frozenset({"NoSchedule", "NoExecute"})
"""Effects of taints that keep pods away, or claims; others do not."""


def refusal(pod: Mapping[str, Any], node: Mapping[str, Any]) -> str:
    """Return the first reason for which the node is unfit for the pod; "" if there is none."""
    spec, of_node = as_map(pod.get("spec")), as_map(node.get("spec"))
    tolerations = [as_map(entry) for entry in as_list(spec.get("tolerations"))]
    if of_node.get("unschedulable") and not tolerated(_UNSCHEDULABLE, tolerations):
        return "unschedulable (cordoned)"
    for taint in map(as_map, as_list(of_node.get("taints"))):
        if taint.get("effect") in REPELLING and not tolerated(taint, tolerations):
            value = f"={taint['value']}" if taint.get("value") else ""
            return f"taint {taint.get('key')}{value}:{taint['effect']} is not tolerated"
    return next(_unselected(spec, NodeLabels.of(node)), "")


def _unselected(spec: Mapping[str, object], node: NodeLabels) -> Iterator[str]:
    for key, value in as_map(spec.get("nodeSelector")).items():
        if node.labels.get(key) != value:
            found = node.labels.get(key)
            has = f"{key}={found}" if found is not None else f"no label {key}"
            yield f"nodeSelector {key}={value}, node has {has}"
    affinity = as_map(as_map(spec.get("affinity")).get("nodeAffinity"))
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is not None:
        try:
            selected = node_selector.selects(required, node)
        except InputError as error:
            yield f"nodeAffinity: {error}"
            return
        if not selected:
            yield "nodeAffinity does not select it"


def tolerated(taint: Mapping[str, object], tolerations: Iterable[Mapping[str, object]]) -> bool:
    """Return True if a toleration matches the taint of a node or of a device.

    The same rule twice: core/v1, Toleration.ToleratesTaint, and
    dynamic-resource-allocation/resourceclaim/devicetoleration.go.
    """
    for toleration in tolerations:
        if toleration.get("effect") and toleration["effect"] != taint.get("effect"):
            continue
        if toleration.get("key") and toleration["key"] != taint.get("key"):
            continue
        operator = toleration.get("operator") or "Equal"
        if operator == "Exists":
            return True
        if operator == "Equal" and (toleration.get("value") or "") == (taint.get("value") or ""):
            return True
    return False
