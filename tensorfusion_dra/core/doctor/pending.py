"""Findings about a pod that waits: its state, claims, classes, webhook, Events and quotas."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from tensorfusion_dra.core import names, printable
from tensorfusion_dra.core.claims import device_status
from tensorfusion_dra.core.doctor import objects
from tensorfusion_dra.core.doctor.finding import Finding, note, problem, warning
from tensorfusion_dra.core.kubernetes import pod_claims, quantity
from tensorfusion_dra.core.kubernetes.quantity import QuantityError
from tensorfusion_dra.core.kubernetes.slice_normal_form import GATE_CONSUMABLE_CAPACITY
from tensorfusion_dra.core.kubernetes.untyped_json import as_list, as_map, name_of

Document = Mapping[str, Any]

WEBHOOK: Final = "webhook"
"""Subject of the findings about a pod without the claim that its annotations request. Kubernetes
schedules such a pod, and it runs without a GPU."""

_CLAIM_QUOTA: Final = "count/resourceclaims.resource.k8s.io"
_DEVICES_QUOTA: Final = ".deviceclass.resource.k8s.io/devices"
_SCHEDULER: Final = "default-scheduler"
_NODE: Final = "kubelet"
_COMBINED: Final = "(combined from similar events): "
"""Kubernetes' beginning of the message of an Event that stands for several."""


def deleted(pod: Document) -> Iterator[Finding]:
    """Yield that the pod is in Terminating."""
    metadata, spec = as_map(pod.get("metadata")), as_map(pod.get("spec"))
    if "deletionTimestamp" in metadata:
        node = spec.get("nodeName")
        kubelet = f", or for the kubelet of {node}" if node else ""
        yield problem(
            "pod",
            f"is being deleted, with the deadline {metadata['deletionTimestamp']}",
            expected="a pod that is to run",
            cure=f"wait until it is gone; after the deadline it waits for its finalizers{kubelet}: "
            f"{', '.join(map(str, as_list(metadata.get('finalizers')))) or 'it has no finalizers'}",
        )


def halted(pod: Document) -> Iterator[Finding]:
    """Yield why no scheduler places this pod, whatever is free."""
    spec = as_map(pod.get("spec"))
    yield from deleted(pod)
    gates = [name_of(gate) for gate in as_list(spec.get("schedulingGates"))]
    if gates:
        yield problem(
            "spec.schedulingGates",
            ", ".join(gates),
            expected="none: schedulers ignore a pod with gates",
            cure="find the controller that has to remove the gates",
        )
    node = spec.get("nodeName")
    if node and pod_claims.entries(pod):
        yield problem(
            "spec.nodeName",
            f"{node}, so no scheduler allocates the pod's claims",
            expected="none",
            cure=f"remove it, and select the node by nodeSelector kubernetes.io/hostname: {node}",
        )


def other_scheduler(pod: Document) -> Iterator[Finding]:
    """Yield a note if a scheduler other than kube-scheduler has to place the pod.

    It is a problem if that is Tensor Fusion's own, which allocates no claims.
    """
    scheduler = as_map(pod.get("spec")).get("schedulerName") or _SCHEDULER
    if scheduler == names.TENSOR_FUSION_SCHEDULER:
        yield problem(
            "spec.schedulerName",
            str(scheduler),
            expected=f"{_SCHEDULER}, or another one that allocates claims",
            cure="remove the field, or set the webhook's scheduler-name",
        )
    elif scheduler != _SCHEDULER:
        yield note("spec.schedulerName", f"{scheduler}: it has to run, and to allocate claims")


def no_claim(configurations: Sequence[Document] | None) -> Finding:
    """Return the finding about a pod that has our annotations and no claim.

    Args:
        configurations: All MutatingWebhookConfigurations; None if they could not be read.
    """
    subject = WEBHOOK
    again = "then delete the pod and create it again: claims are added only to new pods"
    if not has_webhook(configurations):
        return problem(
            subject,
            "is not installed, so the pod's annotations gave it no claim",
            expected="a MutatingWebhookConfiguration of this driver",
            cure=f"install the webhook, {again}",
        )
    return problem(
        subject,
        "the pod has annotations of this driver, but the webhook gave it no claim",
        expected=f"an entry {names.POD_CLAIM} in spec.resourceClaims",
        cure="check that the webhook runs and that the namespace is not excluded (tensorfusion-dra "
        f"doctor, kubectl describe mutatingwebhookconfigurations); {again}",
    )


def no_webhook() -> Finding:
    """Return the finding about a pod to create, to which no webhook would add a claim."""
    return problem(
        WEBHOOK,
        "is not installed, so the pod's annotations would give it no claim",
        expected="a MutatingWebhookConfiguration of this driver",
        cure="install the webhook before the pod is created",
    )


def without_dra() -> Finding:
    """Return the finding about a pod with annotations of this driver that does not use DRA."""
    return warning(
        "pod",
        "its annotations request a GPU, but DRA is not enabled for it, so it gets no claim",
        expected=f"{names.ANNOTATION_DRA_ENABLED}: true, or a GPUPool that enables DRA",
        cure=f"set the annotation {names.ANNOTATION_DRA_ENABLED}: true",
    )


def has_webhook(configurations: Sequence[Document] | None) -> bool:
    """Return True unless the configurations are known and none of them is of this driver."""
    return configurations is None or bool(objects.webhooks(configurations))


def start_trouble(events: Sequence[Document] | None) -> str:
    """Return the newest Event of a failure on the pod's node; "" if there is none.

    Args:
        events: Events of the pod; None if they could not be read.
    """
    failed = [
        event
        for event in events or ()
        if event.get("type") == "Warning" and as_map(event.get("source")).get("component") == _NODE
    ]
    if not failed:
        return ""
    return f"{newest(failed).get('reason')}: {event_text(newest(failed))}"


def newest(events: Sequence[Document]) -> Document:
    """Return the Event that happened last; the API server lists them by name."""
    return max(events, key=lambda event: str(event.get("lastTimestamp") or ""))


def event_text(event: Document) -> str:
    """Return an Event's message, without what Kubernetes adds if it stands for several."""
    return str(event.get("message", "")).removeprefix(_COMBINED)


def full_quotas(
    quotas: Sequence[Document], claims: Sequence[Document], *, created: bool
) -> Iterator[Finding]:
    """Yield each ResourceQuota that leaves no room for the claims.

    One with scopes, such as a priority class, counts some of the pods only. It is left out, since
    what it counts is not decided here.

    Args:
        quotas: Those of the pod's namespace.
        claims: The pod's claims that do not exist yet.
        created: True if the pod exists.
    """
    wanted: dict[str, int] = {_CLAIM_QUOTA: len(claims)}
    for claim in claims:
        for request in as_list(as_map(as_map(claim.get("spec")).get("devices")).get("requests")):
            exact = as_map(as_map(request).get("exactly"))
            count = exact.get("count")
            name = f"{exact.get('deviceClassName', '')}{_DEVICES_QUOTA}"
            wanted[name] = wanted.get(name, 0) + (count if isinstance(count, int) else 1)
    if not created:
        wanted["pods"] = wanted["count/pods"] = 1
    for quota in quotas:
        spec, status = as_map(quota.get("spec")), as_map(quota.get("status"))
        if spec.get("scopes") or spec.get("scopeSelector"):
            continue
        used = as_map(status.get("used"))
        for resource, hard in as_map(status.get("hard")).items():
            if not wanted.get(resource):
                continue
            before, most = _whole(used.get(resource, "0")), _whole(hard)
            if before + wanted[resource] > most:
                yield problem(
                    f"ResourceQuota {as_map(quota.get('metadata')).get('name')}",
                    f"{resource}: {before} of {most} used, {wanted[resource]} more needed",
                    expected="room for the pod and its claims",
                    cure="delete what is not needed in this namespace, or raise the quota",
                )


def _whole(amount: object) -> int:
    try:
        return quantity.parse(amount).ceil()
    except QuantityError:
        return 0


_AMOUNTS: Final = (names.ANNOTATION_TFLOPS_REQUEST, names.ANNOTATION_VRAM_REQUEST)
_SAID_OF: Final = {
    device_status.CONDITION_ENFORCED: "its limits are not enforced on",
    device_status.CONDITION_READY: "it is not ready on",
}


def missing_claim(name: str) -> Finding:
    """Return the finding about a claim that a pod names and that does not exist."""
    return problem(
        f"ResourceClaim {name}",
        "not found",
        expected="a claim of this name in the pod's namespace",
        cure=f"create the claim {name}, or correct spec.resourceClaims",
    )


def deleted_claim(name: str) -> Finding:
    """Return the finding about a claim that is being deleted."""
    return problem(
        f"ResourceClaim {name}",
        "is being deleted",
        expected="a claim that stays",
        cure="wait until it is gone and create it again",
    )


def missing_template(name: str, *, namespace: str) -> Finding:
    """Return the finding about a template that a pod names and that does not exist."""
    cure = f"create the template {name} in the pod's namespace"
    if name == names.CLAIM_TEMPLATE:
        cure = f"kubectl apply -n {namespace} -f daemonset/claim-template.yaml"
    return problem(
        f"ResourceClaimTemplate {name}",
        "not found, so the pod's claim is not created",
        expected="a template of this name in the pod's namespace",
        cure=cure,
    )


def unread_template(name: str) -> Finding:
    """Return the finding about a template that could not be read."""
    return problem(
        f"claim from ResourceClaimTemplate {name}",
        "not created yet, and the template could not be read",
        expected="the right to list ResourceClaimTemplates in the pod's namespace",
        cure="run this with that right",
    )


def claim_not_created(template: str, *, events: Sequence[Document] | None) -> Finding:
    """Return the finding about a claim that Kubernetes has not created from its template.

    Args:
        events: Events of the pod; None if they could not be read.
    """
    failed = [
        event for event in events or () if event.get("reason") == "FailedResourceClaimCreation"
    ]
    return problem(
        f"claim from ResourceClaimTemplate {template}",
        f"not created: {event_text(newest(failed))}" if failed else "not created yet",
        expected="a claim that kube-controller-manager creates within seconds",
        cure="correct what the message names; the controller tries again"
        if failed
        else "check kube-controller-manager, and the pod's Events: kubectl describe pod",
    )


def missing_classes(claims: Sequence[Document], classes: Sequence[str]) -> Iterator[Finding]:
    """Yield each DeviceClass that the claims name and that does not exist."""
    named = dict.fromkeys(name for claim in claims for name in class_names(claim))
    for name in named:
        if name not in classes:
            ours = name == names.DEVICE_CLASS
            yield problem(
                f"DeviceClass {name}",
                "not found",
                expected=", ".join(sorted(classes)) or "one DeviceClass at least",
                cure="install the driver's DeviceClass (docs/install.md)"
                if ours
                else "correct deviceClassName; the cluster has "
                f"{printable.first(sorted(classes)) or 'none'}",
            )


def class_names(claim: Document) -> list[str]:
    """Return the names of the DeviceClasses that a claim names."""
    devices = as_map(as_map(claim.get("spec")).get("devices"))
    return [
        str(as_map(exact).get("deviceClassName", ""))
        for request in map(as_map, as_list(devices.get("requests")))
        for exact in (request.get("exactly"), *as_list(request.get("firstAvailable")))
        if exact is not None
    ]


def unknown_resources(
    pod: Document, classes: Sequence[Document], nodes: Sequence[Document]
) -> Iterator[Finding]:
    """Yield each extended resource of the pod that neither a DeviceClass nor a node has."""
    offered = pod_claims.class_of_resource(classes).keys() | pod_claims.of_device_plugins(nodes)
    for name in dict.fromkeys(name for _, name, _ in pod_claims.extended_resources(pod)):
        if name not in offered:
            yield problem(
                f"extended resource {name}",
                "no DeviceClass has it as extendedResourceName, and no node has it",
                expected="one of the two",
                cure=f"set extendedResourceName: {name} in the DeviceClass (the chart's "
                "deviceClass.extendedResourceName), or correct resources.limits",
            )


def edited_annotations(name: str, differing: Sequence[str]) -> Finding:
    """Return the finding about a claim that differs from what its pod's annotations request now.

    Args:
        differing: What the claim has otherwise than the annotations.
    """
    return warning(
        f"ResourceClaim {name}",
        "was made before the pod's annotations were edited; it still has the earlier "
        f"{', '.join(differing)}",
        expected="what the annotations request now",
        cure="delete the pod and create it again: a claim does not change",
    )


def unenforced(claim: Document, node: str) -> Iterator[Finding]:
    """Yield each of our devices in the claim's status that is not ready, or whose limits fail."""
    name = as_map(claim.get("metadata")).get("name")
    for device in map(as_map, as_list(as_map(claim.get("status")).get("devices"))):
        if device.get("driver") != names.DRIVER:
            continue
        for condition in map(as_map, as_list(device.get("conditions"))):
            if condition.get("status") != "False" or condition.get("type") not in _SAID_OF:
                continue
            yield warning(
                f"ResourceClaim {name}",
                f"{_SAID_OF[str(condition['type'])]} {device.get('device')}: "
                f"{condition.get('reason')}: {condition.get('message')}",
                expected=f"the condition {condition['type']} True",
                cure=f"run tensorfusion-dra doctor in the node plugin's pod on {node}",
            )


def dropped_amounts(pod: Document, claim: Document) -> Iterator[Finding]:
    """Yield a warning if the pod's annotations name amounts and its claim has none of them.

    Such a claim takes whole cards. Claims of other classes, such as one for a network card, have
    nothing to do with annotations.
    """
    annotations = as_map(as_map(pod.get("metadata")).get("annotations"))
    devices = as_map(as_map(claim.get("spec")).get("devices"))
    named = [name for name in _AMOUNTS if annotations.get(name)]
    exact = [as_map(as_map(request).get("exactly")) for request in as_list(devices.get("requests"))]
    asked = [
        as_map(each.get("capacity")).get("requests")
        for each in exact
        if each.get("deviceClassName") == names.DEVICE_CLASS
    ]
    if named and asked and not any(asked):
        yield warning(
            f"ResourceClaim {as_map(claim.get('metadata')).get('name')}",
            f"requests whole cards, although the pod has {named[0]}",
            expected="capacity.requests, which the API server keeps with the feature gate "
            f"{GATE_CONSUMABLE_CAPACITY}",
            cure=f"turn {GATE_CONSUMABLE_CAPACITY} on (Kubernetes 1.34 and 1.35), or see whether "
            "the claim was filled by the webhook (tensorfusion-dra doctor)",
        )
