"""The pods of a workload such as a Deployment, and what keeps it from creating them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tensorfusion_dra.app.why import observed
from tensorfusion_dra.cluster.api import segment
from tensorfusion_dra.cluster.cluster_lists import ClusterLists
from tensorfusion_dra.core.doctor import pending
from tensorfusion_dra.core.errors import InputError
from tensorfusion_dra.core.kubernetes.untyped_json import as_list, as_map

Document = Mapping[str, Any]

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
_OPERATORS: Final[Mapping[str, Callable[[str, str], str]]] = {
    "In": lambda key, values: f"{key} in ({values})",
    "NotIn": lambda key, values: f"{key} notin ({values})",
    "Exists": lambda key, _: key,
    "DoesNotExist": lambda key, _: f"!{key}",
}
_FAILED_CREATE: Final = "FailedCreate"


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
        """Why the workload has no pods."""
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


def kind_and_name(target: str) -> tuple[str, str]:
    """Return kind and name of ``deploy/x``; the kind is Pod for a name alone.

    Raises:
        InputError: The kind is none that has pods.
    """
    word, slash, name = target.rpartition("/")
    if not slash:
        return "Pod", target
    singular = word.lower().partition(".")[0].removesuffix("s")  # kubectl takes "jobs.batch"
    known = {kind.lower(): kind for kind in ("Pod", *_PATHS)}
    kind = _SHORT.get(word) or known.get(singular)
    if kind is None or not name:
        expected = ", ".join([*known, *_SHORT])
        raise InputError(f"{target}: found {word!r}, expected POD or KIND/NAME, KIND of {expected}")
    return kind, name


def read(lists: ClusterLists, kind: str, *, namespace: str, name: str) -> Workload:
    """Read a workload and its pods.

    Raises:
        InputError: There is no such workload.
        RetryableError: The API server did not answer, or a right is missing.
    """
    document = lists.find(_PATHS[kind].format(segment(namespace), segment(name)))
    if document is None:
        raise InputError(
            f"{kind} {namespace}/{name}: found none, expected its name and -n NAMESPACE"
        )
    selector = _selector(as_map(as_map(document.get("spec")).get("selector")))
    pods = lists.items(f"/api/v1/namespaces/{segment(namespace)}/pods", labelSelector=selector)
    failure = next(
        (
            f"{condition.get('reason')}: {condition.get('message')}"
            for of, condition in _true_conditions(as_map(document.get("status")))
            if of == "ReplicaFailure"
        ),
        "",
    )
    if not failure and not pods:
        failure = _event(lists, document)
    return Workload(kind=kind, document=document, pods=pods, failure=failure)


def _event(lists: ClusterLists, document: Document) -> str:
    """Return the newest Event of a pod that could not be created; "" if there is none.

    Only Deployments and ReplicaSets have a condition for it.
    """
    events = observed.events(lists, document) or ()
    failed = [event for event in events if event.get("reason") == _FAILED_CREATE]
    if not failed:
        return ""
    return f"{_FAILED_CREATE}: {pending.event_text(pending.newest(failed))}"


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
