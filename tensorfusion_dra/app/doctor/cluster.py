"""Checks by the API server: Kubernetes, this driver's objects, permissions, the webhook."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from tensorfusion_dra.app.doctor.checks import Context, Place
from tensorfusion_dra.cluster.api import RESOURCE_VERSION, resource_path, segment
from tensorfusion_dra.cluster.watch import GPUPOOLS, TEMPLATES
from tensorfusion_dra.core import names
from tensorfusion_dra.core.devices import slices
from tensorfusion_dra.core.doctor import kubernetes as platform
from tensorfusion_dra.core.doctor import objects, permissions
from tensorfusion_dra.core.doctor.finding import Finding, not_checked, note, ok, problem, warning
from tensorfusion_dra.core.doctor.objects import Source
from tensorfusion_dra.core.doctor.permissions import AccessAnswer, Permission
from tensorfusion_dra.core.errors import StatusError
from tensorfusion_dra.core.kubernetes.device_rules import GATE_CONSUMABLE_CAPACITY
from tensorfusion_dra.core.kubernetes.untyped_json import as_list, as_map

_DAEMONSETS: Final = "/apis/apps/v1/daemonsets"
_NODE_PLUGIN: Final = (
    "app.kubernetes.io/name=tensorfusion-dra,app.kubernetes.io/component=node-plugin"
)
_RUNTIME_CLASSES: Final = "/apis/node.k8s.io/v1/runtimeclasses"
_DEPLOYMENTS: Final = "/apis/apps/v1/deployments"
_WEBHOOK: Final = "app.kubernetes.io/name=tensorfusion-dra,app.kubernetes.io/component=webhook"
_DECISIVE: Final = frozenset(
    {
        *("pool_source", "read_pods", "hypervisor_sockets", "enforcer_wait_seconds"),
        *("release_driver", "simulated_gpus"),
    }
)
"""Settings on which permissions depend."""
CONFIGURATIONS: Final = tuple(
    f"/apis/admissionregistration.k8s.io/v1/{kind}webhookconfigurations"
    for kind in ("mutating", "validating")
)
"""Paths of the webhook configurations."""
_TRIAL_ANNOTATIONS: Final = {
    # Set, because otherwise the webhook ignores pods of a pool without DRA.
    names.ANNOTATION_DRA_ENABLED: "true",
    names.ANNOTATION_TFLOPS_REQUEST: "1",
    names.ANNOTATION_VRAM_REQUEST: "1Gi",
}


def version(context: Context) -> Iterator[Finding]:
    """Check Kubernetes' version, and that the API group resource.k8s.io is served."""
    yield from platform.version(context.cluster.find("/version") or {})
    yield from platform.served(context.cluster.find("/apis/resource.k8s.io"))


def slice_gates(context: Context) -> Iterator[Finding]:
    """Check which fields the API server keeps of a ResourceSlice in a dry run.

    If it keeps those of consumable capacity, check as well that the scheduler can share devices.
    """
    cluster, waits = context.cluster, context.settings.enforcer_wait_seconds > 0
    sent = platform.trial_slice(context.settings.node_name, waits=waits)
    body = {"apiVersion": RESOURCE_VERSION, "kind": "ResourceSlice", **sent}
    try:
        stored = cluster.dry_run(resource_path("resourceslices"), body)
    except StatusError as error:
        yield not_checked(
            "dry run of a ResourceSlice",
            str(error),
            cure="run this with the right to create ResourceSlices of this node",
        )
        return
    yield from platform.kept_of_slice(sent, stored)
    if GATE_CONSUMABLE_CAPACITY not in slices.dropped_gates(sent, stored):
        yield from platform.scheduler(cluster.find("/version") or {})


def allocations(context: Context) -> Iterator[Finding]:
    """Check that the scheduler allocates parts of devices to claims that request parts."""
    yield from platform.shares(context.cluster.claims())


def multi_gpu(context: Context) -> Iterator[Finding]:
    """Check for claims and templates whose request for several GPUs this scheduler mishandles."""
    cluster = context.cluster
    stored = [
        {**item, "kind": kind}
        for kind, path in (
            ("ResourceClaim", "resourceclaims"),
            ("ResourceClaimTemplate", "resourceclaimtemplates"),
        )
        for item in cluster.items(resource_path(path))
    ]
    classes = {
        str(item["metadata"]["name"])
        for item in cluster.items(resource_path("deviceclasses"))
        if names.DRIVER in json.dumps(item.get("spec"))
    }
    yield from platform.one_request_for_several(cluster.find("/version") or {}, stored, classes)


def nodes(context: Context) -> Iterator[Finding]:
    """Check the Node objects and kubelets of the nodes that this driver runs on."""
    found = checked_nodes(context)
    for node in found:
        yield from platform.ready(node)
        yield from platform.kubelet(node)
    if context.place is Place.NODE and not found:
        name = context.settings.node_name
        yield problem(
            f"node {name}",
            "the API server has no Node of this name",
            expected="the name by which the kubelet registered this node",
            cure="set --node-name; in the DaemonSet, NODE_NAME from spec.nodeName",
        )


def checked_nodes(context: Context) -> list[dict[str, Any]]:
    """Return the Node objects that the checks cover.

    That is this node. On a workstation it is the nodes with slices of this driver, or all nodes if
    none has slices.
    """
    if context.place is Place.NODE:
        path = f"/api/v1/nodes/{segment(context.settings.node_name)}"
        return list(filter(None, [context.cluster.find(path)]))
    every = context.cluster.items("/api/v1/nodes")
    slices = context.cluster.slices(fieldSelector=f"spec.driver={names.DRIVER}")
    publishing = {item["spec"].get("nodeName") for item in slices}
    return [node for node in every if node["metadata"]["name"] in publishing] or every


def installed(context: Context) -> Sequence[dict[str, Any]]:
    """Return the DaemonSets of the node plugin, of all namespaces."""
    return context.cluster.items(_DAEMONSETS, labelSelector=_NODE_PLUGIN)


def pods(context: Context) -> Iterator[Finding]:
    """Check that the DaemonSet has pods, and name the label or RuntimeClass that it lacks."""
    for item in installed(context):
        name = objects.runtime_class(item)
        there = not name or context.cluster.find(f"{_RUNTIME_CLASSES}/{segment(name)}") is not None
        nodes = context.cluster.items("/api/v1/nodes")
        yield from objects.pods(item, nodes, has_runtime_class=there)


def published_slices(context: Context) -> Iterator[Finding]:
    """Check that the scheduler can use the slices of this node, or on a workstation of all."""
    settings, selector, node_name = context.settings, f"spec.driver={names.DRIVER}", ""
    if context.place is Place.NODE:
        node_name = settings.node_name
        selector += f",spec.nodeName={node_name}"
    found = context.cluster.slices(fieldSelector=selector)
    cause = None
    if not found and node_name:
        own = Source(kind=settings.pool_source, gpupool=settings.gpupool)
        cause = _awaited(context, [own], checked_nodes(context))
    elif not found:
        sources = map(objects.pool_source, installed(context))
        cause = _awaited(context, sources, context.cluster.items("/api/v1/nodes"))
    yield from [cause] if cause else objects.published(found, node_name=node_name)


def _awaited(
    context: Context, sources: Iterable[Source], nodes: Iterable[Mapping[str, Any]]
) -> Finding | None:
    """Return the finding for nodes that publish nothing because they wait for a GPUPool."""
    for source in sources:
        if source.kind != "settings":
            stored = context.cluster.items_if_served(GPUPOOLS)
            if found := objects.awaited_pool(source, stored, list(nodes)):
                return found
    return None


def device_class(context: Context) -> Iterator[Finding]:
    """Check the DeviceClass by which claims select this driver's GPUs."""
    path = resource_path("deviceclasses", name=names.DEVICE_CLASS)
    yield from objects.device_class(context.cluster.find(path))


def templates(context: Context) -> Iterator[Finding]:
    """Check the ResourceClaimTemplates that the webhook puts into pods."""
    cluster = context.cluster
    found = cluster.items(resource_path("resourceclaimtemplates"))
    known = cluster.items(resource_path("deviceclasses"))
    yield from objects.templates(
        [item for item in found if item["metadata"]["name"] == names.CLAIM_TEMPLATE],
        classes=[item["metadata"]["name"] for item in known],
    )


def known_pools(context: Context) -> Iterator[Finding]:
    """Check that nodes publish pools that are GPUPools, and how these want pods to be placed."""
    found = context.cluster.slices(fieldSelector=f"spec.driver={names.DRIVER}")
    pools = context.cluster.items(GPUPOOLS)
    yield from objects.published_pools(found, pools)
    yield from objects.placement_modes(pools, context.cluster.items(TEMPLATES) if pools else [])


def crds(context: Context) -> Iterator[Finding]:
    """Check that Tensor Fusion's CRDs keep the fields that turn DRA on for the pods of a pool."""
    root = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    for name in objects.DEFINITIONS:
        if stored := context.cluster.find(f"{root}/{name}"):
            yield objects.definition(name, stored)


def of_node_plugin(context: Context) -> Iterator[Finding]:
    """Check each permission that a node plugin with these settings uses.

    The account is the pod's own, else that of the DaemonSet, else the user of the kubeconfig. With
    the DaemonSet's account its settings count, too.
    """
    settings = {name: str(getattr(context.settings, name)).lower() for name in _DECISIVE}
    account = None
    if not context.in_pod:
        for workload in installed(context)[:1]:
            account = _account(workload)
            variables = objects.environment(workload)
            settings |= {
                name: variables[variable]
                for name in _DECISIVE
                if (variable := f"{objects.SETTING}{name.upper()}") in variables
            }
    if account is not None:
        subject = f"service account {'/'.join(account)}"
    elif context.in_pod:
        subject = "this pod's service account"
    else:
        subject = "the user of this kubeconfig"
        yield note(
            "rights",
            "found no DaemonSet of this driver; those of the kubeconfig's user are checked",
            cure="install the DaemonSet, or run this in a pod with the node plugin's account",
        )
    wanted = permissions.of_node_plugin(
        pool_source=settings["pool_source"],
        read_pods=settings["read_pods"] == "true",
        marks_pods=bool(settings["hypervisor_sockets"]),
        lists_claims=settings["enforcer_wait_seconds"].strip("0.") != "",
        releases_driver=settings["release_driver"] == "true" and not settings["simulated_gpus"],
    )
    yield from permissions.findings(subject, _answers(context, wanted, account))


def of_webhook(context: Context) -> Iterator[Finding]:
    """Check each permission that the webhook uses, if it is installed."""
    for workload in context.cluster.items(_DEPLOYMENTS, labelSelector=_WEBHOOK)[:1]:
        account = _account(workload)
        answers = _answers(context, permissions.of_webhook(), account)
        yield from permissions.findings(f"service account {'/'.join(account)}", answers)


def _answers(
    context: Context, wanted: Iterable[Permission], account: tuple[str, str] | None
) -> list[AccessAnswer]:
    minor = context.cluster.minor_version
    return [
        context.cluster.review_access(permission, service_account=account)
        for permission in wanted
        if minor is None or minor >= permission.since_minor
    ]


def _account(workload: Mapping[str, Any]) -> tuple[str, str]:
    """Return namespace and name of the service account of a workload's pods."""
    name = workload["spec"]["template"]["spec"].get("serviceAccountName") or "default"
    return workload["metadata"]["namespace"], name


def reachable(context: Context) -> Iterator[Finding]:
    """Check that the webhook is configured, and that a dry run of a pod gets a claim from it.

    The API server's error in the dry run names what is wrong on the way: the CA, the certificate,
    the Service without endpoints.
    """
    subject = "webhook configuration"
    found = [
        name for path in CONFIGURATIONS for name in objects.webhooks(context.cluster.items(path))
    ]
    if not found:
        yield note(
            subject,
            f"none whose name ends with .{objects.WEBHOOK_DOMAIN}",
            cure="install the webhook (docs/install.md) if pods are to request GPUs by "
            "annotations; pods with claims of their own do not need it",
        )
        return
    yield ok(subject, ", ".join(found))
    path = f"/api/v1/namespaces/{segment(context.namespace)}/pods"
    try:
        pod = context.cluster.dry_run(path, trial_pod(context.namespace))
    except StatusError as error:
        yield refused(str(error))
    else:
        yield admitted(pod)


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


def admitted(pod: Mapping[str, Any]) -> Finding:
    """Judge the result of the dry run of a pod."""
    claims = as_list(as_map(pod.get("spec")).get("resourceClaims"))
    if claims:
        named = ", ".join(str(as_map(claim).get("name")) for claim in claims)
        return ok("dry run of a pod", f"the webhook added the claim {named}")
    return problem(
        "dry run of a pod",
        "the webhook added no claim: the pod would run without a GPU",
        expected="spec.resourceClaims and resources.claims",
        cure="check the namespaceSelector and matchConditions of the webhook configuration, "
        "and the webhook's log",
    )


def refused(reason: str) -> Finding:
    """Return the finding for a refused dry run of a pod."""
    if "calling webhook" in reason:
        return problem(
            "dry run of a pod",
            reason,
            expected="an answer of the webhook to kube-apiserver",
            cure="check its endpoints, its certificate and the network from kube-apiserver to pods "
            "(port 9443)",
        )
    return warning(
        "dry run of a pod",
        reason,
        expected="an accepted pod",
        cure="try it in another namespace with --namespace",
    )
