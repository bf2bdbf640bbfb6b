"""The pods of a simulation, and what comes with them."""

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from tensorfusion_dra.app.simulate.cluster import SimulatedCluster
from tensorfusion_dra.app.simulate.options import Options, ShareRequest
from tensorfusion_dra.app.simulate.progress import Progress
from tensorfusion_dra.app.simulate.report import Admission


class Workload(Protocol):
    """Pods that are submitted, looked at and deleted; all in the namespace default."""

    def prepare(self, cluster: SimulatedCluster) -> Sequence[str]:
        """Sets up what has to be there first; flags for the node plugin."""
        ...

    def submit(self, cluster: SimulatedCluster, progress: Progress) -> Sequence[str]:
        """Names of the pods that the API server took."""
        ...

    def asked(self, cluster: SimulatedCluster, pod: str) -> Mapping[str, str]:
        """Quantities by capacity, of each GPU; empty asks for whole cards."""
        ...

    def admissions(self, cluster: SimulatedCluster) -> Sequence[Admission]:
        """What the webhook did; nothing if there is none."""
        ...

    def delete(self, cluster: SimulatedCluster, pod: str) -> None:
        """Asks for a pod's end."""
        ...

    def stop(self) -> None:
        """Ends what it runs itself."""
        ...


class GeneratedPods:
    """Pods with claims of their own, which take turns at what the options ask for."""

    def __init__(self, chosen: Options) -> None:
        requests = chosen.requests
        self._pods: Final[Mapping[str, ShareRequest]] = {
            f"pod-{n + 1}": requests[n % len(requests)] for n in range(chosen.pods)
        }
        self._virtual: Final = chosen.is_virtual

    def prepare(self, cluster: SimulatedCluster) -> Sequence[str]:
        """See Workload."""
        return ()

    def submit(self, cluster: SimulatedCluster, progress: Progress) -> Sequence[str]:
        """See Workload."""
        for name, asks in self._pods.items():
            progress.say(f"submitting {name}")
            cluster.submit(name, asks.capacity(virtual=self._virtual), asks.annotations)
        return tuple(self._pods)

    def asked(self, cluster: SimulatedCluster, pod: str) -> Mapping[str, str]:
        """See Workload."""
        return self._pods[pod].amounts

    def admissions(self, cluster: SimulatedCluster) -> Sequence[Admission]:
        """See Workload."""
        return ()

    def delete(self, cluster: SimulatedCluster, pod: str) -> None:
        """See Workload."""
        cluster.delete(pod)

    def stop(self) -> None:
        """See Workload."""
