"""A node plugin with real files, cards of a stand-in for NVML, and a simulated API server."""

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import grpc

from dra_simulator.api.gates import DEFAULT_GATES
from dra_simulator.apiserver import ApiServer
from dra_simulator.node import plugin
from dra_simulator.rest import CLAIMS, NODES, SLICES, Client, Json
from tensorfusion_dra.app.simulate.cluster import port_of_no_client
from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.kubelet.dra import MAX_STREAMS
from tests.discovery.nvml import nvml_machine
from tests.support.builders.documents import claim_document, slice_document
from tests.support.builders.stored_claims import allocation_result
from tests.support.forks import Starter
from tests.support.kubelet import PluginClient
from tests.support.waiting import PATIENCE_SECONDS, eventually

if TYPE_CHECKING:
    from tensorfusion_dra.app.simulate.plugin_process import Process

NODE_NAME: Final = "node-01"

CARDS: Final = 2

Answer = dict[str, str | list[tuple[str, ...]]]
"""By claim UID: an error, or for each device the fields that the kubelet keeps."""


_OTHER_WORKERS: Final = 32 - MAX_STREAMS
"""Threads that serve calls other than streams; a new one starts when all are busy."""
_SAME_READINGS: Final = 15
"""Number of equal readings in a row that count as settled."""


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
        self.registration_socket: Final = (
            self.kubelet_root / "plugins_registry" / f"{names.DRIVER}-reg.sock"
        )
        self.dra_socket: Final = self.data_folder / "dra.sock"
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
        self._nvml_answers: Final = folder / "nvml"
        cards = [nvml_machine.card(index) for index in range(CARDS)]
        self._nvml_answers.write_text(nvml_machine.answers(*cards), encoding="utf-8")
        nvml_machine.provide_driver(folder, cards=CARDS)
        for path in (self.cdi_folder, self.tensor_fusion_root):
            path.mkdir(parents=True)
        (self.tensor_fusion_root / "libcuda_limiter.so").touch()
        self._flags: Final = [
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

    def close(self) -> None:
        """Stop the node plugin and the API server."""
        self.kill()
        self.server.stop()

    def use_hami_core(self) -> Path:
        """Have claims limited by HAMi-core, with compute lent; return the enforcer's folder."""
        library = self.tensor_fusion_root.parent / "libvgpu.so.1"
        library.touch()
        self._flags.extend(
            [
                *("--enforcer", "hami-core", "--hami-core-library", str(library)),
                *("--default-compute-limit", "card"),
            ]
        )
        return self.tensor_fusion_root / "hami-core"

    def serve_metrics(self) -> str:
        """Have the node plugin serve metrics; return their URL."""
        address = f"127.0.0.1:{port_of_no_client()}"
        self._flags.extend(["--metrics-address", address])
        return f"http://{address}/metrics"

    # The process

    def launch(self) -> None:
        """Start the node plugin without waiting; it may die at any step."""
        environment = {"STAND_IN_GPUS": str(self._nvml_answers)}
        arguments = ("node-plugin", *self._flags)
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
        process, self._process = self._process, None
        assert process is not None
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(PATIENCE_SECONDS)
        return None

    def end(self) -> int | None:
        """Stop the node plugin in order; return its exit code, None if it did not end."""
        os.kill(self.pid, signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        """Kill the node plugin if it runs."""
        if self._process is not None:
            self._process.kill()
            self.wait()

    @property
    def pid(self) -> int:
        """Process ID of the running node plugin."""
        assert self._process is not None
        return self._process.pid

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
        metadata = {"name": name, "namespace": "default", "annotations": limit}
        stored = self.client.create(CLAIMS, {**claim_document(), "metadata": metadata})
        result = allocation_result(device(card), tflops=tflops, vram=vram)
        allocation = {"devices": {"results": [result]}}
        self.client.replace_status(CLAIMS, {**stored, "status": {"allocation": allocation}})
        return ClaimRef(namespace="default", name=name, uid=stored["metadata"]["uid"])

    def slices(self) -> list[Json]:
        """Return the stored slices, sorted by name."""
        return sorted(
            self.client.list(SLICES).items, key=lambda item: str(item["metadata"]["name"])
        )

    def put_slices(self, specs: Mapping[str, Json]) -> None:
        """Replace the stored slices by new ones with these specs, by name."""
        for item in self.slices():
            self.client.delete(SLICES, item["metadata"]["name"])
        for name, spec in specs.items():
            self.client.create(SLICES, {**slice_document(name), "spec": spec})


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


# Leaked files and threads


@contextlib.contextmanager
def nothing_left_open(node: Node) -> Iterator[None]:
    """Check that the block leaves the number of open files equal and adds only worker threads."""
    with contextlib.ExitStack() as kubelets:
        clients = [
            kubelets.enter_context(PluginClient(node.dra_socket)) for _ in range(MAX_STREAMS)
        ]
        streams = [client.watch_health() for client in clients]
        # The first reports are empty while the cards have not been read.
        assert all(any(report.devices for report in stream) for stream in streams)
    files, threads = _settled(node)
    yield
    files_after, threads_after = _settled(node)
    assert len(files_after) == len(files), (
        f"more: {sorted(files_after - files)}, fewer: {sorted(files - files_after)}"
    )
    assert threads <= threads_after <= threads + _OTHER_WORKERS


def _settled(node: Node) -> tuple[frozenset[str], int]:
    """Return open files and number of threads, once closed connections are gone."""
    seen: list[tuple[frozenset[str], int]] = []

    def is_settled() -> bool:
        seen.append((_files(node.pid), len([*Path(f"/proc/{node.pid}/task").iterdir()])))
        return len(seen) > _SAME_READINGS and len(set(seen[-_SAME_READINGS:])) == 1

    assert eventually(is_settled), seen
    return seen[-1]


def _files(pid: int) -> frozenset[str]:
    """Return each open file as descriptor and target.

    Connections to the API server are left out, because a pool keeps as many as were ever in use at
    the same time.
    """
    process = Path(f"/proc/{pid}")
    tcp = (process / "net" / "tcp").read_text().splitlines()[1:]
    connections = {f"socket:[{line.split()[9]}]" for line in tcp}
    targets = set()
    for link in (process / "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it was closed in the meantime
            targets.add((link.name, str(link.readlink())))
    return frozenset(f"{name} {target}" for name, target in targets if target not in connections)
