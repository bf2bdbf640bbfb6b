"""Workload from a file, applied to a simulated cluster through the real admission webhook."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from dra_simulator.rest import (
    CLASSES,
    GPUPOOLS,
    MUTATING_WEBHOOKS,
    NAMESPACES,
    PODS,
    SCHEDULING_CONFIG_TEMPLATES,
    TEMPLATES,
    VALIDATING_WEBHOOKS,
    ApiError,
    Json,
    Resource,
)
from tensorfusion_dra.app.shared import streams
from tensorfusion_dra.app.simulate.cluster import NAMESPACE, SimulatedCluster
from tensorfusion_dra.app.simulate.options import MAX_PODS, Options
from tensorfusion_dra.app.simulate.progress import Progress
from tensorfusion_dra.app.simulate.report import AdmissionReport
from tensorfusion_dra.app.simulate.webhook import SimulatedWebhook, documents
from tensorfusion_dra.app.why.observed import pod_of
from tensorfusion_dra.core import names
from tensorfusion_dra.core.admission import class_admission
from tensorfusion_dra.core.claims.share_policy import ParameterError
from tensorfusion_dra.core.errors import InputError
from tensorfusion_dra.core.kubernetes.review import annotations_of
from tensorfusion_dra.core.kubernetes.untyped_json import as_map, is_whole_number

_APPLIED: Final = (NAMESPACES, CLASSES, SCHEDULING_CONFIG_TEMPLATES, GPUPOOLS, TEMPLATES, PODS)
"""The kinds that a file may contain, in the order in which they are created."""
_RESOURCES: Final = {
    (resource.api_version, resource.kind): resource
    for resource in (*_APPLIED, MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS)
}
_DEFAULT_POOL: Final = "default"


class FilePods:
    """Workload of the pods of a file, which a webhook process admits."""

    def __init__(self, options: Options, file: Path) -> None:
        """Read the file.

        Raises:
            InputError: The file cannot be read, or contains unsupported objects.
        """
        self._objects: Final = _read(file)
        self._classes: Final = _share_classes(self._objects)
        self._options: Final = options
        self._refused: Final[dict[str, str]] = {}
        self._webhook: SimulatedWebhook | None = None

    def prepare(self, cluster: SimulatedCluster) -> Sequence[str]:
        """Start the webhook and create everything but the pods; return flags for the plugin."""
        self._webhook = SimulatedWebhook(cluster.folder, cluster.kubeconfig)
        cluster.watch_process("webhook", self._webhook.process)
        cluster.until("readiness of the webhook", self._webhook.is_ready)
        for configuration in self._webhook.configurations(self._classes):
            cluster.client.create(_resource(configuration), configuration)
        (template,) = documents("claim-template.yaml")
        named = {item["metadata"]["name"] for item in self._objects if item["kind"] == "Pod"}
        if names.CLAIM_TEMPLATE not in self._names(TEMPLATES) and named:
            template["metadata"]["namespace"] = NAMESPACE
            cluster.client.create(TEMPLATES, template)
        for item in self._objects:
            resource = _resource(item)
            if resource is CLASSES and cluster.client.find(CLASSES, item["metadata"]["name"]):
                continue
            if resource is NAMESPACES and (
                stored := cluster.client.find(NAMESPACES, item["metadata"]["name"])
            ):
                cluster.client.patch(NAMESPACES, stored, item)
            elif resource is not PODS:
                cluster.client.create(resource, item)
        pool = self._pool()
        source = "object" if pool in self._names(GPUPOOLS) else "settings"
        return ("--gpupool", pool, "--pool-source", source, "--qos", self._options.qos)

    def submit(self, cluster: SimulatedCluster, progress: Progress) -> Sequence[str]:
        """Create the pods; return the names of those that admission accepted."""
        accepted = []
        for pod in self._objects:
            if _resource(pod) is not PODS:
                continue
            name = pod["metadata"]["name"]
            progress.show(f"submitting {name}")
            try:
                cluster.client.create(PODS, pod)
                accepted.append(name)
            except ApiError as error:
                self._refused[name] = error.message
        return accepted

    def requested(self, cluster: SimulatedCluster, pod: str) -> Sequence[Mapping[str, str]]:
        """Return the capacities that the pod's claim names for each of its GPUs."""
        return [
            {str(name): str(text) for name, text in found.items()}
            for request in _requests(cluster, pod)
            for found in [as_map(as_map(request.get("capacity")).get("requests"))]
            for _ in range(request.get("count") or 1)
        ]

    def admissions(self, cluster: SimulatedCluster) -> Sequence[AdmissionReport]:
        """Return the result of each pod's admission; the refused pods come first."""
        found = [AdmissionReport(pod=name, refused=text) for name, text in self._refused.items()]
        for name in sorted(self._names(PODS) - self._refused.keys()):
            pod = cluster.pod(name)
            claim = cluster.claim_of(pod)
            found.append(
                AdmissionReport(
                    pod=name,
                    warnings=self._warnings(name),
                    annotations=annotations_of(pod),
                    claim=claim["metadata"]["name"] if claim else "",
                    requests=tuple(_requests(cluster, name)),
                )
            )
        return found

    def _warnings(self, pod: str) -> tuple[str, ...]:
        """Return the warnings of a pod's admission, from the webhook's log."""
        assert self._webhook is not None  # prepare() started it
        return tuple(
            warning
            for line in self._webhook.logged()
            if (line.get("kind"), line.get("name")) == ("Pod", f"{NAMESPACE}/{pod}")
            for warning in line.get("warnings", ())
        )

    def _names(self, resource: Resource) -> set[str]:
        return {i["metadata"]["name"] for i in self._objects if _resource(i) is resource}

    def _pool(self) -> str:
        """Return the node's pool: the one that the pods name, else a pool in the file.

        Raises:
            InputError: The pods name several pools.
        """
        named = {
            annotations_of(item).get(names.ANNOTATION_GPUPOOL)
            for item in self._objects
            if _resource(item) is PODS
        } - {None}
        if len(named) > 1:
            raise InputError(f"gpupool: found {', '.join(sorted(map(str, named)))}, expected one")
        pools = sorted(self._names(GPUPOOLS))
        return str(next(iter(named), pools[0] if pools else _DEFAULT_POOL))


def _requests(cluster: SimulatedCluster, pod: str) -> list[Json]:
    """Return what each request of a pod's claim asks first; nothing if it has no claim."""
    claim = cluster.claim_of(cluster.pod(pod))
    requests: list[Json] = claim["spec"]["devices"].get("requests", []) if claim else []
    return [
        dict(request.get("exactly") or request.get("firstAvailable", [{}])[0])
        for request in requests
    ]


def _read(file: Path) -> list[dict[str, Any]]:
    """Return the file's objects in the order of creation, each with its namespace."""
    objects = [each for item in streams.documents(str(file)) for each in _pods_of(item)]
    for item in objects:
        known = ", ".join([*(resource.kind for resource in _APPLIED), "a workload with its pods"])
        if not isinstance(item.get("metadata"), dict):
            raise InputError(f"{file}: found {str(item)[:40]!r}, expected an object")
        if (item.get("apiVersion"), item.get("kind")) not in _RESOURCES:
            kind = f"{item.get('kind')} of {item.get('apiVersion')}"
            raise InputError(f"{file}: found {kind}, expected one of {known}")
        if _resource(item).namespaced:
            space = item["metadata"].setdefault("namespace", NAMESPACE)
            if space != NAMESPACE:
                raise InputError(f"{file}: namespace: found {space}, expected {NAMESPACE}")
    return sorted(objects, key=lambda item: _APPLIED.index(_resource(item)))


def _pods_of(item: Json) -> list[Json]:
    """Return the pods that a workload creates at first, numbered; another object as it is.

    Raises:
        InputError: They are too many.
    """
    metadata: Mapping[str, Any] = as_map(as_map(item).get("metadata"))
    spec: Mapping[str, Any] = as_map(as_map(item).get("spec"))
    name = metadata.get("name") or str(metadata.get("generateName")).rstrip("-")
    named = {"namespace": NAMESPACE, **metadata, "name": name}
    pod = pod_of({**item, "metadata": named}) if metadata else None
    if not pod or item.get("kind") == "Pod":
        return [item]
    of_job: Mapping[str, Any] = as_map(as_map(spec.get("jobTemplate")).get("spec"))
    spec = of_job or spec
    count = spec.get("replicas", spec.get("parallelism", 1))
    if not is_whole_number(count) or not 0 <= count <= MAX_PODS:
        raise InputError(
            f"{item.get('kind')} {name}: found {count} pods, expected at most {MAX_PODS}"
        )
    return [
        {**pod, "metadata": {**pod["metadata"], "name": f"{name}-{number + 1}"}}
        for number in range(count)
    ]


def _share_classes(objects: Sequence[Json]) -> list[str]:
    """Return the names of the DeviceClasses that have amounts for their claims.

    Raises:
        InputError: A class has malformed parameters.
    """
    found = []
    for each in objects:
        if _resource(each) is CLASSES:
            name = str(each["metadata"]["name"])
            try:
                of_class = class_admission.of_class(each)
            except ParameterError as error:
                raise InputError(f"DeviceClass {name}: {error}") from error
            if of_class and of_class.requests:
                found.append(name)
    return found


def _resource(item: Mapping[str, Any]) -> Resource:
    return _RESOURCES[item["apiVersion"], item["kind"]]
