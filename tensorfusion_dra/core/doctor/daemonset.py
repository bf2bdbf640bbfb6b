"""Findings about the node plugin's DaemonSet: whether it has pods, and what it lacks if not."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from tensorfusion_dra.core.doctor.finding import Finding, ok, problem
from tensorfusion_dra.core.doctor.pools import Source
from tensorfusion_dra.core.errors import InputError
from tensorfusion_dra.core.kubernetes import node_selector
from tensorfusion_dra.core.kubernetes.node_selector import NodeLabels
from tensorfusion_dra.core.kubernetes.untyped_json import as_list, as_map

_SETTING: Final = "TENSORFUSION_DRA_"
_SEE: Final = "see docs/install.md, Your nodes"


def pool_source(daemonset: Mapping[str, Any]) -> Source:
    """Return where its pods take their GPUPool from, by the environment of their containers."""
    found = {
        str(as_map(each).get("name")): str(as_map(each).get("value", ""))
        for container in as_list(_pod_spec(daemonset).get("containers"))
        for each in as_list(as_map(container).get("env"))
    }
    return Source(
        kind=found.get(f"{_SETTING}POOL_SOURCE") or "settings",
        gpupool=found.get(f"{_SETTING}GPUPOOL") or "default",
    )


def runtime_class(daemonset: Mapping[str, Any]) -> str:
    """Return the RuntimeClass that its pods name; "" if none."""
    return str(_pod_spec(daemonset).get("runtimeClassName") or "")


def pods(
    daemonset: Mapping[str, Any],
    nodes: Sequence[Mapping[str, Any]],
    *,
    has_runtime_class: bool,
) -> Iterator[Finding]:
    """Judge whether the DaemonSet has pods.

    Args:
        daemonset: As stored.
        nodes: All Node objects.
        has_runtime_class: True if the RuntimeClass that its pods name exists, or they name none.
    """
    metadata, status = as_map(daemonset.get("metadata")), as_map(daemonset.get("status"))
    subject = f"DaemonSet {metadata.get('namespace')}/{metadata.get('name')}"
    wanted, there = status.get("desiredNumberScheduled"), status.get("currentNumberScheduled")
    if not has_runtime_class:
        name = runtime_class(daemonset)
        yield problem(
            f"RuntimeClass {name}",
            f"not found: no pod of {subject} can be created",
            expected=f"RuntimeClass {name}, which NVIDIA's GPU operator creates",
            cure="create it for the container toolkit's runtime, or set nvidia.runtimeClass or "
            f"nvidia.privileged of the chart; {_SEE}",
        )
    matching = [node for node in nodes if _selects(daemonset, NodeLabels.of(node))]
    if not wanted and not matching:
        yield problem(
            subject,
            f"no pods: none of {len(nodes)} nodes has the labels {_labels(daemonset)}",
            expected="a node with these labels, which GPU or Node Feature Discovery set",
            cure=f"kubectl label node NODE {_example(daemonset)}, or set nodePlugin.affinity of "
            f"the chart; {_SEE}",
        )
    elif wanted and there:
        yield ok(subject, f"pods on {there} of {wanted} nodes")
    elif has_runtime_class:
        yield problem(
            subject,
            "no pods, although nodes match" if matching else "no pods",
            expected=f"pods on {wanted or len(matching)} nodes",
            cure=f"kubectl -n {metadata.get('namespace')} describe daemonset "
            f"{metadata.get('name')} says why none can be created",
        )


def _selects(daemonset: Mapping[str, Any], node: NodeLabels) -> bool:
    spec = _pod_spec(daemonset)
    if not as_map(spec.get("nodeSelector")).items() <= node.labels.items():
        return False
    required = _affinity(spec)
    try:
        return required is None or node_selector.selects(required, node)
    except InputError:
        return False


def _labels(daemonset: Mapping[str, Any]) -> str:
    """Return the labels that a node needs, such as ``kubernetes.io/os=linux and (a=1 or b=2)``."""
    spec = _pod_spec(daemonset)
    own = [f"{key}={value}" for key, value in as_map(spec.get("nodeSelector")).items()]
    terms = [" and ".join(term) for term in _terms(spec) if term]
    if terms:
        own.append(terms[0] if len(terms) == 1 else f"({' or '.join(terms)})")
    return " and ".join(own) or "that it selects"


def _example(daemonset: Mapping[str, Any]) -> str:
    """Return the labels of the first term, for kubectl label."""
    spec = _pod_spec(daemonset)
    first = next((term for term in _terms(spec) if term), None)
    if first is None:
        first = [f"{key}={value}" for key, value in as_map(spec.get("nodeSelector")).items()]
    return " ".join(each for each in first if "=" in each) or "KEY=VALUE"


def _terms(spec: Mapping[str, Any]) -> list[list[str]]:
    return [
        [_shown(as_map(each)) for each in as_list(as_map(term).get("matchExpressions"))]
        for term in as_list(as_map(_affinity(spec)).get("nodeSelectorTerms"))
    ]


def _shown(requirement: Mapping[str, Any]) -> str:
    key, values = requirement.get("key"), as_list(requirement.get("values"))
    if requirement.get("operator") == "In" and values:
        return f"{key}={values[0]}"
    return " ".join(map(str, filter(None, (key, requirement.get("operator"), *values))))


def _affinity(spec: Mapping[str, Any]) -> object:
    node = as_map(as_map(spec.get("affinity")).get("nodeAffinity"))
    return node.get("requiredDuringSchedulingIgnoredDuringExecution")


def _pod_spec(daemonset: Mapping[str, Any]) -> Mapping[str, Any]:
    template = as_map(as_map(daemonset.get("spec")).get("template"))
    return as_map(template.get("spec"))
