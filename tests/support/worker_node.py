"""A node whose pods' limits are kept by a stand-in hypervisor."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from tensorfusion_dra.core.claims.claim import ClaimRef, PodRef
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.driver.workers import Workers
from tensorfusion_dra.enforcement.hypervisor.device_plugin import DevicePlugin
from tensorfusion_dra.enforcement.hypervisor.shared_memory import WorkerMemory
from tests.support.builders.stored_claims import stored_claim
from tests.support.hypervisor import StandInHypervisor, WorkerPodsInMemory
from tests.support.prepared_node import GPU_0, GPU_1, Setup, share_result
from tests.support.waiting import PATIENCE_SECONDS

PREFIX: Final = "tensor-fusion.ai/"


@dataclass(frozen=True)
class WorkerNode:
    """A node with a hypervisor."""

    folder: Path
    pods: WorkerPodsInMemory
    hypervisor: StandInHypervisor
    setup: Setup
    workers: Workers
    plugin: DevicePlugin

    def restarted(self) -> "WorkerNode":
        """Return the node with a new driver, on the same disk."""
        self.setup.ledger.close()
        setup = Setup(self.folder, self.setup.claims)
        workers = _connect(setup, self.pods, self.plugin, self.hypervisor)
        return replace(self, setup=setup, workers=workers)

    def prepare(self, ref: ClaimRef, *, seconds: float = PATIENCE_SECONDS) -> Any:
        outcomes = self.setup.preparer.prepare([ref], deadline=time.monotonic() + seconds)
        return outcomes[ref.uid]

    def run(
        self, name: str = "train", *results: Any, **annotations: str
    ) -> tuple[PodRef, ClaimRef]:
        """Create a pod with a claim of the same name, and prepare the claim."""
        pod, ref = self.pods.put(name), self.put(name, *results, **annotations)
        assert isinstance(self.prepare(ref), PreparedClaim)
        return pod, ref

    def follow(self) -> None:
        """Write the annotations that have to follow changes."""
        self.workers.follow_annotations()

    def repair(self, times: int = 1) -> None:
        """Register again the pods that the hypervisor lost."""
        for _ in range(times):
            self.workers.repair()

    def put(
        self,
        name: str,
        *results: Any,
        pod: str = "",
        pod_uid: str = "",
        uid: str = "",
        **annotations: str,
    ) -> ClaimRef:
        claim = stored_claim(name, *(results or [share_result()]), uid=uid)
        claim["metadata"]["annotations"] = {
            PREFIX + key.replace("_", "-"): text for key, text in annotations.items()
        }
        if pod:
            claim["status"]["reservedFor"][0] |= {"name": pod, "uid": pod_uid or f"uid-of-{pod}"}
        return self.setup.claims.put(claim)


@contextmanager
def worker_node(folder: Path) -> Iterator[WorkerNode]:
    """Run a node with a hypervisor that serves."""
    with TemporaryDirectory() as short:  # paths of unix sockets are short
        pods = WorkerPodsInMemory()
        hypervisor = StandInHypervisor(Path(short), pods, cards=[GPU_0, GPU_1], sockets=(0, 15))
        hypervisor.start()
        plugin = DevicePlugin(hypervisor.sockets)
        setup = Setup(folder)
        workers = _connect(setup, pods, plugin, hypervisor)
        yield WorkerNode(folder, pods, hypervisor, setup, workers, plugin)
        hypervisor.stop()
        setup.ledger.close()


def _connect(
    setup: Setup, pods: WorkerPodsInMemory, plugin: DevicePlugin, hypervisor: StandInHypervisor
) -> Workers:
    """Connect a driver with a hypervisor."""
    setup.workers = Workers(pods, pods, plugin, WorkerMemory(hypervisor.shm), setup.ledger)
    setup.preparer = setup.with_claims(setup.claims)
    return setup.workers
