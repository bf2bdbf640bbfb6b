"""Checks of how pods request GPUs: resources of containers, and templates of claims."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from tensorfusion_dra.app.doctor import objects
from tensorfusion_dra.app.doctor.checks import Context
from tensorfusion_dra.cluster.api import CORE, resource_path
from tensorfusion_dra.core import names, printable
from tensorfusion_dra.core.admission import class_admission, pod_findings, pod_resources
from tensorfusion_dra.core.claims.share_policy import ParameterError
from tensorfusion_dra.core.errors import DriverError
from tensorfusion_dra.core.finding import Finding, problem, warning
from tensorfusion_dra.core.kubernetes import resource_claims
from tensorfusion_dra.core.kubernetes.untyped_json import as_map, map_at, name_of, objects_at

_QUEUED: Final = "kueue.x-k8s.io/managed=true"
"""Label, as a selector, of pods that Kueue queues themselves (pkg/controller/constants); those of a
Job are queued with the Job."""


def classes(context: Context) -> Iterator[Finding]:
    """Name each DeviceClass by which Kubernetes would give a card for each unit of an amount."""
    for each in context.cluster.items(resource_path("deviceclasses")):
        name = as_map(each.get("spec")).get("extendedResourceName")
        if name in pod_resources.AMOUNTS:
            yield problem(
                f"DeviceClass {each['metadata']['name']}",
                f"extendedResourceName is {name}, of which Kubernetes gives a whole card for each "
                "byte, TFLOPS or percent",
                expected=f"a name that counts cards, such as {names.RESOURCE_GPU}",
                remedy=f"kubectl edit deviceclass {each['metadata']['name']}",
            )


def ranges(context: Context) -> Iterator[Finding]:
    """Name each LimitRange that requests a GPU for every container of its namespace."""
    ours = {*pod_resources.AMOUNTS, names.RESOURCE_GPU}
    for each in context.cluster.readable_items(f"{CORE}/limitranges", "LimitRanges") or ():
        given = {
            name
            for entry in objects_at(each, "spec", "limits")
            for kind in ("default", "defaultRequest")
            for name in map_at(entry, kind)
        }
        if found := sorted(ours & given):
            yield warning(
                "LimitRange {namespace}/{name}".format_map(each["metadata"]),
                f"gives {found[0]} to every container of the namespace that does not name it, also "
                "after the webhook has replaced it",
                expected="no default of it; a GPUResourceQuota has defaults for pods with a GPU",
                remedy="kubectl edit limitrange -n {namespace} {name}".format_map(each["metadata"]),
            )


def waiting(context: Context) -> Iterator[Finding]:
    """Name the pods that wait because the webhook did not replace their resources."""
    pods = context.cluster.readable_items(
        f"{CORE}/pods", "Pods", fieldSelector="status.phase=Pending"
    )
    yield from pod_findings.unserved(
        pods or (),
        has_webhook=any(
            objects.webhooks(context.cluster.items(path)) for path in objects.CONFIGURATIONS
        ),
    )


def queued(context: Context) -> Iterator[Finding]:
    """Name the pods that Kueue queues after the webhook has changed them."""
    pods = context.cluster.readable_items(f"{CORE}/pods", "Pods", labelSelector=_QUEUED) or ()
    found = [
        "{namespace}/{name}".format_map(pod["metadata"])
        for pod in pods
        if names.POD_CLAIM in map(name_of, resource_claims.entries(pod))
    ]
    if found:
        yield warning(
            "pods in queues of Kueue",
            f"{printable.first(found)}: Kueue reads {names.CLAIM_TEMPLATE}, which names no "
            "amounts, so it charges whole cards, or admits no such pod if it does not know the "
            "class",
            expected="Jobs, or claim templates with amounts, which Kueue charges as they are",
            remedy="see docs/advanced.md, Kueue",
        )


def templates(context: Context) -> Iterator[Finding]:
    """Name claim templates whose amounts are not those of their classes of shares."""
    known = {}
    for each in context.cluster.items(resource_path("deviceclasses")):
        with suppress(ParameterError):  # share_classes() names it
            known[str(each["metadata"]["name"])] = class_admission.of_class(each)
    for each in context.cluster.items(resource_path("resourceclaimtemplates")):
        if map_at(each, "metadata", "labels").get(names.LABEL_FILL_AMOUNTS) == "false":
            continue
        try:
            found = [*class_admission.outdated(each, known)][:1]
        except DriverError as error:  # the class allows no amounts of a claim's own
            found = [(str(error), "the amounts that its class has now")]
        for text, expected in found:
            yield warning(
                "ResourceClaimTemplate {namespace}/{name}".format_map(each["metadata"]),
                f"has no longer, or never had, the amounts of its class: {text}. Its claims "
                "may be refused, and a queue charges what is in the template",
                expected=expected,
                remedy="delete the template and create it again, or label it "
                f"{names.LABEL_FILL_AMOUNTS}=false",
            )
