"""A node with stand-in GPUs: the real node plugin, under the simulated API server and kubelet.

The node plugin finds the cards through the stand-in for NVML, as on a real node, and gives their
device nodes and libraries to containers. The device nodes are those of /dev/null, so making them
needs root.
"""

import os
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from dra_simulator.rest import PODS, TEMPLATES, Json
from dra_simulator.runtime import Container
from stand_ins import libraries
from stand_ins.libraries import Machine
from tensorfusion_dra.app.simulate import cluster
from tensorfusion_dra.app.simulate.cluster import SimulatedCluster

_NULL: Final = os.makedev(1, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What a pod's claim requests.

    Attributes:
        amounts: Quantities by capacity; empty for whole cards.
        cards: Number of cards of the one request.
    """

    amounts: Mapping[str, str]
    cards: int = 1


class StandInNode(SimulatedCluster):
    """A simulated cluster whose node plugin discovers stand-in cards through NVML."""

    def __init__(self, folder: Path, machine: Machine, flags: Sequence[str] = ()) -> None:
        """Build the libraries and make the device nodes; start() starts the cluster.

        Args:
            flags: Additional flags of the node plugin.

        Raises:
            CompilerError: There is no C compiler.
            PermissionError: The process is not root.
        """
        super().__init__(folder, gpus="")
        self.libraries = libraries.build_driver(folder / "driver")
        self.tenant = libraries.build_tenant(folder / "bin", self.libraries)
        self.cards = machine.write(folder / "gpus")
        dev = folder / "dev"
        dev.mkdir()
        for name in ("nvidiactl", "nvidia-uvm", *(f"nvidia{c.minor}" for c in machine.cards)):
            os.mknod(dev / name, 0o666 | stat.S_IFCHR, _NULL)
        self.plugin_flags[:] = [
            *("--nvml-library", str(self.libraries / "libnvidia-ml.so.1")),
            *flags,
        ]

    def install_hami_core(self, library: Path) -> None:
        """Put HAMi-core's library where the node plugin looks for it."""
        folder = self.folder / "usr" / "local" / "vgpu"
        folder.mkdir(parents=True)
        (folder / "libvgpu.so.1").write_bytes(library.read_bytes())
        (folder / "libvgpu.so.1").chmod(0o755)

    def run_pod(self, name: str, ask: Ask) -> Container:
        """Create a pod with one container; return what the runtime would put into it.

        Raises:
            WaitError: The container did not start.
        """
        self.client.create(TEMPLATES, _template(name, ask))
        self.client.create(PODS, cluster.pod_document(name))
        self.until(f"container of pod {name}", lambda: self.container_of(name) is not None)
        found = self.container_of(name)
        if found is None:
            raise AssertionError(f"pod {name}: its container went away")
        return found

    def resize(self, pod: str, *amounts: str) -> int:
        """Change the limits of a pod's claim; return the verb's exit code after the answer."""
        verb = [sys.executable, "-m", "tensorfusion_dra", "resize", f"pod/{pod}", *amounts]
        place = ["--kubeconfig", str(self.kubeconfig), "--namespace", "default", "--wait"]
        return subprocess.run([*verb, *place], check=False, capture_output=True).returncode


def _template(name: str, ask: Ask) -> Json:
    made = cluster.template_document(name, ask.amounts, {})
    for request in made["spec"]["spec"]["devices"]["requests"]:
        request["exactly"]["count"] = ask.cards
    return made


@contextmanager
def running(
    machine: Machine, flags: Sequence[str] = (), *, hami_core: Path | None = None
) -> Iterator[StandInNode]:
    """Yield a node whose plugin has published its cards, and stop it after the block.

    Args:
        flags: Additional flags of the node plugin.
        hami_core: HAMi-core's library, to be installed on the node.

    Raises:
        CompilerError: There is no C compiler.
        PermissionError: The process is not root.
        WaitError: The node plugin did not start.
    """
    with TemporaryDirectory(prefix="tfs-") as folder:
        node = StandInNode(Path(folder), machine, flags)
        if hami_core is not None:
            node.install_hami_core(hami_core)
        variables = {libraries.VARIABLE: str(node.cards)}
        before = {name: os.environ.get(name) for name in variables}
        os.environ.update(variables)
        try:
            node.start()
            node.start_plugin()
            node.until("slices", lambda: bool(node.slices()))
            yield node
        finally:
            node.stop()
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
