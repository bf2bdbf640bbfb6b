"""Checks of this driver's objects at the API server, and of its webhook."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from tensorfusion_dra.app.doctor.checks import Context, Place
from tensorfusion_dra.app.doctor.kubernetes import checked_nodes
from tensorfusion_dra.cluster.api import CORE, RESOURCE_VERSION, resource_path, segment
from tensorfusion_dra.cluster.watch import GPUPOOLS, QUOTAS, TEMPLATES
from tensorfusion_dra.core import names, printable
from tensorfusion_dra.core.admission import class_admission
from tensorfusion_dra.core.claims.share_policy import ParameterError
from tensorfusion_dra.core.devices import device as device_facts
from tensorfusion_dra.core.devices import gpupool
from tensorfusion_dra.core.devices.gpu import is_partition
from tensorfusion_dra.core.devices.slices import Slice
from tensorfusion_dra.core.errors import InputError, StatusError
from tensorfusion_dra.core.finding import Finding, note, ok, problem, warning
from tensorfusion_dra.core.kubernetes import device_rules, node_fit, resource_claims
from tensorfusion_dra.core.kubernetes.node_fit import NodeLabels
from tensorfusion_dra.core.kubernetes.untyped_json import as_list, as_map, name_of

_OWN: Final = "app.kubernetes.io/name=tensorfusion-dra"
_NODE_PLUGIN: Final = f"{_OWN},app.kubernetes.io/component=node-plugin"
_STARTING: Final = ("ContainerCreating", "PodInitializing", None)
"""Reasons for which containers wait while their pod starts; None if it does not wait."""
CONFIGURATIONS: Final = tuple(
    f"/apis/admissionregistration.k8s.io/v1/{kind}webhookconfigurations"
    for kind in ("mutating", "validating")
)
"""Paths of the webhook configurations."""
_WEBHOOK_DOMAIN: Final = "dra.tensor-fusion.ai"
"""Domain of this driver's webhooks; the end of each of their names."""
_TRIAL_ANNOTATIONS: Final = {
    # Set, because otherwise the webhook ignores pods of a pool without DRA.
    names.ANNOTATION_DRA_ENABLED: "true",
    names.ANNOTATION_TFLOPS_REQUEST: "1",
    names.ANNOTATION_VRAM_REQUEST: "1Gi",
}
_SEE: Final = "see docs/install.md, Your nodes"


def installed(context: Context) -> Sequence[dict[str, Any]]:
    """Return the DaemonSets of the node plugin, of all namespaces."""
    return context.cluster.items("/apis/apps/v1/daemonsets", labelSelector=_NODE_PLUGIN)


def pods(context: Context) -> Iterator[Finding]:
    """Check that the DaemonSet has pods, and name the label or RuntimeClass that it lacks."""
    for daemonset in installed(context):
        metadata, status = as_map(daemonset.get("metadata")), as_map(daemonset.get("status"))
        subject = f"DaemonSet {metadata.get('namespace')}/{metadata.get('name')}"
        wanted, there = status.get("desiredNumberScheduled"), status.get("currentNumberScheduled")
        spec = _pod_spec(daemonset)
        name = str(spec.get("runtimeClassName") or "")
        path = f"/apis/node.k8s.io/v1/runtimeclasses/{segment(name)}"
        has_class = not name or context.cluster.find(path) is not None
        if not has_class:
            yield problem(
                f"RuntimeClass {name}",
                f"not found: no pod of {subject} can be created",
                expected=f"RuntimeClass {name}, which NVIDIA's GPU operator creates",
                remedy="create it for the container toolkit's runtime, or set nvidia.runtimeClass "
                f"or nvidia.privileged of the chart; {_SEE}",
            )
        nodes = context.cluster.items("/api/v1/nodes")
        # Without the nodes' taints and cordons, as DaemonSets tolerate most of them.
        bare = ({**node, "spec": {}} for node in nodes)
        matching = [node for node in bare if not node_fit.refusal({"spec": spec}, node)]
        if not wanted and not matching:
            yield problem(
                subject,
                f"no pods: none of {len(nodes)} nodes has the labels {_labels(spec)}",
                expected="a node with these labels, which GPU or Node Feature Discovery set",
                remedy="kubectl label node NODE KEY=VALUE, or set nodePlugin.affinity of the "
                f"chart; {_SEE}",
            )
        elif wanted and there:
            yield ok(subject, f"pods on {there} of {wanted} nodes")
        elif has_class:
            yield problem(
                subject,
                "no pods, although nodes match" if matching else "no pods",
                expected=f"pods on {wanted or len(matching)} nodes",
                remedy=f"kubectl -n {metadata.get('namespace')} describe daemonset "
                f"{metadata.get('name')} says why none can be created",
            )


def rollout(context: Context) -> Iterator[Finding]:
    """Name each pod of this driver that is not Ready, with the reason and the end of its log."""
    ready = 0
    for pod in context.cluster.items("/api/v1/pods", labelSelector=_OWN):
        status, is_deleted = pod.get("status") or {}, "deletionTimestamp" in pod["metadata"]
        conditions = {each["type"]: each for each in status.get("conditions") or ()}
        if conditions.get("Ready", {}).get("status") == "True":
            ready += 1
        elif status.get("phase") not in ("Succeeded", "Failed") and not is_deleted:
            yield _not_ready(context, pod, conditions.get("PodScheduled", {}))
    if ready:
        yield ok("pods of this driver", f"{ready} Ready")


def _not_ready(context: Context, pod: Mapping[str, Any], scheduled: Mapping[str, Any]) -> Finding:
    """Return the finding about a pod, from the container that keeps it from being Ready.

    Args:
        scheduled: The pod's condition PodScheduled.
    """
    status, named = pod.get("status") or {}, "-n {namespace} {name}".format_map(pod["metadata"])
    kinds = ("initContainerStatuses", "containerStatuses")
    stuck: Mapping[str, Any] = max(
        (each for kind in kinds for each in status.get(kind) or () if not each["ready"]),
        key=lambda each: (_waiting(each).get("reason") not in _STARTING, each["restartCount"]),
        default={},
    )
    why, restarts = _waiting(stuck) or scheduled, stuck.get("restartCount")
    texts = (stuck.get("name"), why.get("reason") or "not Ready", why.get("message"))
    found = ": ".join(filter(None, texts))
    remedy = f"kubectl describe pod {named}"
    if restarts:
        last = (stuck.get("lastState") or {}).get("terminated") or {}
        exit_code, reason = last.get("exitCode"), last.get("reason")
        found += f"; restarted {restarts} times, last with exit code {exit_code} ({reason})"
    if restarts or "running" in (stuck.get("state") or {}):
        line = context.cluster.end_of_log(pod, stuck["name"], previous=bool(restarts))
        found += f"; its log ends with: {line}"
        remedy = f"kubectl logs {named} -c {stuck['name']}{' --previous' if restarts else ''}"
    judge = warning if not restarts and why.get("reason") in _STARTING else problem
    node = (pod.get("spec") or {}).get("nodeName") or "no node"
    return judge(
        f"pod {pod['metadata']['namespace']}/{pod['metadata']['name']} on {node}",
        found,
        expected="Ready",
        remedy=remedy,
    )


def _waiting(container: Mapping[str, Any]) -> Mapping[str, Any]:
    return (container.get("state") or {}).get("waiting") or {}


def _environment(workload: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables that a workload sets in the containers of its pods."""
    return {
        str(as_map(each).get("name")): str(as_map(each).get("value", ""))
        for container in as_list(_pod_spec(workload).get("containers"))
        for each in as_list(as_map(container).get("env"))
    }


def _pod_spec(daemonset: Mapping[str, Any]) -> Mapping[str, Any]:
    return as_map(as_map(as_map(daemonset.get("spec")).get("template")).get("spec"))


def _labels(spec: Mapping[str, Any]) -> str:
    """Return the labels that a node needs, such as ``kubernetes.io/os=linux and (a=1 or b=2)``."""
    own = [f"{key}={value}" for key, value in as_map(spec.get("nodeSelector")).items()]
    affinity = as_map(as_map(spec.get("affinity")).get("nodeAffinity"))
    required = as_map(affinity.get("requiredDuringSchedulingIgnoredDuringExecution"))
    terms = [
        " and ".join(_shown(as_map(each)) for each in as_list(as_map(term).get("matchExpressions")))
        for term in as_list(required.get("nodeSelectorTerms"))
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


def _selector(context: Context) -> str:
    """Return the field selector of this node's slices, or on a workstation of all."""
    is_node = context.place is Place.NODE
    of_node = f",spec.nodeName={context.settings.node_name}" if is_node else ""
    return f"spec.driver={names.DRIVER}{of_node}"


def out_of_service(context: Context) -> Iterator[Finding]:
    """Name the cards that are unhealthy, and those that an administrator cordoned, with the why."""
    rules = context.cluster.taint_rules()
    for item in context.cluster.slices(fieldSelector=_selector(context)):
        node, pool = item["spec"].get("nodeName"), item["spec"]["pool"]["name"]
        for device in item["spec"].get("devices") or ():
            card, name = f"{node}/{device['name']}", device["name"]
            added = device_rules.rule_taints(rules, driver=names.DRIVER, pool=pool, device=name)
            for taint in (*(device.get("taints") or ()), *added):
                if taint["key"] == names.TAINT_CORDONED:
                    yield note(
                        card,
                        f"out of service: {taint.get('value')}, {taint['effect']}",
                        remedy=f"once it works again: kubectl tensorfusion uncordon {card}",
                    )
                elif taint["key"] == names.TAINT_UNHEALTHY:
                    yield warning(
                        card,
                        f"unhealthy: {taint.get('value')}, {taint['effect']}",
                        expected="a card without this taint",
                        remedy="see its Node's Events, and Health in docs/concepts.md",
                    )


def published_slices(context: Context) -> Iterator[Finding]:
    """Check that the scheduler can use the slices of this node, or on a workstation of all."""
    settings = context.settings
    node_name = settings.node_name if context.place is Place.NODE else ""
    found = context.cluster.slices(fieldSelector=_selector(context))
    sources = [(settings.pool_source, settings.gpupool)]
    if not node_name:
        sources = [
            (
                each.get("TENSORFUSION_DRA_POOL_SOURCE") or "settings",
                each.get("TENSORFUSION_DRA_GPUPOOL") or "default",
            )
            for each in map(_environment, installed(context))
        ]
    awaited = next(filter(None, (_awaited(context, *each) for each in sources)), None)
    yield from [awaited] if awaited and not found else published(found, node_name=node_name)


def _awaited(context: Context, source: str, name: str) -> Finding | None:
    """Return the finding for nodes that all publish nothing because they wait for a GPUPool.

    Args:
        source: Value of pool-source.
        name: Value of gpupool.
    """
    if source == "settings":
        return None
    pools, reason = context.cluster.items_if_served(GPUPOOLS), ""
    is_node = context.place is Place.NODE
    nodes = checked_nodes(context) if is_node else context.cluster.items("/api/v1/nodes")
    if pools is None:
        reason = "the API server has no GPUPools: their CustomResourceDefinition is missing"
    for node in nodes if pools is not None else ():
        try:
            if source == "object":
                gpupool.parse(gpupool.named(pools or (), name))
            else:
                gpupool.parse(gpupool.choose(pools or (), NodeLabels.of(node)))
        except InputError as error:
            reason = reason or str(error)
        else:
            return None
    if not reason:
        return None
    return problem(
        f"GPUPool (pool-source={source})",
        f"{reason}: the node plugin waits for it and publishes nothing",
        expected="a GPUPool of the node",
        remedy=gpupool.REMEDY,
    )


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
            remedy="check the node plugin's log for publish_retried, and whether the kubelet "
            "registered it",
        )
    elif not slices:
        yield problem(
            "ResourceSlices of this driver",
            "none on any node",
            expected="at least one on each node with GPUs",
            remedy="install the DaemonSet; if it is there: kubectl get pods -A -l "
            "app.kubernetes.io/name=tensorfusion-dra, and run tensorfusion-dra doctor on a node",
        )
    else:
        count = sum(len(item["spec"].get("devices") or []) for item in slices)
        found_on = {item["spec"].get("nodeName") for item in slices}
        yield from [*_incomplete(slices), *_exclusive(slices)] or [
            ok(
                "ResourceSlices of this driver",
                f"{len(slices)} on {len(found_on)} nodes, with {count} devices",
            )
        ]
    yield from _kept(slices)


def _kept(slices: Sequence[Slice]) -> Iterator[Finding]:
    """Yield the cards whose running shares keep the node from sharing them as its pool says."""
    nodes: dict[bool, list[str]] = {False: [], True: []}
    every = [(item, each) for item in slices for each in item["spec"].get("devices") or []]
    for item, device in every:
        attributes = as_map(device.get("attributes"))
        oversubscribes = any(
            attributes.get(whole) != attributes.get(virtual)
            for whole, virtual in (
                (names.ATTR_NODE_TOTAL_TFLOPS, names.ATTR_NODE_VIRTUAL_TFLOPS),
                (names.ATTR_NODE_TOTAL_VRAM, names.ATTR_NODE_VIRTUAL_VRAM),
            )
        )
        is_virtual = names.CAPACITY_VIRTUAL_VRAM in as_map(device.get("capacity"))
        if is_virtual != oversubscribes:
            nodes[is_virtual].append(str(item["spec"].get("nodeName")))
    for is_virtual, found in nodes.items():
        prefix, verb = ("virtual_", "do not oversubscribe") if is_virtual else ("", "oversubscribe")
        if found:
            yield note(
                "devices of this driver",
                f"{len(found)} of {len(every)} are still shared by {prefix}tflops and "
                f"{prefix}vram, although their nodes {verb}: on "
                f"{printable.first(list(dict.fromkeys(found)))}",
                expected="no shares from before the change: a card keeps the amounts that its "
                "running shares have, and changes half a minute after the last one ended",
                remedy="end these pods, for example by kubectl drain, or wait",
            )


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
                remedy="wait a moment; if it persists, restart the node plugin of this node",
            )


def _exclusive(slices: Sequence[Slice]) -> Iterator[Finding]:
    every = [device for item in slices for device in item["spec"].get("devices") or []]
    whole = [
        device["name"]
        for device in every
        if not device.get("allowMultipleAllocations") and not is_partition(device["name"])
    ]
    if whole:
        yield problem(
            "devices of this driver",
            f"{len(whole)} of {len(every)} cannot be shared: {printable.first(whole)}",
            expected="allowMultipleAllocations on each, which the API server keeps with the "
            "feature gate DRAConsumableCapacity",
            remedy="turn the feature gate on; the node plugins then publish again by themselves",
        )


def device_class(context: Context) -> Iterator[Finding]:
    """Check the DeviceClass by which claims select this driver's GPUs."""
    subject = f"DeviceClass {names.DEVICE_CLASS}"
    stored = context.cluster.find(resource_path("deviceclasses", name=names.DEVICE_CLASS))
    if stored is None:
        yield problem(
            subject,
            "not found",
            expected="the DeviceClass; until then pods whose claims name it stay Pending",
            remedy="install the driver's DeviceClass (docs/install.md)",
        )
        return
    expressions = [
        str(as_map(as_map(selector).get("cel")).get("expression", ""))
        for selector in as_list(as_map(stored.get("spec")).get("selectors"))
    ]
    if any(f'"{names.DRIVER}"' in text or f"'{names.DRIVER}'" in text for text in expressions):
        yield ok(subject, f"selects by {' and '.join(expressions)}")
    else:
        yield warning(
            subject,
            f"selectors {expressions or 'none'} do not name this driver",
            expected=f'device.driver == "{names.DRIVER}"',
            remedy="install the driver's DeviceClass (docs/install.md)",
        )


def share_classes(context: Context) -> Iterator[Finding]:
    """Check by dry runs that claims of a DeviceClass with amounts get them from the webhook."""
    path = resource_path("resourceclaims", namespace=context.namespace)
    for each in context.cluster.items(resource_path("deviceclasses")):
        name = each["metadata"]["name"]
        try:
            of_class = class_admission.of_class(each)
        except ParameterError as error:
            yield problem(
                f"DeviceClass {name}",
                str(error),
                expected="parameters that the node plugin accepts; until then every claim of the "
                "class fails",
                remedy=f"kubectl edit deviceclass {name}",
            )
            continue
        if of_class is None or not of_class.requests:
            continue
        amounts = ", ".join(f"{key} {amount}" for key, amount in of_class.requests.items())
        request = {"name": "gpu", "exactly": {"deviceClassName": name}}
        claim = {
            "apiVersion": RESOURCE_VERSION,
            "kind": "ResourceClaim",
            "metadata": {"name": "tensorfusion-dra-doctor", "namespace": context.namespace},
            "spec": {"devices": {"requests": [request]}},
        }
        admitted = context.cluster.dry_run(path, claim)
        if any("capacity" in found for found in resource_claims.requests(admitted)):
            yield ok(f"DeviceClass {name}", f"claims get {amounts} from the webhook")
        else:
            yield problem(
                f"DeviceClass {name}",
                "no webhook fills its claims: those that name no amounts take whole cards",
                expected=f"{amounts} in each of them",
                remedy="name it in the chart's shareClasses or webhook.classes, with "
                "webhook.enabled=true",
            )


def templates(context: Context) -> Iterator[Finding]:
    """Check that namespaces have the ResourceClaimTemplate that the webhook puts into pods."""
    subject = f"ResourceClaimTemplate {names.CLAIM_TEMPLATE}"
    namespaces = [
        str(item["metadata"].get("namespace", ""))
        for item in context.cluster.items(resource_path("resourceclaimtemplates"))
        if item["metadata"]["name"] == names.CLAIM_TEMPLATE
    ]
    if namespaces:
        yield ok(subject, f"in {printable.first(namespaces)}")
    else:
        yield note(
            subject,
            "in no namespace",
            expected="in each namespace whose pods request GPUs by annotations, if the webhook is "
            "used",
            remedy="kubectl apply -n NAMESPACE -f daemonset/claim-template.yaml",
        )


def quotas(context: Context) -> Iterator[Finding]:
    """Check that namespaces with a quota create no claim while the webhook is down."""
    found = {
        str(each["metadata"].get("namespace", ""))
        for each in context.cluster.readable_items(QUOTAS, "GPUResourceQuotas") or ()
    }
    namespaces = context.cluster.readable_items(f"{CORE}/namespaces", "namespaces") if found else ()
    labels = {
        each["metadata"]["name"]: as_map(each["metadata"].get("labels"))
        for each in namespaces or ()
    }
    for name in sorted(found & labels.keys()):
        if labels[name].get(names.LABEL_QUOTA) != names.QUOTA_ENFORCED:
            yield note(
                f"GPUResourceQuota of {name}",
                "claims are created without a check while the webhook does not answer",
                expected=f"the label {names.LABEL_QUOTA}={names.QUOTA_ENFORCED} of the namespace",
                remedy=f"kubectl label namespace {name} {names.LABEL_QUOTA}={names.QUOTA_ENFORCED}",
            )


def known_pools(context: Context) -> Iterator[Finding]:
    """Check that nodes publish pools that are GPUPools.

    Nodes can be in pools by their settings, beside GPUPools of other names.
    """
    slices = context.cluster.slices(fieldSelector=f"spec.driver={names.DRIVER}")
    known = {str(pool["metadata"]["name"]) for pool in context.cluster.items(GPUPOOLS)}
    by_settings = device_facts.gpupools(slices) - known
    if known and by_settings:
        yield warning(
            "GPUPools of the nodes",
            f"nodes publish {', '.join(sorted(by_settings))}, and the cluster's GPUPools are "
            f"{', '.join(sorted(known))}",
            expected="the same names: a pod that names a GPUPool which no node publishes waits",
            remedy="set pool-source=node-labels or object on the node plugins, so that their nodes "
            "are in these GPUPools; or have pods name what the nodes publish",
        )


def pool_definition(context: Context) -> Iterator[Finding]:
    """Check that the definitions keep the fields by which pools and their templates enable DRA.

    Tensor Fusion's own definitions lack them, so the API server drops them without a word.
    """
    for plural, path, field in (
        (names.GPUPOOLS, GPUPOOLS, "draConfig"),
        (names.SCHEDULING_CONFIG_TEMPLATES, TEMPLATES, "dra"),
    ):
        definition = f"customresourcedefinitions/{plural}.{names.TENSOR_FUSION_GROUP}"
        stored = context.cluster.find(f"/apis/apiextensions.k8s.io/v1/{definition}")
        for version in stored["spec"]["versions"] if stored else ():
            spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
            if spec.get("x-kubernetes-preserve-unknown-fields") or field in spec["properties"]:
                continue
            # kubectl apply keeps what it sent in an annotation.
            sent = [str(each["metadata"]) for each in context.cluster.items(path)]
            judge = warning if any(f'"{field}"' in text for text in sent) else note
            yield judge(
                definition,
                f"without spec.{field}: the API server drops it, so that no {plural} enable DRA",
                expected=f"spec.{field}, as in the definition of this chart (crds.install)",
                remedy=f'give pods the annotation {names.ANNOTATION_DRA_ENABLED}: "true"; or set '
                "webhook.defaultEnabled=true of the chart, if all pods with amounts are to use DRA",
            )


def reachable(context: Context) -> Iterator[Finding]:
    """Check that the webhook is configured, and that a dry run of a pod gets a claim from it.

    The API server's error in the dry run names what is wrong on the way: the CA, the certificate,
    the Service without endpoints.
    """
    subject = "webhook configuration"
    found = [name for path in CONFIGURATIONS for name in webhooks(context.cluster.items(path))]
    if not found:
        yield note(
            subject,
            f"none whose name ends with .{_WEBHOOK_DOMAIN}",
            remedy="install the webhook (docs/install.md) if pods are to request GPUs by "
            "annotations; pods with claims of their own do not need it",
        )
        return
    yield ok(subject, ", ".join(found))
    subject, path = "dry run of a pod", f"/api/v1/namespaces/{segment(context.namespace)}/pods"
    try:
        admitted = context.cluster.dry_run(path, trial_pod(context.namespace))
    except StatusError as error:
        if "calling webhook" in str(error):
            yield problem(
                subject,
                str(error),
                expected="an answer of the webhook to kube-apiserver",
                remedy="check its endpoints, its certificate and the network from kube-apiserver "
                "to pods (port 9443)",
            )
        else:
            yield warning(
                subject,
                str(error),
                expected="an accepted pod",
                remedy="try it in another namespace with --namespace",
            )
        return
    if claims := as_list(as_map(admitted.get("spec")).get("resourceClaims")):
        yield ok(subject, f"the webhook added the claim {', '.join(map(name_of, claims))}")
    else:
        yield problem(
            subject,
            "the webhook added no claim: the pod would run without a GPU",
            expected="spec.resourceClaims and resources.claims",
            remedy="check the namespaceSelector and matchConditions of the webhook configuration, "
            "and the webhook's log",
        )


def trial_pod(namespace: str) -> Mapping[str, Any]:
    """Return a pod for a dry run, which requests a share by annotations."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "tensorfusion-dra-doctor",
            "namespace": namespace,
            "annotations": _TRIAL_ANNOTATIONS,
        },
        "spec": {"containers": [{"name": "app", "image": "busybox"}]},
    }


def of_dialect(dialect: str) -> str:
    """Return the name of the webhook that translates pods of a dialect."""
    return f"{dialect}.dialects.{_WEBHOOK_DOMAIN}"


def webhooks(configurations: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of this driver's webhooks among all configured ones."""
    return [
        name_of(webhook)
        for found in configurations
        for webhook in as_list(found.get("webhooks"))
        if name_of(webhook).endswith(f".{_WEBHOOK_DOMAIN}")
    ]
