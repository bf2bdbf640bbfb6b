"""Reading for `why`: pods of the cluster or of a file, and everything that decides about them."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tensorfusion_dra.app.shared import streams
from tensorfusion_dra.cluster.api import resource_path, segment
from tensorfusion_dra.cluster.cluster_lists import ClusterLists
from tensorfusion_dra.cluster.watch import GPUPOOLS, TEMPLATES
from tensorfusion_dra.core import names
from tensorfusion_dra.core.errors import InputError
from tensorfusion_dra.core.kubernetes import releases, resource_claims
from tensorfusion_dra.core.kubernetes.untyped_json import as_list, as_map
from tensorfusion_dra.scheduling import devices

Document = Mapping[str, Any]

_CLAIM: Final = "ResourceClaim"
_TEMPLATE: Final = "ResourceClaimTemplate"


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """A cluster at one moment.

    Attributes:
        slices: ResourceSlices, with the taints of DeviceTaintRules.
        claims: ResourceClaims of all namespaces; the pods' own without the permission to list
            them.
        missing: Kinds of these four without the permission to list them. Then no pod can be tried.
        templates: ResourceClaimTemplates of the pod's namespace, by name.
        has_templates: False without the permission to list them.
        pools, pool_templates: GPUPools and SchedulingConfigTemplates of Tensor Fusion.
        webhooks: MutatingWebhookConfigurations; None without the permission to list them.
        events_of: Reads the Events of a pod, not those of earlier pods of its name; None without
            the right.
        labels_of: Reads the labels of a pod's namespace; None without the right.
        release: Minor version of Kubernetes, at most the newest that the allocation knows.
        unreadable: What could not be read for want of a right.
    """

    nodes: Sequence[Document]
    slices: Sequence[Document]
    classes: Sequence[Document]
    claims: Sequence[Document]
    missing: Sequence[str] = ()
    templates: Mapping[str, Document] = field(default_factory=dict)
    has_templates: bool = True
    pools: Sequence[Document] = ()
    pool_templates: Sequence[Document] = ()
    webhooks: Sequence[Document] | None = None
    events_of: Callable[[Document], Sequence[Document] | None] = lambda _: None
    labels_of: Callable[[Document], Document | None] = lambda _: None
    release: int = releases.NEWEST
    unreadable: Sequence[str] = ()

    @property
    def own_slices(self) -> Sequence[Document]:
        """The slices of this driver."""
        return [each for each in self.slices if each["spec"]["driver"] == names.DRIVER]


def read(lists: ClusterLists, namespace: str, pods: Sequence[Document] = ()) -> Observed:
    """Read the cluster.

    Args:
        pods: The pods in question.

    Raises:
        RetryableError: The API server did not answer.
    """
    templates = lists.readable_items(
        resource_path("resourceclaimtemplates", namespace=namespace), "ResourceClaimTemplates"
    )
    vital = {
        "Nodes": "/api/v1/nodes",
        "ResourceSlices": resource_path("resourceslices"),
        "DeviceClasses": resource_path("deviceclasses"),
        "ResourceClaims": resource_path("resourceclaims"),
    }
    found = {what: lists.readable_items(path, what) for what, path in vital.items()}
    claims: Sequence[Document] | None = found["ResourceClaims"]
    return Observed(
        nodes=found["Nodes"] or (),
        slices=devices.with_rules(lists.taint_rules(), found["ResourceSlices"] or []),
        classes=found["DeviceClasses"] or (),
        claims=list(_claims_of(lists, pods)) if claims is None else claims,
        missing=[what for what, listed in found.items() if listed is None],
        templates={str(each["metadata"]["name"]): each for each in templates or ()},
        has_templates=templates is not None,
        pools=lists.readable_items(GPUPOOLS, "GPUPools") or (),
        pool_templates=lists.readable_items(TEMPLATES, "SchedulingConfigTemplates") or (),
        webhooks=lists.readable_items(
            "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
            "MutatingWebhookConfigurations",
        ),
        events_of=lambda pod: events(lists, pod),
        labels_of=lambda pod: _labels(lists, str(pod["metadata"]["namespace"])),
        release=min(lists.minor_version or releases.NEWEST, releases.NEWEST),
        unreadable=lists.unreadable,
    )


def events(lists: ClusterLists, about: Document) -> Sequence[Document] | None:
    """Return the Events of an object, not those of earlier ones of its name.

    None, with a note, without the permission to list them.
    """
    metadata = about["metadata"]
    found = lists.readable_items(
        f"/api/v1/namespaces/{segment(str(metadata.get('namespace')))}/events",
        "Events",
        fieldSelector=f"involvedObject.name={metadata.get('name', '')}",
    )
    if found is None:
        return None
    return [
        each
        for each in found
        if as_map(each.get("involvedObject")).get("uid") == metadata.get("uid")
    ]


def _labels(lists: ClusterLists, namespace: str) -> Document | None:
    found = lists.find_readable(f"/api/v1/namespaces/{segment(namespace)}", "Namespaces")
    return found and as_map(found["metadata"].get("labels"))


def newest_failure(events: Iterable[Document]) -> str:
    """Return reason and message of the Event that happened last; "" if there is none.

    The API server lists them by name. What Kubernetes adds to the message of an Event that stands
    for several is left out.
    """
    newest = max(events, key=lambda event: str(event.get("lastTimestamp") or ""), default=None)
    if newest is None:
        return ""
    text = str(newest.get("message", "")).removeprefix("(combined from similar events): ")
    return f"{newest.get('reason')}: {text}"


def read_pod(lists: ClusterLists, *, namespace: str, name: str) -> Document:
    """Read a pod.

    Raises:
        InputError: There is no such pod.
        RetryableError: The API server did not answer, or the right to read pods is missing.
    """
    found = lists.find(f"/api/v1/namespaces/{segment(namespace)}/pods/{segment(name)}")
    if found is None:
        raise InputError(
            f"pod {namespace}/{name}: found none, expected POD with -n NAMESPACE, NAMESPACE/POD or "
            f"KIND/NAME, KIND of {', '.join([*_KINDS, *_SHORT])}"
        )
    return found


def _claims_of(lists: ClusterLists, pods: Sequence[Document]) -> Iterator[Document]:
    """Yield the pods' claims, each read by its name."""
    for pod in pods:
        namespace = str(pod["metadata"]["namespace"])
        for name in claim_names(pod):
            path = resource_path("resourceclaims", namespace=namespace, name=name)
            claim = lists.find_readable(path, "ResourceClaims")
            if claim is not None:
                yield claim


def claim_names(pod: Document) -> list[str]:
    """Return the names of the pod's claims that exist."""
    entries = [resource_claims.stored_name(pod, entry) for entry in resource_claims.entries(pod)]
    return list(filter(None, dict.fromkeys([*entries, resource_claims.extended_name(pod)])))


_PATHS: Final = {
    "Deployment": "/apis/apps/v1/namespaces/{}/deployments/{}",
    "ReplicaSet": "/apis/apps/v1/namespaces/{}/replicasets/{}",
    "StatefulSet": "/apis/apps/v1/namespaces/{}/statefulsets/{}",
    "DaemonSet": "/apis/apps/v1/namespaces/{}/daemonsets/{}",
    "Job": "/apis/batch/v1/namespaces/{}/jobs/{}",
}
_SHORT: Final = {
    "deploy": "Deployment",
    "rs": "ReplicaSet",
    "sts": "StatefulSet",
    "ds": "DaemonSet",
    "po": "Pod",
}
_KINDS: Final = {kind.lower(): kind for kind in ("Pod", *_PATHS)}
_OPERATORS: Final[Mapping[str, Callable[[str, str], str]]] = {
    "In": lambda key, values: f"{key} in ({values})",
    "NotIn": lambda key, values: f"{key} notin ({values})",
    "Exists": lambda key, _: key,
    "DoesNotExist": lambda key, _: f"!{key}",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A workload and its pods.

    Attributes:
        document: The object itself.
        failure: Why its controller cannot create a pod at present; "" if nothing says so.
    """

    kind: str
    document: Document
    pods: Sequence[Document]
    failure: str

    def __str__(self) -> str:
        metadata = self.document["metadata"]
        return f"{self.kind} {metadata['namespace']}/{metadata['name']}"

    @property
    def waiting(self) -> list[Document]:
        """The pods that wait, those without a node first, the newest of them first."""
        found = [
            pod
            for pod in self.pods
            if as_map(pod.get("status")).get("phase") in (None, "Pending")
            and "deletionTimestamp" not in pod["metadata"]
        ]
        found.sort(key=lambda pod: str(pod["metadata"].get("creationTimestamp")), reverse=True)
        return sorted(found, key=lambda pod: bool(pod["spec"].get("nodeName")))

    @property
    def no_pods(self) -> str:
        """The reason for having no pods."""
        spec, status = as_map(self.document.get("spec")), as_map(self.document.get("status"))
        done = [of for of, _ in _true_conditions(status) if of in ("Complete", "Failed")]
        if self.failure:
            return self.failure
        if done:
            return f"it is done: {done[0]}"
        if spec.get("suspend") is True:
            return "spec.suspend is true"
        if spec.get("replicas") == 0:
            return "spec.replicas is 0"
        return "no condition and no Event says why"


def named(target: str, namespace: str) -> tuple[str, str, str]:
    """Return kind, namespace and name of ``x`` or ``team-a/x``, which are pods, or ``deploy/x``.

    Raises:
        InputError: It has no name.
    """
    word, slash, name = target.rpartition("/")
    if not name:
        raise InputError(f"{target}: found no name, expected one after {word}/")
    singular = word.lower().partition(".")[0].removesuffix("s")  # kubectl takes "jobs.batch"
    kind = _SHORT.get(word) or _KINDS.get(singular)
    if not slash or kind is not None:
        return kind or "Pod", namespace, name
    return "Pod", word, name


def read_workload(lists: ClusterLists, kind: str, *, namespace: str, name: str) -> Workload:
    """Read a workload and its pods.

    Raises:
        InputError: There is no such workload.
        RetryableError: The API server did not answer, or a permission is missing.
    """
    document = lists.find(_PATHS[kind].format(segment(namespace), segment(name)))
    if document is None:
        raise InputError(
            f"{kind} {namespace}/{name}: found none, expected its name and -n NAMESPACE"
        )
    pods = lists.items(
        f"/api/v1/namespaces/{segment(namespace)}/pods",
        labelSelector=_selector(as_map(as_map(document.get("spec")).get("selector"))),
    )
    failure = next(
        (
            f"{condition.get('reason')}: {condition.get('message')}"
            for of, condition in _true_conditions(as_map(document.get("status")))
            if of == "ReplicaFailure"
        ),
        "",
    )
    if not failure and not pods:
        # Only Deployments and ReplicaSets have a condition for it.
        failure = newest_failure(
            event
            for event in events(lists, document) or ()
            if event.get("reason") == "FailedCreate"
        )
    return Workload(kind=kind, document=document, pods=pods, failure=failure)


def _true_conditions(status: Mapping[str, object]) -> Iterator[tuple[str, Mapping[str, object]]]:
    for condition in map(as_map, as_list(status.get("conditions"))):
        if condition.get("status") == "True":
            yield str(condition.get("type")), condition


def _selector(selector: Mapping[str, object]) -> str:
    """Return a LabelSelector in the form of a request."""
    labels = [f"{key}={value}" for key, value in as_map(selector.get("matchLabels")).items()]
    expressions = [
        _OPERATORS[str(each["operator"])](
            str(each["key"]), ",".join(map(str, as_list(each.get("values"))))
        )
        for each in map(as_map, as_list(selector.get("matchExpressions")))
    ]
    return ",".join([*labels, *expressions])


def read_file(
    file: str, *, namespace: str, name: str
) -> tuple[Document, Document, Sequence[Document]]:
    """Read the pod of a file before it is created, its workload, and the claims and templates.

    Without a workload, the pod itself is returned as one.

    Args:
        namespace: That of objects without one.
        name: Name of the pod, for a file with several; "" for its only one.

    Raises:
        InputError: The file cannot be read, has not exactly one pod of this name, or an annotation
            of it is not text.
    """
    placed: list[Document] = []
    for document in streams.documents(file):
        metadata = as_map(document.get("metadata"))
        # A generated name begins with this, and stands for it here.
        found_name = {"name": metadata.get("generateName") or "", **metadata}
        placed.append({**document, "metadata": {"namespace": namespace, **found_name}})
    pods = [(pod, owner) for owner in placed if (pod := pod_of(owner)) is not None]
    chosen = [each for each in pods if not name or each[0]["metadata"]["name"] == name]
    if len(chosen) != 1:
        found = ", ".join(str(pod["metadata"]["name"]) for pod, _ in pods) or "none"
        expected = f"one of the name {name}" if name else "one; give its name as POD"
        raise InputError(f"{file}: found pods: {found}; expected {expected}")
    pod, owner = chosen[0]
    for key, value in as_map(pod["metadata"].get("annotations")).items():
        # YAML reads true and 16 as something else than text.
        if not isinstance(value, str | None):
            found = json.dumps(value, default=str)
            raise InputError(f"{file}: annotation {key}: found {found}, expected it in quotes")
    others = [
        each
        for each in placed
        if each.get("kind") in (_CLAIM, _TEMPLATE)
        and each["metadata"]["namespace"] == pod["metadata"]["namespace"]
    ]
    return pod, owner, others


def with_objects(observed: Observed, others: Sequence[Document]) -> Observed:
    """Return the cluster with the claims and templates of a file."""
    known = {
        (each["metadata"].get("namespace"), each["metadata"]["name"]) for each in observed.claims
    }
    claims = [
        each
        for each in others
        if each["kind"] == _CLAIM
        and (each["metadata"]["namespace"], each["metadata"]["name"]) not in known
    ]
    return replace(
        observed,
        claims=[*observed.claims, *claims],
        templates={
            **observed.templates,
            **{str(each["metadata"]["name"]): each for each in others if each["kind"] == _TEMPLATE},
        },
    )


def pod_of(document: Document) -> Document | None:
    """Return a pod, or the pod that a workload would create; None for other objects."""
    if document.get("kind") == "Pod":
        return document
    spec = as_map(document.get("spec"))
    of_job = as_map(as_map(spec.get("jobTemplate")).get("spec"))  # in a CronJob
    template = as_map((of_job or spec).get("template"))
    if "containers" not in as_map(template.get("spec")) or document.get("kind") == _TEMPLATE:
        return None
    metadata = {**as_map(template.get("metadata")), "name": document["metadata"]["name"]}
    metadata["namespace"] = document["metadata"]["namespace"]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
