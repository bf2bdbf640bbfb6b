"""Binding of pods to nodes, as the scheduler requests it through pods/binding."""

from dataclasses import replace

from dra_simulator.api import failures, metadata
from dra_simulator.api.registry import Registry, WriteOptions
from dra_simulator.api.schema import elements
from dra_simulator.api.store import Stored
from dra_simulator.api.strategy import Json, part
from dra_simulator.api.target import Target


def bind(writer: Registry, target: Target, node: str, options: WriteOptions) -> None:
    """Set the pod's spec.nodeName and its condition PodScheduled.

    Raises:
        ApiError: The pod does not exist, is already bound or is being deleted.
    """
    pod = replace(target, subresource="")

    def bound(before: Stored) -> Json:
        document = dict(before.document)
        spec, status = part(document, "spec"), part(document, "status")
        if "deletionTimestamp" in part(document, "metadata"):
            why = f"pod {pod.name} is being deleted, cannot be assigned to a host"
            raise failures.conflict("pods/binding", "", pod.name, why)
        if spec.get("nodeName"):
            why = f'pod {pod.name} is already assigned to node "{spec["nodeName"]}"'
            raise failures.conflict("pods/binding", "", pod.name, why)
        scheduled: Json = {
            "type": "PodScheduled",
            "status": "True",
            "lastProbeTime": None,
            "lastTransitionTime": metadata.timestamp(),
        }
        others = [
            condition
            for condition in elements(status.get("conditions"))
            if condition.get("type") != "PodScheduled"
        ]
        document["spec"] = {**spec, "nodeName": node}
        document["status"] = {**status, "conditions": [*others, scheduled]}
        return document

    writer.overwrite(pod, bound, options)
