"""A pod from a file, before it is created, and the claims and templates beside it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from tensorfusion_dra.app.shared import streams
from tensorfusion_dra.app.why.observed import Observed
from tensorfusion_dra.core.errors import InputError
from tensorfusion_dra.core.kubernetes.untyped_json import as_map

Document = Mapping[str, Any]

_CLAIM: Final = "ResourceClaim"
_TEMPLATE: Final = "ResourceClaimTemplate"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodFile:
    """The objects of a file.

    Attributes:
        pod: The pod, or the pod template of a workload such as a Deployment or CronJob.
        others: ResourceClaims and ResourceClaimTemplates.
    """

    pod: Document
    others: tuple[Document, ...]

    def beside(self, observed: Observed) -> Observed:
        """Return the cluster with the file's claims and templates."""
        near = [each for each in self.others if _namespace(each) == _namespace(self.pod)]
        templates = {
            str(each["metadata"]["name"]): each for each in near if each["kind"] == _TEMPLATE
        }
        known = {(_namespace(each), each["metadata"]["name"]) for each in observed.claims}
        claims = [
            each
            for each in near
            if each["kind"] == _CLAIM and (_namespace(each), each["metadata"]["name"]) not in known
        ]
        return replace(
            observed,
            claims=[*observed.claims, *claims],
            templates={**observed.templates, **templates},
        )


def read(file: str, *, namespace: str, name: str) -> PodFile:
    """Read the pod of a file.

    Args:
        namespace: That of objects without one.
        name: Name of the pod, for a file with several; "" for its only one.

    Raises:
        InputError: The file cannot be read, has not exactly one pod of this name, or an annotation
            of it is not text.
    """
    placed = [_placed(document, namespace) for document in streams.documents(file)]
    pods = [pod for document in placed if (pod := pod_of(document)) is not None]
    chosen = [pod for pod in pods if not name or pod["metadata"]["name"] == name]
    if len(chosen) != 1:
        found = ", ".join(str(pod["metadata"]["name"]) for pod in pods) or "none"
        expected = f"one of the name {name}" if name else "one; give its name as POD"
        raise InputError(f"{file}: found pods: {found}; expected {expected}")
    _check_annotations(file, chosen[0])
    others = tuple(each for each in placed if each.get("kind") in (_CLAIM, _TEMPLATE))
    return PodFile(pod=chosen[0], others=others)


def _placed(document: Document, namespace: str) -> Document:
    """Return the object with a namespace and a name; that is what a generated one begins with."""
    metadata = as_map(document.get("metadata"))
    generated = metadata.get("generateName") or ""
    return {**document, "metadata": {"namespace": namespace, "name": generated, **metadata}}


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


def _check_annotations(file: str, pod: Document) -> None:
    """Raise an error for the first value that YAML reads as something else, such as true or 16."""
    for name, value in as_map(pod["metadata"].get("annotations")).items():
        if not isinstance(value, str | None):
            found = json.dumps(value, default=str)
            raise InputError(f"{file}: annotation {name}: found {found}, expected it in quotes")


def _namespace(document: Document) -> object:
    return document["metadata"].get("namespace")
