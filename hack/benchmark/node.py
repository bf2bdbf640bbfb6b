"""A node plugin on a simulated node without scheduler and kubelet, whose work would disturb."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import grpc

from benchmark.target import Target
from dra_simulator.node.plugin import is_served
from dra_simulator.rest import CLASSES, NODES, Client
from tensorfusion_dra.app.simulate import cluster, plugin_process
from tensorfusion_dra.app.simulate.cluster import SimulatedCluster
from tensorfusion_dra.app.simulate.plugin_process import Process
from tensorfusion_dra.core import names
from tensorfusion_dra.kubelet.pb import pluginregistration_v1_pb2 as pb

CAPACITY: Final[Mapping[str, str]] = {"tflops": "10m", "vram": "4Mi"}
"""What each claim consumes, so little that 10,000 fit on a card."""

_HACK: Final = Path(__file__).resolve().parents[1]
_START_SECONDS: Final = 30


class BareNode(SimulatedCluster):
    """Simulated API server and node plugins; the bench does the part of scheduler and kubelet."""

    def start(self) -> None:
        """Start the API server."""
        self.cdi_folder.mkdir()
        self.server.start()
        self.client = Client(self.server.url)
        self.kubeconfig = self.server.kubeconfig(self.folder / "kubeconfig")
        for each in cluster.device_classes():
            self.client.create(CLASSES, each)
        metadata = {"name": self.node_name}
        self.client.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": metadata})

    def stop(self) -> None:
        """Stop the node plugin and the API server."""
        self.stop_plugin()
        self.server.stop()

    @property
    def target(self) -> Target:
        """The node plugin."""
        return Target(
            socket=self.kubelet_root / "plugins" / names.DRIVER / "dra.sock",
            driver=names.DRIVER,
            device_class=names.DEVICE_CLASS,
            capacity=CAPACITY,
        )

    def start_plugin(self, pod_uid: str = "") -> int:
        """Start and register the node plugin; return its process ID once it has published."""
        pid = super().start_plugin(pod_uid)
        self.until("serving", lambda: is_served(str(self.target.socket)), seconds=_START_SECONDS)
        self.until("published", lambda: bool(self.slices()), seconds=_START_SECONDS)
        for socket in (self.kubelet_root / "plugins_registry").glob("*.sock"):
            _notify_registered(socket)
        return pid


def _notify_registered(socket: Path) -> None:
    """Report success as the kubelet does; else the node plugin binds its socket again each minute.

    Raises:
        RpcError: There is no answer in time.
    """
    with grpc.insecure_channel(f"unix:{socket}") as channel:
        notify = channel.unary_unary(
            "/pluginregistration.Registration/NotifyRegistrationStatus",
            request_serializer=pb.RegistrationStatus.SerializeToString,
            response_deserializer=pb.RegistrationStatusResponse.FromString,
        )
        notify(pb.RegistrationStatus(plugin_registered=True), timeout=_START_SECONDS)


@contextmanager
def running(gpus: str) -> Iterator[BareNode]:
    """Yield a simulated node with these simulated GPUs, without a node plugin."""
    with TemporaryDirectory(prefix="tfb-") as folder:
        node = BareNode(Path(folder), gpus=gpus)
        node.start()
        try:
            yield node
        finally:
            node.stop()


@contextmanager
def plugins_as(
    module: str, environment: Mapping[str, str], *, python: str = sys.executable
) -> Iterator[None]:
    """Start node plugins by another module during the block, with these additional variables.

    Args:
        python: Their interpreter.
    """
    paths = [str(_HACK), str(_HACK.parent), os.environ.get("PYTHONPATH", "")]
    variables = {
        **os.environ,
        **environment,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }

    def spawn(command: Sequence[str], log_file: Path) -> Process:
        verb = command.index("node-plugin")
        with log_file.open("ab") as log:
            return subprocess.Popen(
                [python, "-m", module, *command[verb:]],
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd=_HACK.parent,
                env=variables,
            )

    usual, plugin_process.spawn = plugin_process.spawn, spawn
    try:
        yield
    finally:
        plugin_process.spawn = usual
