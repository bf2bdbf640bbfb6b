"""Pods with shares of GPUs in a namespace of their own, and the results of their claims."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tensorfusion_dra.core import names
from tests.e2e.cluster import RESOURCE, Cluster, Json, results_of

_PRINT = (
    "env; echo END; "
    f"find {names.METADATA_ROOT} -type f -exec echo FILE {{}} \\; -exec cat {{}} \\; 2>/dev/null; "
    "echo DONE; trap 'exit 0' TERM; sleep 1000000 & wait"
)
START_SECONDS = 60.0
SMALL = {"tflops": "10", "vram": "1Gi"}
"""Amounts of a small share."""


class Tenants:
    """Pods and claims in the namespace of one test."""

    def __init__(
        self, cluster: Cluster, *, namespace: str, node_name: str, image: str, pull_policy: str
    ) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self._node_name = node_name
        self._image = image
        self._pull_policy = pull_policy

    def template(self, name: str, *requests: Json, **spec: Any) -> None:
        """Create a claim template; spec has further fields of its spec.devices."""
        self.cluster.create(
            {
                "apiVersion": RESOURCE,
                "kind": "ResourceClaimTemplate",
                "metadata": {"name": name, "namespace": self.namespace},
                "spec": {"spec": {"devices": {"requests": list(requests), **spec}}},
            }
        )

    def pod(self, name: str, **wanted: Any) -> None:
        """Create a pod; the keyword arguments are those of document()."""
        self.cluster.create(self.document(name, **wanted))

    def document(
        self,
        name: str,
        *,
        template: str = "",
        claim: str = "",
        containers: Sequence[str | None] = (None,),
        annotations: Mapping[str, str] | None = None,
    ) -> Json:
        """Return a pod that prints its environment and its devices' metadata, and keeps running.

        Args:
            name: Name of the pod.
            template: Template of its claim; "" for a pod without a generated claim.
            claim: Existing claim to use instead.
            containers: The request that each container uses; None for the whole claim.
            annotations: Annotations of the pod.
        """
        spec: Json = {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "nodeSelector": {"kubernetes.io/hostname": self._node_name},
            "tolerations": [{"operator": "Exists"}],
            "containers": [
                self._container(index, request, claims=bool(template or claim))
                for index, request in enumerate(containers)
            ],
        }
        if template:
            spec["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": template}]
        elif claim:
            spec["resourceClaims"] = [{"name": "gpu", "resourceClaimName": claim}]
        metadata = {"name": name, "namespace": self.namespace, "annotations": annotations or {}}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}

    def run(self, name: str, capacity: Mapping[str, str]) -> dict[str, str]:
        """Run a pod with one share and return its container's environment."""
        return self.run_with(name, capacity_request("gpu", capacity))

    def run_with(
        self, name: str, *requests: Json, containers: Sequence[str | None] = (None,), **spec: Any
    ) -> dict[str, str]:
        """Run a pod with a claim for these requests; return its first container's environment."""
        self.template(name, *requests, **spec)
        self.pod(name, template=name, containers=containers)
        self.wait_until_running(name)
        return self.env(name)

    def run_all(self, *pods: str, template: str, seconds: float = START_SECONDS) -> None:
        """Create pods of one template, and wait until all of them run."""
        for name in pods:
            self.pod(name, template=template)
        for name in pods:
            self.wait_until_running(name, seconds=seconds)

    def lacks_room(self, name: str, capacity: Mapping[str, str]) -> None:
        """Create a pod with one share, and wait until the scheduler finds no card for it."""
        self.template(name, capacity_request("gpu", capacity))
        self.pod(name, template=name)
        self.cluster.until(
            f"pod {name} to be unschedulable", lambda: _unschedulable(self.stored(name)), seconds=30
        )

    def wait_until_running(self, name: str, *, seconds: float = START_SECONDS) -> Json:
        """Wait until all containers of a pod run, and return the pod.

        Raises:
            AssertionError: They did not run in time, or have ended. The text has the pod's events.
        """

        def running() -> Json | None:
            pod = self.stored(name)
            ended = pod["status"]["phase"] in {"Failed", "Succeeded"}
            assert not ended, (
                f"pod {name}: found it ended, expected it running\n{self.events(name)}"
            )
            return pod if _is_running(pod) else None

        return self.cluster.until(
            f"pod {name} to run", running, seconds=seconds, diagnose=lambda: self.events(name)
        )

    def stored(self, name: str) -> Json:
        """Fetch the pod."""
        pod = self.cluster.find("Pod", name, namespace=self.namespace)
        assert pod is not None, f"pod {name} is gone"
        return pod

    def env(self, name: str, container: int = 0) -> dict[str, str]:
        """Wait until a container has printed its environment, and return that."""
        lines = self._printed(name, container).partition("\nEND")[0].splitlines()
        return {key: value for key, _, value in (line.partition("=") for line in lines)}

    def metadata(self, name: str, container: int = 0) -> dict[str, list[Json]]:
        """Return the objects in each file of device metadata that a container sees, by path."""
        _, *files = self._printed(name, container).split("\nFILE ")
        found: dict[str, list[Json]] = {}
        for file in files:
            path, *lines = file.removesuffix("\nDONE\n").splitlines()
            found[path] = [json.loads(line) for line in lines]
        return found

    def _printed(self, name: str, container: int) -> str:
        """Wait until a container has printed everything, and return that."""

        def printed() -> str | None:
            log = self.cluster.log(name, namespace=self.namespace, container=f"c{container}")
            return log if "\nDONE" in log else None

        return self.cluster.until(f"the output of {name}/c{container}", printed, seconds=20)

    def claim(self, pod: str) -> Json | None:
        """Return the claim that was generated for a pod; None if there is none yet."""
        statuses = self.stored(pod)["status"].get("resourceClaimStatuses") or []
        if not statuses:
            return None
        name = statuses[0].get("resourceClaimName", "")
        return self.cluster.find("ResourceClaim", name, namespace=self.namespace) if name else None

    def results(self, pod: str) -> list[Json]:
        """Return the allocation results of a pod's claim."""
        claim = self.claim(pod)
        assert claim is not None, f"pod {pod} has no claim"
        return results_of(claim)

    def events(self, name: str) -> str:
        """Return the Events of a pod, one on each line."""
        events = self.cluster.objects(
            "Event",
            namespace=self.namespace,
            fieldSelector=f"involvedObject.name={name},involvedObject.kind=Pod",
        )
        return "\n".join(f"{event['reason']}: {event['message']}" for event in events)

    def event(self, name: str, reason: str, *, seconds: float = 60.0) -> str:
        """Wait for an Event of a pod with this reason, and return its message."""
        selector = f"involvedObject.name={name},reason={reason}"
        events = self.cluster.until(
            f"event {reason} of pod {name}",
            lambda: self.cluster.objects("Event", namespace=self.namespace, fieldSelector=selector),
            seconds=seconds,
        )
        return str(events[0]["message"])

    def delete(self, *pods: str, seconds: float = 60.0, grace_seconds: int | None = None) -> None:
        """Delete pods and wait until they and their claims are gone."""
        for name in pods:
            self.cluster.delete("Pod", name, namespace=self.namespace, grace_seconds=grace_seconds)
        self.cluster.until(
            f"{', '.join(pods)} to be gone with their claims",
            lambda: not self.remaining(*pods),
            seconds=seconds,
        )

    def remaining(self, *pods: str) -> list[str]:
        """Return those of these pods, and of their claims, that still exist."""
        found = [
            f"pod {name}"
            for name in pods
            if self.cluster.find("Pod", name, namespace=self.namespace) is not None
        ]
        claims = self.cluster.objects("ResourceClaim", namespace=self.namespace)
        owned = [
            claim["metadata"]["name"]
            for claim in claims
            if any(o["name"] in pods for o in claim["metadata"].get("ownerReferences") or [])
        ]
        return [*found, *(f"claim {name}" for name in owned)]

    def _container(self, index: int, used: str | None, *, claims: bool) -> Json:
        reference = {"name": "gpu", **({"request": used} if used else {})}
        return {
            "name": f"c{index}",
            "image": self._image,
            "imagePullPolicy": self._pull_policy,
            "command": ["sh", "-c", _PRINT],
            "resources": {"claims": [reference]} if claims else {},
        }


def capacity_request(name: str, capacity: Mapping[str, str], **exactly: Any) -> Json:
    """Return a request of a claim; without capacity it is for a whole card."""
    wanted: Json = {"deviceClassName": names.DEVICE_CLASS, **exactly}
    if capacity:
        wanted["capacity"] = {"requests": dict(capacity)}
    return {"name": name, "exactly": wanted}


def _is_running(pod: Json) -> bool:
    statuses = pod["status"].get("containerStatuses") or []
    started = len(statuses) == len(pod["spec"]["containers"])
    return started and all("running" in status["state"] for status in statuses)


def _unschedulable(pod: Json) -> bool:
    conditions = pod["status"].get("conditions") or []
    return any(
        each["type"] == "PodScheduled" and each.get("reason") == "Unschedulable"
        for each in conditions
    )
