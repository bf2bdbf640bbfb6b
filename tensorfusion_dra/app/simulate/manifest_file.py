"""Objects of a file, applied to a simulated cluster through the real admission webhook."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from tensorfusion_dra.app.simulate.cluster import NAMESPACE, SimulatedCluster
from tensorfusion_dra.app.simulate.options import Options
from tensorfusion_dra.app.simulate.progress import Progress
from tensorfusion_dra.app.simulate.report import Admission
from tensorfusion_dra.app.simulate.webhook import SimulatedWebhook, documents
from tensorfusion_dra.core import names
from tensorfusion_dra.core.errors import InputError
from tensorfusion_dra.core.kubernetes.review import annotations_of
from tensorfusion_dra.core.kubernetes.untyped_json import as_map
from tensorfusion_dra.simulator.answers import ApiError
from tensorfusion_dra.simulator.rest import (
    CLASSES,
    GPUPOOLS,
    MUTATING_WEBHOOKS,
    PODS,
    SCHEDULING_CONFIG_TEMPLATES,
    TEMPLATES,
    VALIDATING_WEBHOOKS,
    Json,
    Resource,
)

_APPLIED: Final = (CLASSES, SCHEDULING_CONFIG_TEMPLATES, GPUPOOLS, TEMPLATES, PODS)
"""The kinds that a file may have, in the order in which they are created."""
_RESOURCES: Final = {
    (resource.api_version, resource.kind): resource
    for resource in (*_APPLIED, MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS)
}
_DEFAULT_POOL: Final = "default"


class FilePods:
    """See Workload; the pods of a file, admitted by a webhook of their own."""

    def __init__(self, chosen: Options, file: Path) -> None:
        """Reads the file.

        Raises:
            InputError: It cannot be read, or has what a simulation does not know.
        """
        self._objects: Final = _read(file)
        self._chosen: Final = chosen
        self._refused: Final[dict[str, str]] = {}
        self._webhook: SimulatedWebhook | None = None

    def prepare(self, cluster: SimulatedCluster) -> Sequence[str]:
        """See Workload."""
        virtual = "true" if self._chosen.is_virtual else "false"
        flags = ("--virtual-capacity", virtual)
        self._webhook = SimulatedWebhook(cluster.folder, cluster.kubeconfig, flags)
        cluster.watch_process("webhook", self._webhook.process)
        cluster.until("readiness of the webhook", self._webhook.is_ready)
        for configuration in self._webhook.configurations():
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
            if resource is not PODS:
                cluster.client.create(resource, item)
        pool = self._pool()
        source = "object" if pool in self._names(GPUPOOLS) else "settings"
        return ("--gpupool", pool, "--pool-source", source, "--qos", self._chosen.qos)

    def submit(self, cluster: SimulatedCluster, progress: Progress) -> Sequence[str]:
        """See Workload."""
        taken = []
        for pod in self._objects:
            if _resource(pod) is not PODS:
                continue
            name = pod["metadata"]["name"]
            progress.say(f"submitting {name}")
            try:
                cluster.client.create(PODS, pod)
                taken.append(name)
            except ApiError as error:
                self._refused[name] = error.message
        return taken

    def asked(self, cluster: SimulatedCluster, pod: str) -> Mapping[str, str]:
        """See Workload."""
        for request in _requests(cluster, pod):
            return as_texts(as_map(request.get("capacity")).get("requests"))
        return {}

    def admissions(self, cluster: SimulatedCluster) -> Sequence[Admission]:
        """See Workload."""
        found = [Admission(pod=name, refused=text) for name, text in self._refused.items()]
        for name in sorted(self._names(PODS) - self._refused.keys()):
            pod = cluster.pod(name)
            claim = cluster.claim_of(pod)
            requests = _requests(cluster, name)
            found.append(
                Admission(
                    pod=name,
                    warnings=self._warnings(name),
                    annotations=annotations_of(pod),
                    claim=claim["metadata"]["name"] if claim else "",
                    request=requests[0] if requests else {},
                    requests=requests.count(requests[0]) if requests else 0,
                )
            )
        return found

    def delete(self, cluster: SimulatedCluster, pod: str) -> None:
        """See Workload."""
        cluster.client.delete(PODS, pod, NAMESPACE)

    def stop(self) -> None:
        """See Workload."""
        if self._webhook is not None:
            self._webhook.process.stop()

    def _warnings(self, pod: str) -> tuple[str, ...]:
        """Of the pod's admission, as the webhook logged them."""
        assert self._webhook is not None  # it was asked
        for line in self._webhook.logged():
            if line.get("kind") == "Pod" and line.get("name") == f"{NAMESPACE}/{pod}":
                return tuple(line["warnings"])
        return ()

    def _names(self, resource: Resource) -> set[str]:
        return {i["metadata"]["name"] for i in self._objects if _resource(i) is resource}

    def _pool(self) -> str:
        """The pool that the node is to be in: the one that the pods name."""
        named = {
            annotations_of(item).get(names.ANNOTATION_GPUPOOL)
            for item in self._objects
            if _resource(item) is PODS
        } - {None}
        if len(named) > 1:
            raise InputError(f"gpupool: found {', '.join(sorted(map(str, named)))}, expected one")
        pools = sorted(self._names(GPUPOOLS))
        return str(next(iter(named), pools[0] if pools else _DEFAULT_POOL))


def as_texts(found: object) -> dict[str, str]:
    """A JSON object of texts."""
    return {str(name): str(text) for name, text in as_map(found).items()}


def _requests(cluster: SimulatedCluster, pod: str) -> list[Json]:
    """The `exactly` of each request of a pod's claim; none if it has no claim."""
    claim = cluster.claim_of(cluster.pod(pod))
    requests: list[Json] = claim["spec"]["devices"].get("requests", []) if claim else []
    return [dict(request.get("exactly", {})) for request in requests]


def _read(file: Path) -> list[dict[str, Any]]:
    """The file's objects in the order in which they are created, each with its namespace."""
    try:
        found = list(yaml.safe_load_all(file.read_text(encoding="utf-8")))
    except OSError as error:
        raise InputError(f"{file}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: {' '.join(str(error).split())}") from error
    objects = [item for item in found if item is not None]
    for item in objects:
        known = ", ".join(resource.kind for resource in _APPLIED)
        if not isinstance(item, dict) or not isinstance(item.get("metadata"), dict):
            raise InputError(f"{file}: found {str(item)[:40]!r}, expected objects")
        if (item.get("apiVersion"), item.get("kind")) not in _RESOURCES:
            kind = f"{item.get('kind')} of {item.get('apiVersion')}"
            raise InputError(f"{file}: found {kind}, expected one of {known}")
        if _resource(item).namespaced:
            space = item["metadata"].setdefault("namespace", NAMESPACE)
            if space != NAMESPACE:
                raise InputError(f"{file}: namespace: found {space}, expected {NAMESPACE} alone")
    return sorted(objects, key=lambda item: _APPLIED.index(_resource(item)))


def _resource(item: Mapping[str, Any]) -> Resource:
    return _RESOURCES[item["apiVersion"], item["kind"]]
