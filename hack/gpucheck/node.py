"""A node plugin in temporary folders, under a simulated API server, with this machine's GPUs.

The check does the part of scheduler and kubelet: it allocates claims and prepares them at the
plugin's socket.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final
from uuid import uuid4

from benchmark.target import consumed
from dra_simulator.apiserver import ApiServer
from dra_simulator.node.context import Timings
from dra_simulator.node.plugin import ClaimRef, Plugin, PluginError, is_served
from dra_simulator.rest import CLAIMS, CLASSES, NODES, SLICES, Client, Json
from gpucheck import tenant
from gpucheck.machine import Machine
from gpucheck.steps import CheckError, Deadline
from gpucheck.tenant import Edits
from tensorfusion_dra.core import names
from tensorfusion_dra.core.kubernetes import quantity
from tensorfusion_dra.core.kubernetes.quantity import Quantity

REQUEST: Final = "gpu"

_NAME: Final = "gpu-check"
_NAMESPACE: Final = "default"
_SERVICES: Final = ("v1.DRAPlugin", "v1.DRAResourceHealth")
_PACKAGE_PARENT: Final = Path(__file__).resolve().parents[2]
_POLL_SECONDS: Final = 0.05
_STOP_SECONDS: Final = 15.0
_LOG_LINES: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A prepared claim.

    Attributes:
        edits: What a container with its CDI devices gets.
        spec: The CDI spec.
        seconds: Time that prepare took.
    """

    edits: Edits
    spec: Json
    seconds: float


class Node:
    """A node plugin with one enforcer.

    Attributes:
        root: Folder of all its files.
        pipes: Folder of an MPS daemon's sockets.
        shm: What containers get as /dev/shm under MPS.
        card: The published device that claims are for: the first by PCI bus ID, as CUDA counts.
    """

    def __init__(self, root: Path, machine: Machine, enforcer: str, *, shm: Path) -> None:
        """Create the folders and the API server; start() starts the plugin."""
        self.root: Final = root
        self.pipes: Final = root / "mps"
        self.shm: Final = shm
        self.card: Json = {}
        self.log_file: Final = root / "node-plugin.log"
        self._machine: Final = machine
        self._enforcer: Final = enforcer
        self._cdi: Final = root / "cdi"
        self._kubelet: Final = root / "k"
        self._socket: Final = self._kubelet / "plugins" / names.DRIVER / "dra.sock"
        self._pool = ""
        self._server: Final = ApiServer()
        self._process: subprocess.Popen[bytes] | None = None
        self._plugin: Final = Plugin(
            names.DRIVER,
            str(self._socket),
            services=_SERVICES,
            timings=Timings(),
            changed=lambda: None,
        )
        for folder in (self._cdi, self.pipes, root / "tf", root / "vgpu"):
            folder.mkdir(parents=True)
        self.library: Final = root / "vgpu" / "libvgpu.so.1"
        if machine.hami_core is not None:
            self.library.symlink_to(machine.hami_core.resolve())
        # The limiter itself is not loaded: nothing is checked without its hypervisor.
        (root / "tf" / "libcuda_limiter.so").touch()

    def start(self, deadline: Deadline) -> None:
        """Start the plugin and return once it has published the machine's cards.

        Raises:
            CheckError: It ended, or did not publish in time.
        """
        self._server.start()
        self._client = Client(self._server.url)
        self._client.create(CLASSES, _device_class())
        metadata = {"name": _NAME}
        self._client.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": metadata})
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                self._command(),
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd=_PACKAGE_PARENT,
                env=self._machine.environment(),
            )
        self._wait_for("its socket", lambda: is_served(str(self._socket)), deadline)
        self._wait_for("its devices", self._find_card, deadline)

    def stop(self) -> None:
        """Stop the plugin and the API server."""
        self._plugin.close()
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._server.stop()

    @property
    def vram_bytes(self) -> int:
        """Memory that the card publishes."""
        return quantity.parse(self.card["capacity"]["vram"]["value"]).ceil()

    def devices(self) -> list[Json]:
        """Return the published devices."""
        slices = self._client.list(SLICES).items
        return [device for each in slices for device in each["spec"].get("devices") or []]

    @contextmanager
    def prepared(self, *, percent: int, vram_bytes: int) -> Iterator["Prepared"]:
        """Prepare a claim for a part of the card during the block.

        Raises:
            CheckError: It was refused, or its spec cannot be used.
        """
        ref = self._create(percent, vram_bytes)
        try:
            began = time.monotonic()
            devices = self._plugin.prepare([ref])[ref.uid]
            seconds = time.monotonic() - began
            ids = [each for device in devices for each in device.cdi_ids]
            try:
                yield Prepared(
                    edits=tenant.edits_of(ids, self._cdi),
                    spec=json.loads(next(self._cdi.glob(f"*{ref.uid}*.json")).read_bytes()),
                    seconds=seconds,
                )
            finally:
                self._plugin.unprepare([ref])
        except PluginError as error:
            raise CheckError(f"{self._enforcer}: {error}{self._log()}") from error
        finally:
            self._client.delete(CLAIMS, ref.name, _NAMESPACE)

    def _create(self, percent: int, vram_bytes: int) -> ClaimRef:
        tflops = quantity.parse(self.card["capacity"]["tflops"]["value"])
        part = Quantity.milli(tflops.nano // 10**6 * percent // 100)
        wanted = {"tflops": str(part), "vram": str(Quantity.of_bytes(vram_bytes))}
        name = f"{_NAME}-{uuid4().hex[:12]}"
        request = {"name": REQUEST, "exactly": {"deviceClassName": names.DEVICE_CLASS}}
        stored = self._client.create(
            CLAIMS,
            {
                "apiVersion": CLAIMS.api_version,
                "kind": CLAIMS.kind,
                "metadata": {
                    "name": name,
                    "namespace": _NAMESPACE,
                    # As the webhook marks a claim, so that the plugin does not look for its pods.
                    "annotations": {names.ANNOTATION_TFLOPS_LIMIT: "0"},
                },
                "spec": {"devices": {"requests": [request]}},
            },
        )
        result = {
            "request": REQUEST,
            "driver": names.DRIVER,
            "pool": self._pool,
            "device": self.card["name"],
            "shareID": str(uuid4()),
            "consumedCapacity": consumed(self.card, wanted),
        }
        stored["status"] = {"allocation": {"devices": {"results": [result]}}}
        self._client.replace_status(CLAIMS, stored)
        return ClaimRef(namespace=_NAMESPACE, name=name, uid=stored["metadata"]["uid"])

    def _find_card(self) -> bool:
        found = [
            (item["spec"]["pool"]["name"], device)
            for item in self._client.list(SLICES).items
            for device in item["spec"].get("devices") or ()
        ]
        if not found:
            return False
        self._pool, self.card = min(found, key=lambda pair: _bus_id(pair[1]))
        return True

    def _wait_for(self, what: str, condition: Callable[[], bool], deadline: Deadline) -> None:
        assert self._process is not None
        while not condition():
            code = self._process.poll()
            if code is not None or deadline.left_seconds() <= 0:
                found = "no end of waiting" if code is None else f"exit code {code}"
                raise CheckError(f"node plugin: waiting for {what}: found {found}{self._log()}")
            time.sleep(_POLL_SECONDS)

    def _log(self) -> str:
        """Return the last lines of its log that are no successes."""
        text = self.log_file.read_text(encoding="utf-8", errors="replace")
        lines = [line for line in text.splitlines() if '"level": "info"' not in line]
        return "".join(f"\n  {line[:400]}" for line in lines[-_LOG_LINES:])

    def _command(self) -> list[str]:
        paths: Mapping[str, object] = {
            "node-name": _NAME,
            "kubeconfig": self._server.kubeconfig(self.root / "kubeconfig"),
            "kubelet-root": self._kubelet,
            "cdi-dir": self._cdi,
            "static-cdi-dir": self.root / "static-cdi",
            "data-dir": self.root,
            "driver-root": self._machine.driver_root,
            "tensor-fusion-root": self.root / "tf",
            "hami-core-library": self.library,
            "mps-pipes": self.pipes,
            "mps-shm": self.shm,
            "enforcer": self._enforcer,
            **({"dev-dir": self._machine.dev} if self._machine.dev else {}),
        }
        flags = (word for name, value in paths.items() for word in (f"--{name}", str(value)))
        return [sys.executable, "-m", "tensorfusion_dra", "node-plugin", *flags]


@contextmanager
def running(
    machine: Machine, enforcer: str, deadline: Deadline, *, shm: Path | None = None
) -> Iterator[Node]:
    """Yield a node plugin with this enforcer.

    Raises:
        CheckError: It cannot start.
    """
    with TemporaryDirectory(prefix="gpu-check-") as folder:
        root = Path(folder)
        node = Node(root, machine, enforcer, shm=shm or root)
        try:
            node.start(deadline)
            yield node
        finally:
            node.stop()


def _bus_id(device: Json) -> str:
    attribute = device["attributes"].get(names.ATTR_PCI_BUS_ID, {})
    return str(attribute.get("string", ""))


def _device_class() -> Json:
    expression = f'device.driver == "{names.DRIVER}"'
    return {
        "apiVersion": CLASSES.api_version,
        "kind": CLASSES.kind,
        "metadata": {"name": names.DEVICE_CLASS},
        "spec": {"selectors": [{"cel": {"expression": expression}}]},
    }
