"""Kubelets and plugins for tests, in a folder with a short path."""

from contextlib import ExitStack
from pathlib import Path

from dra_simulator.kubelet import REGISTRATION_FOLDER, Kubelet
from dra_simulator.node.plugin import Entry, Timings
from dra_simulator.rest import CLAIMS, EVENTS, PODS, SLICES, Client
from dra_simulator.runtime import Runtime
from tests.dra_simulator.tiny_plugin import TinyPlugin
from tests.dra_simulator.waiting import eventually
from tests.support import objects
from tests.support.objects import DRIVER, NODE, Json

FAST = Timings(
    socket_poll_seconds=0.02,
    dial_seconds=0.3,
    registration_retry_seconds=0.05,
    health_retry_seconds=0.1,
    wipe_delay_seconds=0.5,
    prepare_retry_seconds=0.1,
    container_retry_seconds=0.1,
    unprepare_retry_seconds=0.1,
)


class NodeUnderTest:
    """A node's folder and runtime, which outlive its kubelets and end with the test."""

    def __init__(self, url: str, folder: Path, stack: ExitStack) -> None:
        self.client = Client(url)
        self.folder = folder
        self.runtime = Runtime([folder / "cdi"])
        self.kubelet: Kubelet
        self._url = url
        self._stack = stack
        self._running = ExitStack()

    def start(self, *, timings: Timings = FAST, wipe_at_start: bool = False) -> Kubelet:
        """Start a new kubelet."""
        self.kubelet = Kubelet(
            self._url,
            NODE,
            root_dir=self.folder / "k",
            runtime=self.runtime,
            timings=timings,
            wipe_at_start=wipe_at_start,
        )
        self._running = self._stack.enter_context(ExitStack())
        return self._running.enter_context(self.kubelet)

    def stop(self) -> None:
        """Stop the kubelet; the runtime's containers and the sockets remain."""
        self._running.close()

    def plugin(
        self, name: str = "a", *, announced: bool = True, **attributes: object
    ) -> TinyPlugin:
        """Return a plugin of the node that serves its DRA socket, and if announced, the other."""
        registration = self.folder / "k" / REGISTRATION_FOLDER
        registration.mkdir(parents=True, exist_ok=True)
        plugin = TinyPlugin(self.folder, registration, name=name)
        self._stack.callback(plugin.end)
        self._stack.callback(plugin.withdraw)
        for attribute, value in attributes.items():
            setattr(plugin, attribute, value)
        plugin.serve()
        if announced:
            plugin.announce()
        return plugin

    def connected(self) -> list[str]:
        """Return the endpoints of the driver's connected plugins, the oldest first."""
        plugins = self.kubelet.registered.get(DRIVER, ())
        return [plugin.endpoint for plugin in plugins if plugin.is_connected]

    def happened(self, event: str) -> list[Entry]:
        """Return the journal's entries of an event."""
        return [entry for entry in self.kubelet.journal if entry.event == event]

    def event(self, reason: str = "FailedPrepareDynamicResources") -> str:
        """Return the latest message of the pods' Events with this reason; "" if there is none."""
        found = [event for event in self.client.list(EVENTS).items if event["reason"] == reason]
        return str(found[-1]["message"]) if found else ""

    def slices(self) -> list[str]:
        """Return the names of all slices."""
        return [found["metadata"]["name"] for found in self.client.list(SLICES).items]

    def pod(self, name: str = "pod", *, claim: Json) -> None:
        """Create a pod on the node and reserve a claim for it."""
        made = objects.pod(name, claim_name=claim["metadata"]["name"])
        made = self.client.create(PODS, made)
        claim = self.client.get(CLAIMS, claim["metadata"]["name"], "default")
        consumers = [*claim["status"].get("reservedFor", ()), objects.consumer(made)]
        claim["status"]["reservedFor"] = consumers
        self.client.replace_status(CLAIMS, claim)
        self.client.bind(made, NODE)

    def run(self, name: str = "pod", *, claim: Json | None = None) -> str:
        """Create a pod as `pod` does, and return its claim's UID once it runs."""
        claim = claim or self.claim()
        self.pod(name, claim=claim)
        eventually(lambda: self.phase(name) == "Running")
        return str(claim["metadata"]["uid"])

    def claim(self, name: str = "claim") -> Json:
        """Create a claim and allocate a device of the node to it."""
        claim = self.client.create(CLAIMS, objects.claim(name=name))
        return self.client.replace_status(CLAIMS, {**claim, "status": objects.allocated()})

    def delete(self, pod: str = "pod", *, force: bool = False) -> None:
        """Delete a pod as a user does."""
        self.client.delete(PODS, pod, "default", grace_seconds=0 if force else None)

    def phase(self, pod: str = "pod") -> str:
        """Return the pod's phase; "" if it is gone."""
        found = self.client.find(PODS, pod, "default")
        return str(found["status"]["phase"]) if found else ""

    def env(self, pod: str = "pod") -> dict[str, str]:
        """Return the environment of the pod's container; empty without a container."""
        containers = self.kubelet.containers("default", pod)
        return dict(containers["main"].env) if "main" in containers else {}
