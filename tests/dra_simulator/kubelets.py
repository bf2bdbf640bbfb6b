"""Kubelets and plugins for tests, in a folder with a short path."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from dra_simulator.apiserver import ApiServer
from dra_simulator.kubelet import REGISTRATION_FOLDER, Kubelet
from dra_simulator.node.plugin import Entry, Timings
from dra_simulator.rest import CLAIMS, PODS, Client
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

    def __init__(self, api: ApiServer, folder: Path, stack: ExitStack) -> None:
        self.client = Client(api.url)
        self.folder = folder
        self.runtime = Runtime([folder / "cdi"])
        self.kubelet: Kubelet
        self._url = api.url
        self._stack = stack
        self._running: ExitStack | None = None

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
        assert self._running is not None
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

    def is_registered(self) -> bool:
        """Return True if a plugin of the driver is registered with the kubelet."""
        return DRIVER in self.kubelet.registered

    def happened(self, event: str) -> list[Entry]:
        """Return the journal's entries of an event."""
        return [entry for entry in self.kubelet.journal if entry.event == event]

    def pod(self, name: str = "pod", *, claim: Json, uses: bool = True) -> Json:
        """Create a pod on the node and reserve a claim for it."""
        made = objects.pod(name, claim_name=claim["metadata"]["name"], uses=uses)
        made = self.client.create(PODS, made)
        self.reserve(claim, made)
        self.client.bind(made, NODE)
        return made

    def run(self, name: str = "pod", *, claim: Json | None = None) -> None:
        """Create a pod as `pod` does, and wait until it runs."""
        self.pod(name, claim=claim or self.claim())
        eventually(lambda: self.phase(name) == "Running")

    def claim(self, name: str = "claim") -> Json:
        """Create a claim and allocate a device of the node to it."""
        claim = self.client.create(CLAIMS, objects.claim(name=name))
        result = {"request": "gpu", "driver": DRIVER, "pool": NODE, "device": "gpu-0"}
        claim["status"] = {"allocation": {"devices": {"results": [result]}}}
        return self.client.replace_status(CLAIMS, claim)

    def reserve(self, claim: Json, pod: Json) -> None:
        """Reserve the claim for the pod."""
        latest = self.client.get(CLAIMS, claim["metadata"]["name"], "default")
        names = {name: pod["metadata"][name] for name in ("name", "uid")}
        reserved = [*latest["status"].get("reservedFor", ()), {"resource": "pods", **names}]
        latest["status"]["reservedFor"] = reserved
        self.client.replace_status(CLAIMS, latest)

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


@contextmanager
def node_under_test(api: ApiServer) -> Iterator[NodeUnderTest]:
    """Yield a node on which no kubelet runs yet."""
    # Not pytest's tmp_path: a socket's path may have at most 107 bytes.
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    try:
        with ExitStack() as stack:
            yield NodeUnderTest(api, folder, stack)
    finally:
        shutil.rmtree(folder)
