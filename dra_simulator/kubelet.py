"""Kubelet that registers plugins over real sockets and calls them to prepare pods' claims."""

from pathlib import Path
from typing import Final

from dra_simulator import podclaims
from dra_simulator.node.plugin import (
    DeviceHealth,
    Entry,
    KubeletContext,
    Plugin,
    Plugins,
    PluginSockets,
    Timings,
)
from dra_simulator.node.pods import ADDRESS, Pods, Preparation
from dra_simulator.rest import NODES, ApiError, Client, Json
from dra_simulator.runtime import Container, Runtime

REGISTRATION_FOLDER: Final = "plugins_registry"

_CAPACITY: Final = {"cpu": "8", "memory": "64Gi", "ephemeral-storage": "100Gi", "pods": "110"}
_CHECKPOINT: Final = "dra_manager_state"
_CONFLICT: Final = 409
_TIMINGS: Final = Timings()


class Kubelet:
    """Kubelet of one node, limited to DRA (release 1.37).

    To simulate a restart, create a new object with the same folder and runtime. To simulate a
    reboot, create one with the same folder and a new runtime.
    """

    def __init__(
        self,
        url: str,
        node_name: str,
        *,
        root_dir: Path,
        runtime: Runtime,
        timings: Timings = _TIMINGS,
        wipe_at_start: bool = False,
    ) -> None:
        """Create a kubelet; `start` makes it run.

        Args:
            url: URL of the API server.
            root_dir: Folder of the watched plugins_registry and of the checkpoint. Keep the path
                short, because the length of socket paths is limited.
            wipe_at_start: Delete all slices of the node at the start, as a real kubelet does.
        """
        self._setting: Final = KubeletContext(
            node_name=node_name,
            client=Client(url),
            timings=timings,
        )
        self.registration_dir: Final = root_dir / REGISTRATION_FOLDER
        self._runtime: Final = runtime
        self._wipe_at_start: Final = wipe_at_start
        self._plugins: Final = Plugins(self._setting)
        self._sockets: Final = PluginSockets(
            self.registration_dir, self._plugins, setting=self._setting
        )
        root_dir.mkdir(parents=True, exist_ok=True)
        preparation = Preparation(
            self._setting.client, self._plugins, checkpoint=root_dir / _CHECKPOINT
        )
        self._pods: Final = Pods(self._setting, preparation=preparation, runtime=runtime)

    def start(self) -> None:
        """Create the Node object, then start registering plugins and running pods.

        Raises:
            RestError: The API server does not answer.
        """
        self._register_node()
        self._plugins.start(wipe_all=self._wipe_at_start)
        self._sockets.start()
        self._pods.start()

    def stop(self) -> None:
        """Stop all threads; pods and prepared claims stay as they are."""
        self._sockets.stop()
        # Before the pods: this ends the calls in progress that the pods' workers wait for.
        self._plugins.stop()
        self._pods.stop()

    def __enter__(self) -> "Kubelet":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def registered(self) -> dict[str, tuple[Plugin, ...]]:
        """The registered plugins by driver, in the order of their registration."""
        return self._plugins.registered

    @property
    def health(self) -> dict[tuple[str, str, str], DeviceHealth]:
        """Reported health by driver, pool and device; devices of unknown health are left out."""
        return self._plugins.health

    @property
    def journal(self) -> tuple[Entry, ...]:
        """Entries of the journal so far."""
        return tuple(self._setting.journal)

    def containers(self, namespace: str, pod: str) -> dict[str, Container]:
        """Containers of a pod by name; empty if it has none (yet)."""
        uid = self._pods.uid(namespace, pod)
        return {} if uid is None else self._runtime.containers(uid)

    def _register_node(self) -> None:
        name = self._setting.node_name
        node = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
            "status": _ready(name),
        }
        try:
            self._setting.client.create(NODES, node)
        except ApiError as error:
            if error.status != _CONFLICT:
                raise


def _ready(node_name: str) -> Json:
    """Return the status of a node that accepts pods; it does not depend on the machine."""
    now = podclaims.now()
    condition = {
        "type": "Ready",
        "status": "True",
        "lastHeartbeatTime": now,
        "lastTransitionTime": now,
        "reason": "KubeletReady",
        "message": "kubelet is posting ready status",
    }
    return {
        "capacity": dict(_CAPACITY),
        "allocatable": dict(_CAPACITY),
        "conditions": [condition],
        "addresses": [
            {"type": "InternalIP", "address": ADDRESS},
            {"type": "Hostname", "address": node_name},
        ],
        "nodeInfo": {
            "kubeletVersion": "v1.37.2",
            "containerRuntimeVersion": "simulated://1.37.2",
            "osImage": "simulated",
            "kernelVersion": "simulated",
            "operatingSystem": "linux",
            "architecture": "amd64",
        },
    }
