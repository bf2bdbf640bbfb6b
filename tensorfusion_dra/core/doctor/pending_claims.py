"""Findings about the claims of a pod that waits, and what they depend on: templates and classes."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims import device_status
from tensorfusion_dra.core.doctor.finding import Finding, problem, warning
from tensorfusion_dra.core.doctor.pending_pods import event_text, newest
from tensorfusion_dra.core.kubernetes import pod_claims
from tensorfusion_dra.core.kubernetes.slice_normal_form import GATE_CONSUMABLE_CAPACITY
from tensorfusion_dra.core.kubernetes.untyped_json import as_list, as_map

Document = Mapping[str, Any]

_AMOUNTS: Final = (names.ANNOTATION_TFLOPS_REQUEST, names.ANNOTATION_VRAM_REQUEST)
_MOST_CLASSES: Final = 5
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


def crowded_claim(name: str, consumers: int) -> Finding:
    """Return the finding about a claim that has the maximum number of pods."""
    return problem(
        f"ResourceClaim {name}",
        f"is reserved for {consumers} pods",
        expected="fewer than 256, the maximum of Kubernetes",
        cure="use another claim",
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
                else f"correct deviceClassName; the cluster has {_shown(sorted(classes))}",
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


def _shown(names_of_classes: Sequence[str]) -> str:
    more = len(names_of_classes) - _MOST_CLASSES
    shown = ", ".join(names_of_classes[:_MOST_CLASSES]) or "none"
    return f"{shown} and {more} more" if more > 0 else shown
