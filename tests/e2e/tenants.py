"""Pods with shares in a namespace of their own, and what they got."""

from collections.abc import Mapping, Sequence
from typing import Any

from tensorfusion_dra.core import names
from tests.e2e.cluster import RESOURCE, Cluster, Json

_SHOW = "env; echo END; trap 'exit 0' TERM; sleep 1000000 & wait"
START_SECONDS = 60.0


class Tenants:
    """One test's namespace."""

    def __init__(
        self, cluster: Cluster, *, namespace: str, node_name: str, image: str, pull_policy: str
    ) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self._node_name = node_name
        self._image = image
        self._pull_policy = pull_policy

    def template(self, name: str, *requests: Json, **spec: Any) -> None:
        """A claim template with these requests; spec names what devices has beside."""
        self.cluster.create(
            {
                "apiVersion": RESOURCE,
                "kind": "ResourceClaimTemplate",
                "metadata": {"name": name, "namespace": self.namespace},
                "spec": {"spec": {"devices": {"requests": list(requests), **spec}}},
            }
        )

    def pod(self, name: str, **wanted: Any) -> None:
        """Creates such a pod; wanted is as for document()."""
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
        """A pod that prints its environment and stays.

        Args:
            name: Of the pod.
            template: Of its claim; "" for a pod without a claim of its own.
            claim: One that was made by hand, instead.
            containers: For each container the request that it uses; None for the whole claim.
            annotations: Of the pod.
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

    def run(self, name: str, asks: Mapping[str, str]) -> dict[str, str]:
        """A pod with one share, running; its container's environment."""
        self.template(name, request("gpu", asks))
        self.pod(name, template=name)
        self.runs(name)
        return self.env(name)

    def runs(self, name: str, *, seconds: float = START_SECONDS) -> Json:
        """The pod, once all its containers run.

        Raises:
            AssertionError: They did not in time, or have ended; the text has the pod's events.
        """

        def running() -> Json | None:
            pod = self.stored(name)
            ended = pod["status"]["phase"] in {"Failed", "Succeeded"}
            assert not ended, f"pod {name} has ended and was to run\n{self.events(name)}"
            return pod if _is_running(pod) else None

        return self.cluster.until(
            f"pod {name} to run", running, seconds=seconds, why=lambda: self.events(name)
        )

    def stored(self, name: str) -> Json:
        """The pod as it is now."""
        pod = self.cluster.find("Pod", name, namespace=self.namespace)
        assert pod is not None, f"pod {name} is gone"
        return pod

    def env(self, name: str, container: int = 0) -> dict[str, str]:
        """The environment that a container printed, once it printed all of it."""
        text = self.cluster.until(
            f"the environment of {name}/c{container}",
            lambda: (
                log
                if "\nEND"
                in (
                    log := self.cluster.log(
                        name, namespace=self.namespace, container=f"c{container}"
                    )
                )
                else None
            ),
            seconds=20,
        )
        lines = text.partition("\nEND")[0].splitlines()
        return {key: value for key, _, value in (line.partition("=") for line in lines)}

    def claim(self, pod: str) -> Json | None:
        """The claim that was generated for a pod; None if there is none yet."""
        statuses = self.stored(pod)["status"].get("resourceClaimStatuses") or []
        if not statuses:
            return None
        name = statuses[0].get("resourceClaimName", "")
        return self.cluster.find("ResourceClaim", name, namespace=self.namespace) if name else None

    def results(self, pod: str) -> list[Json]:
        """What the scheduler gave to a pod's claim."""
        claim = self.claim(pod)
        assert claim is not None, f"pod {pod} has no claim"
        found: list[Json] = claim["status"]["allocation"]["devices"]["results"]
        return found

    def waits(self, name: str, *, seconds: float = 30.0) -> str:
        """Why a pod is not scheduled, once the scheduler says so."""
        return self.cluster.until(
            f"pod {name} to be refused by the scheduler",
            lambda: _unschedulable(self.stored(name)),
            seconds=seconds,
        )

    def events(self, name: str) -> str:
        """What was said of a pod, an event a line."""
        events = self.cluster.objects(
            "Event",
            namespace=self.namespace,
            fieldSelector=f"involvedObject.name={name},involvedObject.kind=Pod",
        )
        return "\n".join(f"{event['reason']}: {event['message']}" for event in events)

    def event(self, name: str, reason: str, *, seconds: float = 60.0) -> str:
        """The message of a pod's event of this reason, once there is one."""
        selector = f"involvedObject.name={name},reason={reason}"
        return self.cluster.until(
            f"event {reason} of pod {name}",
            lambda: next(
                (
                    str(event["message"])
                    for event in self.cluster.objects(
                        "Event", namespace=self.namespace, fieldSelector=selector
                    )
                ),
                None,
            ),
            seconds=seconds,
        )

    def end(self, *pods: str, seconds: float = 60.0, grace_seconds: int | None = None) -> None:
        """Deletes pods and waits until they and their claims are gone."""
        for name in pods:
            self.cluster.delete("Pod", name, namespace=self.namespace, grace_seconds=grace_seconds)
        self.cluster.until(
            f"{', '.join(pods)} to be gone with their claims",
            lambda: not self.left(*pods),
            seconds=seconds,
        )

    def left(self, *pods: str) -> list[str]:
        """Which of these pods, and of their claims, are still there."""
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
            "command": ["sh", "-c", _SHOW],
            "resources": {"claims": [reference]} if claims else {},
        }


def request(name: str, asks: Mapping[str, str], **exactly: Any) -> Json:
    """A request of a claim; asks are capacities, none for a whole card."""
    wanted: Json = {"deviceClassName": names.DEVICE_CLASS, **exactly}
    if asks:
        wanted["capacity"] = {"requests": dict(asks)}
    return {"name": name, "exactly": wanted}


def _is_running(pod: Json) -> bool:
    statuses = pod["status"].get("containerStatuses") or []
    started = len(statuses) == len(pod["spec"]["containers"])
    return started and all("running" in status["state"] for status in statuses)


def _unschedulable(pod: Json) -> str | None:
    for condition in pod["status"].get("conditions") or []:
        if condition["type"] == "PodScheduled" and condition.get("reason") == "Unschedulable":
            return str(condition.get("message", ""))
    return None
