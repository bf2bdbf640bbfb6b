"""Findings about this driver's objects: DaemonSet, slices, DeviceClass, templates, GPUPools."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tensorfusion_dra.core import names, printable
from tensorfusion_dra.core.claims import share_policy
from tensorfusion_dra.core.claims.share_policy import ParameterError
from tensorfusion_dra.core.devices import device as devices
from tensorfusion_dra.core.devices import gpupool
from tensorfusion_dra.core.devices.slices import Slice
from tensorfusion_dra.core.doctor.finding import Finding, note, ok, problem, warning
from tensorfusion_dra.core.errors import InputError
from tensorfusion_dra.core.kubernetes import node_fit, resource_claims
from tensorfusion_dra.core.kubernetes.node_fit import NodeLabels
from tensorfusion_dra.core.kubernetes.untyped_json import as_list, as_map, name_of

SETTING: Final = "TENSORFUSION_DRA_"
"""Begin of the environment variables of the node plugin's settings."""
WEBHOOK_DOMAIN: Final = "dra.tensor-fusion.ai"
"""Domain of this driver's webhooks; the end of each of their names."""
_SEE: Final = "see docs/install.md, Your nodes"
DEFINITIONS: Final = {
    f"{names.GPUPOOLS}.{names.TENSOR_FUSION_GROUP}": "draConfig",
    f"{names.SCHEDULING_CONFIG_TEMPLATES}.{names.TENSOR_FUSION_GROUP}": "dra",
}
"""The field of spec that turns DRA on, by CRD name. Tensor Fusion's own CRDs lack it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where node plugins take the GPUPool of their node from.

    Attributes:
        kind: Value of pool-source.
        gpupool: Value of gpupool.
    """

    kind: str
    gpupool: str


def environment(workload: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables that a workload sets in the containers of its pods."""
    return {
        str(as_map(each).get("name")): str(as_map(each).get("value", ""))
        for container in as_list(_pod_spec(workload).get("containers"))
        for each in as_list(as_map(container).get("env"))
    }


def pool_source(daemonset: Mapping[str, Any]) -> Source:
    """Return where its pods take their GPUPool from."""
    found = environment(daemonset)
    return Source(
        kind=found.get(f"{SETTING}POOL_SOURCE") or "settings",
        gpupool=found.get(f"{SETTING}GPUPOOL") or "default",
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
            cure="kubectl label node NODE KEY=VALUE, or set nodePlugin.affinity of the chart; "
            f"{_SEE}",
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
        return required is None or node_fit.selects(required, node)
    except InputError:
        return False


def _labels(daemonset: Mapping[str, Any]) -> str:
    """Return the labels that a node needs, such as ``kubernetes.io/os=linux and (a=1 or b=2)``."""
    spec = _pod_spec(daemonset)
    own = [f"{key}={value}" for key, value in as_map(spec.get("nodeSelector")).items()]
    terms = [
        " and ".join(_shown(as_map(each)) for each in as_list(as_map(term).get("matchExpressions")))
        for term in as_list(as_map(_affinity(spec)).get("nodeSelectorTerms"))
    ]
    terms = [term for term in terms if term]
    if terms:
        own.append(terms[0] if len(terms) == 1 else f"({' or '.join(terms)})")
    return " and ".join(own) or "that it selects"


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


def published(slices: Sequence[Slice], *, node_name: str = "") -> Iterator[Finding]:
    """Yield the faults of this driver's slices, or that there are none.

    Args:
        slices: Those of one node, or of all nodes.
        node_name: The node; "" for all.
    """
    if not slices and node_name:
        yield problem(
            f"ResourceSlices of node {node_name}",
            "none",
            expected="at least one: the kubelet deletes those of a plugin that is gone for 30 s",
            cure="check the node plugin's log for publish_retried, and whether the kubelet "
            "registered it",
        )
    elif not slices:
        yield problem(
            "ResourceSlices of this driver",
            "none on any node",
            expected="at least one on each node with GPUs",
            cure="install the DaemonSet; if it is there: kubectl get pods -A -l "
            "app.kubernetes.io/name=tensorfusion-dra, and run tensorfusion-dra doctor on a node",
        )
    else:
        devices = sum(len(item["spec"].get("devices") or []) for item in slices)
        found_on = {item["spec"].get("nodeName") for item in slices}
        yield from [*_incomplete(slices), *_exclusive(slices)] or [
            ok(
                "ResourceSlices of this driver",
                f"{len(slices)} on {len(found_on)} nodes, with {devices} devices",
            )
        ]


def _incomplete(slices: Sequence[Slice]) -> Iterator[Finding]:
    pools: dict[str, list[Slice]] = {}
    for item in slices:
        pools.setdefault(str(item["spec"]["pool"]["name"]), []).append(item)
    for name, items in sorted(pools.items()):
        generation = max(int(item["spec"]["pool"]["generation"]) for item in items)
        current = [i for i in items if i["spec"]["pool"]["generation"] == generation]
        wanted = current[0]["spec"]["pool"]["resourceSliceCount"]
        if len(current) != wanted:
            yield warning(
                f"pool {name}",
                f"{len(current)} slices of generation {generation}",
                expected=f"{wanted}: the scheduler ignores an incomplete pool",
                cure="wait a moment; if it persists, restart the node plugin of this node",
            )


def _exclusive(slices: Sequence[Slice]) -> Iterator[Finding]:
    devices = [device for item in slices for device in item["spec"].get("devices") or []]
    whole = [device["name"] for device in devices if not device.get("allowMultipleAllocations")]
    if whole:
        yield problem(
            "devices of this driver",
            f"{len(whole)} of {len(devices)} cannot be shared: {printable.first(whole)}",
            expected="allowMultipleAllocations on each, which the API server keeps with the "
            "feature gate DRAConsumableCapacity",
            cure="turn the feature gate on; the node plugins then publish again by themselves",
        )


def device_class(stored: Mapping[str, Any] | None) -> Iterator[Finding]:
    """Judge the DeviceClass; None if there is none."""
    subject = f"DeviceClass {names.DEVICE_CLASS}"
    if stored is None:
        yield problem(
            subject,
            "not found",
            expected="the DeviceClass; until then pods whose claims name it stay Pending",
            cure="install the driver's DeviceClass (docs/install.md)",
        )
        return
    spec = as_map(stored.get("spec"))
    expressions = [
        str(as_map(as_map(selector).get("cel")).get("expression", ""))
        for selector in as_list(spec.get("selectors"))
    ]
    if any(f'"{names.DRIVER}"' in text or f"'{names.DRIVER}'" in text for text in expressions):
        yield ok(subject, f"selects by {' and '.join(expressions)}")
    else:
        yield warning(
            subject,
            f"selectors {expressions or 'none'} do not name this driver",
            expected=f'device.driver == "{names.DRIVER}"',
            cure="install the driver's DeviceClass (docs/install.md)",
        )
    yield from _parameters(subject, spec)


def _parameters(subject: str, spec: Mapping[str, object]) -> Iterator[Finding]:
    for index, config in enumerate(as_list(spec.get("config"))):
        opaque = as_map(as_map(config).get("opaque"))
        if opaque.get("driver") != names.DRIVER:
            continue
        try:
            share_policy.parse(opaque.get("parameters"), trusted=True)
        except ParameterError as error:
            yield problem(
                f"{subject}, config[{index}]",
                str(error),
                expected="parameters that the node plugin accepts; until then every claim of the "
                "class fails",
                cure=f"kubectl edit deviceclass {names.DEVICE_CLASS}",
            )


def templates(stored: Sequence[Mapping[str, Any]], *, classes: Sequence[str]) -> Iterator[Finding]:
    """Judge the claim templates that the webhook adds to pods.

    Args:
        stored: The ResourceClaimTemplates of that name, in all namespaces.
        classes: Names of the cluster's DeviceClasses.
    """
    subject = f"ResourceClaimTemplate {names.CLAIM_TEMPLATE}"
    if not stored:
        yield note(
            subject,
            "in no namespace",
            expected="in each namespace whose pods request GPUs by annotations, if the webhook is "
            "used",
            cure="kubectl apply -n NAMESPACE -f daemonset/claim-template.yaml",
        )
        return
    for template in stored:
        namespace = template["metadata"].get("namespace", "")
        wanted = {
            str(each.get("deviceClassName", "")) for each in resource_claims.requests(template)
        }
        named = sorted(wanted - set(classes))
        if named:
            yield problem(
                f"{subject} in {namespace}",
                f"names DeviceClass {', '.join(named)}, which does not exist",
                expected=f"deviceClassName: {names.DEVICE_CLASS}",
                cure=f"kubectl delete -n {namespace} resourceclaimtemplate "
                f"{names.CLAIM_TEMPLATE}, and apply daemonset/claim-template.yaml there",
            )
        else:
            yield ok(f"{subject} in {namespace}", "names existing classes")


def awaited_pool(
    source: Source, pools: Sequence[Mapping[str, Any]] | None, nodes: Sequence[Mapping[str, Any]]
) -> Finding | None:
    """Return why all of these nodes wait for a GPUPool and publish nothing; None if they do not.

    Args:
        source: The node plugins' settings.
        pools: The cluster's GPUPools; None if it does not have the kind.
        nodes: Node objects.
    """
    subject = f"GPUPool (pool-source={source.kind})"
    if source.kind == "settings":
        return None
    found = ""
    if pools is None:
        found = "the API server has no GPUPools: their CustomResourceDefinition is missing"
    else:
        for node in nodes:
            try:
                if source.kind == "object":
                    gpupool.parse(gpupool.named(pools, source.gpupool))
                else:
                    gpupool.parse(gpupool.choose(pools, NodeLabels.of(node)))
            except InputError as error:
                found = found or str(error)
            else:
                return None
    if not found:
        return None
    return problem(
        subject,
        f"{found}: the node plugin waits for it and publishes nothing",
        expected="a GPUPool of the node",
        cure=gpupool.REMEDY,
    )


def published_pools(
    slices: Sequence[Mapping[str, Any]], pools: Sequence[Mapping[str, Any]]
) -> Iterator[Finding]:
    """Judge whether nodes are in pools by their settings, beside GPUPools of other names.

    Args:
        slices: This driver's slices of all nodes.
        pools: The cluster's GPUPools.
    """
    names_of_objects = {str(pool["metadata"]["name"]) for pool in pools}
    by_settings = devices.gpupools(slices) - names_of_objects
    if not names_of_objects or not by_settings:
        return
    yield warning(
        "GPUPools of the nodes",
        f"nodes publish {', '.join(sorted(by_settings))}, and the cluster's GPUPools are "
        f"{', '.join(sorted(names_of_objects))}",
        expected="the same names: a pod that names a GPUPool which no node publishes waits",
        cure="set pool-source=node-labels or object on the node plugins, so that their nodes are "
        "in these GPUPools; or have pods name what the nodes publish",
    )


def placement_modes(
    pools: Sequence[Mapping[str, Any]], templates: Sequence[Mapping[str, Any]]
) -> Iterator[Finding]:
    """Name the GPUPools whose SchedulingConfigTemplate sets a mode of placement.

    kube-scheduler takes a node's first card with room, whatever the mode, and does not weigh GPUs
    when it chooses the node (docs/adr/0053).
    """
    modes = {
        str(each["metadata"]["name"]): as_map(as_map(each.get("spec")).get("placement")).get("mode")
        for each in templates
    }
    for pool in pools:
        if mode := modes.get(str(as_map(pool.get("spec")).get("schedulingConfigTemplate"))):
            yield note(
                f"GPUPool {pool['metadata']['name']}",
                f"placement.mode {mode} has no effect: kube-scheduler fills a node's cards one "
                "after the other, and chooses the node by CPU and memory",
                cure="place pods by their affinity or topologySpreadConstraints "
                "(docs/concepts.md, Which card a pod gets)",
            )


def definition(name: str, stored: Mapping[str, Any]) -> Finding:
    """Judge a CustomResourceDefinition.

    Args:
        name: One of DEFINITIONS.
    """
    field, subject = DEFINITIONS[name], f"CustomResourceDefinition {name}"
    for version in as_list(as_map(stored.get("spec")).get("versions")):
        found = as_map(version)
        for key in ("schema", "openAPIV3Schema", "properties", "spec"):
            found = as_map(found.get(key))
        keeps_unknown = found.get("x-kubernetes-preserve-unknown-fields") is True
        if not keeps_unknown and field not in as_map(found.get("properties")):
            return note(
                subject,
                f"has no spec.{field}, so the API server drops it and no pool can turn DRA on by "
                "it",
                expected=f"pods that turn DRA on by the annotation {names.ANNOTATION_DRA_ENABLED}",
                cure="annotate the pods, or replace Tensor Fusion's own definition by "
                f"daemonset/chart/tensor-fusion-crds/{name.partition('.')[0]}.yaml",
            )
    return ok(subject, f"keeps spec.{field}")


def webhooks(configurations: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of this driver's webhooks among all configured ones."""
    every = [each for found in configurations for each in as_list(found.get("webhooks"))]
    return [name for name in map(name_of, every) if name.endswith(f".{WEBHOOK_DOMAIN}")]
