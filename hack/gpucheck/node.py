"""A node plugin in temporary folders, under a simulated API server, with this machine's GPUs.

The check does the part of scheduler and kubelet: it allocates claims and prepares them at the
plugin's socket.
"""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from benchmark import target
from benchmark.node import BareNode
from benchmark.target import Claims
from dra_simulator.node.plugin import PluginError
from dra_simulator.rest import SLICES, Json
from gpucheck import tenant
from gpucheck.machine import Machine
from gpucheck.steps import CheckError
from gpucheck.tenant import Edits
from tensorfusion_dra.app.simulate.plugin_process import WaitError
from tensorfusion_dra.core import names
from tensorfusion_dra.core.kubernetes import quantity
from tensorfusion_dra.core.kubernetes.quantity import Quantity


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


class Node(BareNode):
    """A node plugin with one enforcer.

    Attributes:
        pipes: Folder of an MPS daemon's sockets.
        card: The published device that claims are for: the first by PCI bus ID, as CUDA counts.
    """

    def __init__(self, folder: Path, machine: Machine, enforcer: str, *, shm: Path) -> None:
        """Create the folders; start() and start_plugin() start the processes.

        Args:
            shm: What containers get as /dev/shm under MPS.
        """
        super().__init__(folder, gpus="")
        self.pipes: Final = folder / "mps" / "pipe"
        self.card: Json = {}
        self._machine: Final = machine
        library = folder / "usr" / "local" / "vgpu" / "libvgpu.so.1"
        for each in (self.pipes, folder / "tensor-fusion", library.parent):
            each.mkdir(parents=True)
        (folder / "mps" / "shm").symlink_to(shm)
        if machine.hami_core is not None:
            library.symlink_to(machine.hami_core.resolve())
        # The limiter itself is not loaded: nothing is checked without its hypervisor.
        (folder / "tensor-fusion" / "libcuda_limiter.so").touch()
        self.plugin_flags[:] = [
            *("--enforcer", enforcer, "--driver-root", str(machine.driver_root)),
            *("--driver-root-on-host", str(machine.driver_root)),
            *("--dev-dir", str(machine.dev or "/dev")),
            *("--mps-root", str(self.pipes.parent)),
        ]

    def plugin_command(self, pod_uid: str = "") -> list[str]:
        """Return the command line, with the environment of the machine and nothing else."""
        variables = [f"{name}={value}" for name, value in self._machine.environment().items()]
        return ["env", "-i", *variables, *super().plugin_command(pod_uid)]

    def start_plugin(self, pod_uid: str = "") -> int:
        """Start the node plugin and return its process ID once it has published the cards."""
        pid = super().start_plugin(pod_uid)
        self.card = min(self.devices(), key=_bus_id)
        return pid

    @property
    def vram_bytes(self) -> int:
        """Memory that the card publishes."""
        return quantity.parse(self.card["capacity"]["vram"]["value"]).ceil()

    def devices(self) -> list[Json]:
        """Return the published devices."""
        slices = self.client.list(SLICES).items
        return [device for each in slices for device in each["spec"].get("devices") or []]

    @contextmanager
    def prepared(self, *, percent: int, vram_bytes: int) -> Iterator[Prepared]:
        """Prepare a claim for a part of the card during the block.

        Raises:
            CheckError: It was refused, or its spec cannot be used.
        """
        tflops = quantity.parse(self.card["capacity"]["tflops"]["value"])
        part = Quantity.milli(tflops.nano // 10**6 * percent // 100)
        wanted = {"tflops": str(part), "vram": str(Quantity.of_bytes(vram_bytes))}
        at = replace(self.target, capacity=wanted)
        claims = Claims(target.api_of(self.kubeconfig), at, with_pods=False, only=self.card["name"])
        plugin = target.connected(at)
        (ref,) = claims.create(1)
        try:
            began = time.monotonic()
            devices = plugin.prepare([ref])[ref.uid]
            seconds = time.monotonic() - began
            ids = [each for device in devices for each in device.cdi_ids]
            try:
                yield Prepared(
                    edits=tenant.edits_of(ids, self.cdi_folder),
                    spec=json.loads(next(self.cdi_folder.glob(f"*{ref.uid}*.json")).read_bytes()),
                    seconds=seconds,
                )
            finally:
                plugin.unprepare([ref])
        except PluginError as error:
            raise CheckError(str(error)) from error
        finally:
            plugin.close()
            claims.delete_rest()


@contextmanager
def running(machine: Machine, enforcer: str, *, shm: Path | None = None) -> Iterator[Node]:
    """Yield a node whose plugin has this enforcer.

    Raises:
        CheckError: It cannot start.
    """
    with TemporaryDirectory(prefix="gpu-check-") as folder:
        node = Node(Path(folder), machine, enforcer, shm=shm or Path(folder))
        try:
            node.start()
            try:
                node.start_plugin()
            except WaitError as error:
                raise CheckError(f"node plugin: {error}") from error
            yield node
        finally:
            node.stop()


def _bus_id(device: Json) -> str:
    attribute = device["attributes"].get(names.ATTR_PCI_BUS_ID, {})
    return str(attribute.get("string", ""))
