"""Simulated cluster of one node on this machine, and its objects; only the node plugin is real."""

import random
import socket
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from dra_simulator import match_conditions
from dra_simulator.api.gates import DEFAULT_GATES
from dra_simulator.apiserver import ApiServer
from dra_simulator.claim_controller import ClaimController
from dra_simulator.kubelet import Kubelet
from dra_simulator.rest import (
    CLAIMS,
    CLASSES,
    PODS,
    RESOURCE_V1,
    SLICES,
    TEMPLATES,
    Client,
    Json,
)
from dra_simulator.runtime import Container, Runtime
from dra_simulator.scheduler import Scheduler
from tensorfusion_dra.app.shared.setting_sources import flag
from tensorfusion_dra.app.simulate.plugin_process import PluginProcess, WaitError
from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims import share_policy
from tensorfusion_dra.core.devices.gpu import Isolation
from tensorfusion_dra.core.kubernetes import releases
from tensorfusion_dra.enforcers import registered
from tensorfusion_dra.scheduling import cel_evaluation

_POLL_SECONDS: Final = 0.05
PATIENCE_SECONDS: Final = 120.0
"""Default timeout of a wait; long, because a wait ends earlier if a process ends."""


class SimulatedCluster:
    """API server, claim controller, scheduler and kubelet in this process, with node plugins.

    A node plugin is a process of its own with its production flags. Several node plugins can run on
    the node at the same time if each has a pod UID, as during a rolling update.

    Attributes:
        plugin_flags: Additional flags for the next start of a node plugin.
        pages_url: Address of the node plugin's status page; "" without serve_pages().
    """

    def __init__(
        self,
        folder: Path,
        *,
        gpus: str,
        node_name: str = "node-01",
        gates: Collection[str] = DEFAULT_GATES,
        tensor_fusion: bool = False,
        release: int = releases.SIMULATED,
    ) -> None:
        """Store the options; start() starts the cluster.

        Args:
            folder: Folder for all files of the cluster. Its path must be short, because it holds
                Unix sockets.
            gpus: Value of the node plugin's `--simulated-gpus`.
            gates: The enabled feature gates.
            tensor_fusion: Whether the API server serves GPUPools.
            release: Minor version of Kubernetes.
        """
        self.folder: Final = folder
        self.node_name = node_name
        self.kubelet_root: Final = folder / "kubelet"
        self.cdi_folder: Final = folder / "cdi"
        self.log_file: Final = self.log_file_of("")
        self.plugin_flags: Final = ["--simulated-gpus", gpus, "--observe-use", "true"]
        self.server: Final = ApiServer(
            gates=gates,
            release=release,
            tensor_fusion=tensor_fusion,
            check_expression=partial(cel_evaluation.check_expression, release=release),
            condition_holds=match_conditions.holds,
        )
        self.pages_url = ""
        self._release: Final = release
        self._running = ExitStack()
        self._runtime: Final = Runtime([self.cdi_folder])
        self._plugins: Final[dict[str, PluginProcess]] = {}
        self._extra_processes: Final[dict[str, PluginProcess]] = {}

    def start(self) -> None:
        """Start everything but the node plugin; if a part cannot start, stop the started ones."""
        self.cdi_folder.mkdir()
        with ExitStack() as running:
            running.enter_context(self.server)
            self.client = Client(self.server.url)
            self.kubeconfig = self.server.kubeconfig(self.folder / "kubeconfig")
            for each in device_classes():
                self.client.create(CLASSES, each)
            running.enter_context(ClaimController(self.server.url))
            self.scheduler = running.enter_context(
                Scheduler(self.server.url, release=self._release)
            )
            running.callback(self._stop_kubelet)
            self.start_kubelet()
            self._running = running.pop_all()

    def stop(self) -> None:
        """Stop all processes and everything else; keep the folder."""
        for _, process in self._processes():
            process.stop()
        self._plugins.clear()
        self._running.close()

    def start_kubelet(self, *, wipe_slices: bool = False) -> None:
        """Start a new kubelet on the node's folder, after `kubelet.stop()`.

        Args:
            wipe_slices: Whether it first deletes the node's slices, as a real kubelet does.
        """
        self.kubelet = Kubelet(
            self.server.url,
            self.node_name,
            root_dir=self.kubelet_root,
            runtime=self._runtime,
            wipe_at_start=wipe_slices,
        )
        self.kubelet.start()

    def _stop_kubelet(self) -> None:
        """Stop the present kubelet, which may be another one than at the start."""
        self.kubelet.stop()

    def plugin_command(self, pod_uid: str = "") -> list[str]:
        """Return the command line of a node plugin, with no host path of this machine."""
        host_paths = {
            "kubelet-root": self.kubelet_root,
            "cdi-dir": self.cdi_folder,
            "static-cdi-dir": self.folder / "static-cdi",
            "data-dir": self.folder,
            "dev-dir": self.folder / "dev",
            "driver-root": self.folder / "driver",
            "driver-root-on-host": self.folder / "driver",
            "tensor-fusion-root": self.folder / "tensor-fusion",
        }
        for enforcer in registered.DECLARED.values():
            for name, declared in enforcer.settings.items():
                if declared.metadata["is_path"] and declared.default:
                    host_paths[flag(name)] = self.folder / declared.default.lstrip("/")
        return [
            *(sys.executable, "-m", "tensorfusion_dra", "node-plugin"),
            *("--node-name", self.node_name),
            *("--kubeconfig", str(self.kubeconfig)),
            *(word for name, path in host_paths.items() for word in (f"--{name}", str(path))),
            *(("--pod-uid", pod_uid) if pod_uid else ()),
            *self.plugin_flags,
        ]

    def start_plugin(self, pod_uid: str = "") -> int:
        """Start the node plugin of a pod and return its process ID; other plugins keep running."""
        plugin = PluginProcess(self.plugin_command(pod_uid), self.log_file_of(pod_uid))
        self._plugins[pod_uid] = plugin
        return plugin.pid

    def serve_pages(self) -> None:
        """Have the node plugin serve its pages on loopback, on a free port; see pages_url."""
        port = port_of_no_client()
        address = f"{LOOPBACK}:{port}"
        self.plugin_flags.extend(["--metrics-address", address, "--health-address", address])
        self.pages_url = f"http://{LOOPBACK}:{port}/"

    def plugin(self, pod_uid: str = "") -> PluginProcess:
        """Return the process that was started last for a pod, to watch it or to signal it."""
        return self._plugins[pod_uid]

    def stop_plugin(self, pod_uid: str = "") -> int | None:
        """Stop a node plugin as the kubelet stops a pod: SIGTERM, then SIGKILL after a timeout.

        Returns:
            Its exit code; None if the pod has no process.
        """
        plugin = self._plugins.pop(pod_uid, None)
        return plugin.stop() if plugin else None

    def kill_plugin(self, pod_uid: str = "") -> None:
        """Kill a node plugin with SIGKILL; its sockets stay behind."""
        self._plugins.pop(pod_uid).kill()

    def watch_process(self, name: str, process: PluginProcess) -> None:
        """Let waits fail if this process ends, and stop it with the cluster."""
        self._extra_processes[name] = process

    def log_file_of(self, pod_uid: str) -> Path:
        """Return the log file of a pod's node plugins."""
        return self.folder / (f"node-plugin-{pod_uid}.log" if pod_uid else "node-plugin.log")

    def until(
        self,
        what: str,
        condition: Callable[[], bool],
        *,
        seconds: float = PATIENCE_SECONDS,
        explain: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        """Return once the condition holds.

        Args:
            what: Name of the awaited event, such as ``publication``.
            explain: Returns additional lines for the error; called if the wait fails.

        Raises:
            WaitError: The condition did not become true in time, or a process ended.
        """
        deadline = time.monotonic() + seconds
        while not condition():
            reasons = [
                f"the {name} ended with {process.exit_code}"
                for name, process in self._processes()
                if process.exit_code is not None and not process.is_stopping
            ]
            if time.monotonic() > deadline:
                reasons.append(f"not within {seconds:g} s")
            if reasons:
                problems = [
                    f"{name}: {line}"
                    for name, process in self._processes()
                    for line in process.problems()
                ]
                raise WaitError(f"{what}: {reasons[0]}", (*explain(), *problems))
            time.sleep(_POLL_SECONDS)

    def _processes(self) -> Sequence[tuple[str, PluginProcess]]:
        plugins = (
            (f"node plugin {pod_uid}".rstrip(), plugin) for pod_uid, plugin in self._plugins.items()
        )
        return (*plugins, *self._extra_processes.items())

    def slices(self) -> list[Json]:
        """Return the stored ResourceSlices, sorted by name."""
        return sorted(
            self.client.list(SLICES).items, key=lambda item: str(item["metadata"]["name"])
        )

    def submit(
        self, name: str, asks: Mapping[str, str], annotations: Mapping[str, str] | None = None
    ) -> None:
        """Create a pod with one container, and the template of its claim.

        Args:
            name: Name of the pod and of the template.
            asks: Requested quantities by capacity; empty requests a whole card.
            annotations: Annotations of the claim.
        """
        self.client.create(TEMPLATES, template_document(name, asks, annotations or {}))
        self.client.create(PODS, pod_document(name))

    def pod(self, name: str) -> Json:
        """Return the stored pod."""
        return self.client.get(PODS, name, NAMESPACE)

    def containers_of(self, name: str) -> list[Container]:
        """Return the pod's containers with devices, as the runtime created them."""
        containers = self.kubelet.containers(NAMESPACE, name)
        return [containers[key] for key in sorted(containers) if containers[key].cdi_ids]

    def container_of(self, name: str) -> Container | None:
        """Return the first of these containers, or None."""
        return next(iter(self.containers_of(name)), None)

    def delete(self, name: str) -> None:
        """Delete the pod and its template; the pod ends later."""
        self.client.delete(PODS, name, NAMESPACE)
        self.client.delete(TEMPLATES, name, NAMESPACE)

    def claim_of(self, pod: Json) -> Json | None:
        """Return the claim that was generated for a pod; None if there is none yet."""
        for entry in pod.get("status", {}).get("resourceClaimStatuses") or []:
            return self.client.find(CLAIMS, entry["resourceClaimName"], NAMESPACE)
        return None

    def claims(self) -> list[Json]:
        """Return all claims."""
        return self.client.list(CLAIMS).items

    def spec_files(self) -> list[Path]:
        """Return the paths of this driver's CDI specs."""
        return sorted(self.cdi_folder.glob(f"{names.CDI_FILE_PREFIX}*.json"))


NAMESPACE: Final = "default"
IMAGE_ENV: Final = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
"""The environment of the image of every container."""

_CLAIM: Final = "gpu"
_CONTAINER: Final = "app"


def _object(api_version: str, kind: str, name: str, namespace: str = "") -> Json:
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata}


def device_classes() -> Iterator[Json]:
    """Yield the driver's DeviceClasses, as the chart has them."""
    own = f'device.driver == "{names.DRIVER}"'
    partition = f'device.attributes["{names.DRIVER}"].?{names.ATTR_PARTITION}.orValue("") != ""'
    parameters = {
        "apiVersion": share_policy.API_VERSION,
        "kind": share_policy.KIND,
        "isolation": Isolation.PARTITIONED.value,
        "overridable": False,
    }
    config = [{"opaque": {"driver": names.DRIVER, "parameters": parameters}}]
    for name, expression, more in (
        (names.DEVICE_CLASS, own, {}),
        (names.PARTITION_CLASS, f"{own} && {partition}", {"config": config}),
    ):
        spec = {"selectors": [{"cel": {"expression": expression}}], **more}
        yield {**_object(RESOURCE_V1, "DeviceClass", name), "spec": spec}


def template_document(name: str, asks: Mapping[str, str], annotations: Mapping[str, str]) -> Json:
    """Return the template of a claim with one request.

    Args:
        name: Name of the template.
        asks: Requested quantities by capacity; empty requests a whole card.
        annotations: Annotations of the claim.
    """
    exactly: dict[str, Any] = {"deviceClassName": names.DEVICE_CLASS}
    if asks:
        exactly["capacity"] = {"requests": dict(asks)}
    requests = [{"name": _CLAIM, "exactly": exactly}]
    return {
        **_object(RESOURCE_V1, "ResourceClaimTemplate", name, NAMESPACE),
        "spec": {
            "metadata": {"annotations": dict(annotations)},
            "spec": {"devices": {"requests": requests}},
        },
    }


def pod_document(name: str) -> Json:
    """Return a pod with one container, whose claim is made from the template of the same name."""
    environment = [{"name": key, "value": value} for key, value in IMAGE_ENV.items()]
    container = {
        "name": _CONTAINER,
        "image": "app",
        "env": environment,
        "resources": {"claims": [{"name": _CLAIM}]},
    }
    claims: Sequence[Json] = [{"name": _CLAIM, "resourceClaimTemplateName": name}]
    return {
        **_object("v1", "Pod", name, NAMESPACE),
        "spec": {"resourceClaims": claims, "containers": [container]},
    }


LOOPBACK: Final = "127.0.0.1"

_PORTS: Final = range(20_000, 30_000)
"""Below the ports that Linux gives to clients (net.ipv4.ip_local_port_range, from 32768 on)."""


def port_of_no_client() -> int:
    """Return a free port that the kernel gives to no client, so that a server can bind it later."""
    for port in random.sample(_PORTS, len(_PORTS)):
        with suppress(OSError), socket.create_server((LOOPBACK, port)):
            return port
    raise OSError(f"found no free port on {LOOPBACK} from {_PORTS[0]} to {_PORTS[-1]}")
