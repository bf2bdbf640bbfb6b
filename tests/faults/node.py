"""A node plugin with real files, cards of a stand-in for NVML, and a simulated API server."""

import contextlib
import os
import shutil
import signal
import subprocess
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import grpc

from dra_simulator.api.gates import DEFAULT_GATES
from dra_simulator.apiserver import ApiServer
from dra_simulator.node import plugin
from dra_simulator.rest import CLAIMS, NODES, SLICES, Client, Json
from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims.claim import ClaimRef
from tests.discovery.nvml import nvml_machine
from tests.support.forks import Starter
from tests.support.kubelet import PluginClient
from tests.support.waiting import PATIENCE_SECONDS, eventually

if TYPE_CHECKING:
    from tensorfusion_dra.app.simulate.plugin_process import Process

NODE_NAME: Final = "node-01"
POOL: Final = f"default/{NODE_NAME}"
CARDS: Final = 2

Answer = dict[str, str | list[tuple[str, ...]]]
"""By claim UID: an error, or for each device the fields that the kubelet keeps."""


def device(card: int) -> str:
    """Return the device name of the node's nth card."""
    return f"gpu-{nvml_machine.uuid(card).removeprefix('GPU-')}"


class Node:
    """One node: its disk, its API server, and its node plugin, which may not run."""

    def __init__(self, folder: Path, starter: Starter, nvml: Path) -> None:
        """Create the node without starting its plugin.

        Args:
            folder: Has a short path, because sockets are below it.
            nvml: Path of the stand-in for NVML library.
        """
        self.root: Final = folder / "n"
        self.kubelet_root: Final = self.root / "k"
        self.data_folder: Final = self.kubelet_root / "plugins" / names.DRIVER
        self.cdi_folder: Final = self.root / "cdi"
        self.metadata_folder: Final = self.data_folder / names.METADATA_FOLDER
        self.tensor_fusion_root: Final = self.root / "tf"
        self.limits_folder: Final = self.tensor_fusion_root / "claims"
        self.log_file: Final = folder / "log"
        self._snapshot: Final = folder / "snapshot"
        self._starter: Final = starter
        self._process: Process | None = None
        self.server: Final = ApiServer(gates=DEFAULT_GATES)
        self.server.start()
        self.client: Final = Client(self.server.url)
        self.client.create(
            NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE_NAME}}
        )
        self.nvml_answers: Final = folder / "nvml"
        self.set_cards(CARDS)
        self._build_disk(folder)
        self.flags: Final = [
            *("--node-name", NODE_NAME),
            *("--kubeconfig", str(self.server.kubeconfig(folder / "kubeconfig"))),
            *("--kubelet-root", str(self.kubelet_root)),
            *("--cdi-dir", str(self.cdi_folder)),
            *("--tensor-fusion-root", str(self.tensor_fusion_root)),
            *("--dev-dir", str(folder / "dev")),
            *("--driver-root", str(folder / "driver")),
            *("--nvml-library", str(nvml)),
            *("--data-dir", str(folder)),
            *("--static-cdi-dir", str(folder / "static-cdi")),
            # Its limiter is there, and nothing more: claims are prepared all the same.
            *("--enforcer", "tensor-fusion"),
            *("--device-metadata", "true"),
            # No periodic reconciliation: at a random moment, it would add its steps to any test.
            *("--poll-seconds", "86400"),
        ]

    def _build_disk(self, folder: Path) -> None:
        for path in (self.cdi_folder, self.tensor_fusion_root, folder / "dev"):
            path.mkdir(parents=True)
        (self.tensor_fusion_root / "libcuda_limiter.so").touch()
        for node in ("nvidiactl", "nvidia-uvm", *(f"nvidia{card}" for card in range(CARDS))):
            (folder / "dev" / node).symlink_to("/dev/null")
        libraries = folder / "driver" / "usr" / "lib64"
        libraries.mkdir(parents=True)
        for library in ("libcuda.so.1", "libnvidia-ml.so.1"):
            (libraries / library).touch()

    def close(self) -> None:
        """Stop the node plugin and the API server."""
        if self._process is not None:
            self.end(signal.SIGKILL)
        self.server.stop()

    def set_cards(self, count: int) -> None:
        """Let NVML report this number of cards from the next reading on."""
        cards = (nvml_machine.card(index) for index in range(count))
        self.nvml_answers.write_text(nvml_machine.answers(*cards), encoding="utf-8")

    # The process

    def launch(self) -> None:
        """Start the node plugin without waiting; it may die at any step."""
        environment = {"STAND_IN_GPUS": str(self.nvml_answers)}
        arguments = ("node-plugin", *self.flags)
        self._process = self._starter.start(arguments, self.log_file, environment)

    def start(self) -> None:
        """Start the node plugin and return once it serves the kubelet."""
        self.launch()
        assert eventually(self.is_served), self.log()

    def is_served(self) -> bool:
        """Return True if the registration socket, which is created last, answers."""
        path = self.registration_socket
        return path.is_socket() and plugin.is_served(str(path))

    def is_alive(self) -> bool:
        """Return True if the node plugin has not ended; it may be about to."""
        _, _, fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")
        return fields.split()[0] != "Z"

    def wait(self, *, seconds: float = PATIENCE_SECONDS) -> int | None:
        """Wait for the end of the node plugin; return its exit code, negative for a signal.

        If it does not end in time, kill it and return None.
        """
        assert self._process is not None
        code: int | None = None
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.kill(self.pid, signal.SIGKILL)
            self._process.wait(PATIENCE_SECONDS)
        self._process = None
        return code

    def end(self, number: signal.Signals = signal.SIGTERM) -> int | None:
        """Send this signal and return the exit code; None if the node plugin did not end."""
        os.kill(self.pid, number)
        return self.wait()

    @property
    def has_process(self) -> bool:
        """True if there is a node plugin, dead or alive."""
        return self._process is not None

    @property
    def pid(self) -> int:
        """Process ID of the running node plugin."""
        assert self._process is not None
        return self._process.pid

    @property
    def registration_socket(self) -> Path:
        """Socket on which the kubelet registers the plugin."""
        return self.kubelet_root / "plugins_registry" / f"{names.DRIVER}-reg.sock"

    @property
    def dra_socket(self) -> Path:
        """Socket on which the kubelet calls the plugin."""
        return self.data_folder / "dra.sock"

    def log(self) -> str:
        """Return the end of the plugin's log."""
        return self.log_file.read_text()[-4000:] if self.log_file.exists() else "nothing logged"

    # The disk

    def take_snapshot(self) -> None:
        """Save the disk; call it only while no plugin runs."""
        shutil.rmtree(self._snapshot, ignore_errors=True)
        shutil.copytree(self.root, self._snapshot, symlinks=True)

    def restore_snapshot(self) -> None:
        """Restore the disk as saved by take_snapshot()."""
        shutil.rmtree(self.root)
        shutil.copytree(self._snapshot, self.root, symlinks=True)

    # The kubelet's calls

    def prepare(self, *refs: ClaimRef) -> Answer | None:
        """Prepare the claims; return the answer, or None if the process ended without one."""
        response = self._call(PluginClient.prepare, refs)
        return response and {uid: _answer(entry) for uid, entry in response.claims.items()}

    def unprepare(self, *refs: ClaimRef) -> Mapping[str, str] | None:
        """Unprepare the claims; return errors by UID ("" for none), or None without an answer."""
        response = self._call(PluginClient.unprepare, refs)
        return response and {uid: entry.error for uid, entry in response.claims.items()}

    def _call(self, method: Callable[..., Any], refs: Sequence[ClaimRef]) -> Any:
        with PluginClient(self.dra_socket) as kubelet:
            try:
                return method(kubelet, *refs)
            except grpc.RpcError:
                return None

    # The API server

    def claim(
        self, name: str, card: int, *, vram: str, vram_limit: str = "", tflops: str = "50"
    ) -> ClaimRef:
        """Create an allocated claim for a share of the card."""
        limit = {names.ANNOTATION_VRAM_LIMIT: vram_limit} if vram_limit else {}
        requests = [{"name": "gpu", "exactly": {"deviceClassName": names.DEVICE_CLASS}}]
        stored = self.client.create(
            CLAIMS,
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {"name": name, "namespace": "default", "annotations": limit},
                "spec": {"devices": {"requests": requests}},
            },
        )
        result = {
            "request": "gpu",
            "driver": names.DRIVER,
            "pool": POOL,
            "device": device(card),
            "shareID": str(uuid.uuid5(uuid.NAMESPACE_OID, name)),
            "consumedCapacity": {"tflops": tflops, "vram": vram},
        }
        stored["status"] = {"allocation": {"devices": {"results": [result]}}}
        self.client.replace_status(CLAIMS, stored)
        return ClaimRef(namespace="default", name=name, uid=stored["metadata"]["uid"])

    def slices(self) -> list[Json]:
        """Return the stored slices, sorted by name."""
        return sorted(
            self.client.list(SLICES).items, key=lambda item: str(item["metadata"]["name"])
        )

    def put_slices(self, specs: Mapping[str, Json]) -> None:
        """Replace the stored slices by these, given by name."""
        for item in self.slices():
            self.client.delete(SLICES, item["metadata"]["name"])
        for name, slice_ in specs.items():
            self.client.create(SLICES, {**slice_, "metadata": {**slice_["metadata"], "name": name}})


def _answer(entry: Any) -> str | list[tuple[str, ...]]:
    if entry.error:
        return str(entry.error)
    return [
        (item.pool_name, item.device_name, item.share_id, *item.request_names, *item.cdi_device_ids)
        for item in entry.devices
    ]


@contextlib.contextmanager
def running(node: Node) -> Iterator[Node]:
    """Run the plugin for the block; at its end, stop it in order."""
    node.start()
    yield node
    assert node.end() == 0, node.log()


def published(slices: Sequence[Json]) -> list[str]:
    """Return the devices of the newest pool generation; none if it is incomplete."""
    newest = max((item["spec"]["pool"]["generation"] for item in slices), default=0)
    found = [item for item in slices if item["spec"]["pool"]["generation"] == newest]
    if any(item["spec"]["pool"]["resourceSliceCount"] != len(found) for item in found):
        return []
    return sorted(entry["name"] for item in found for entry in item["spec"].get("devices") or [])
