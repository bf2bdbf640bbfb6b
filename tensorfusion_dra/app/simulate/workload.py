"""Workloads of a simulation: its pods, the objects that they need, and the progress line."""

from collections.abc import Mapping, Sequence
from typing import Final, Protocol, TextIO

from tensorfusion_dra.app.simulate.cluster import SimulatedCluster
from tensorfusion_dra.app.simulate.command import Options, ShareRequest
from tensorfusion_dra.app.simulate.report import Admission

_CLEAR: Final = "\r\x1b[K"


class Progress:
    """A line on the stream that shows the current step; nothing if that is not a terminal."""

    def __init__(self, stream: TextIO) -> None:
        self._stream: Final = stream
        self._live: Final = stream.isatty()
        self._shown = ""

    def show(self, text: str) -> None:
        """Replace the line by this text."""
        if self._live and text != self._shown:
            self._shown = text
            self._stream.write(f"{_CLEAR}{text} ...")
            self._stream.flush()

    def clear(self) -> None:
        """Remove the line, so that other output can be written."""
        if self._live and self._shown:
            self._shown = ""
            self._stream.write(_CLEAR)
            self._stream.flush()


class Workload(Protocol):
    """Interface of a source of pods; all pods are in the namespace default."""

    def prepare(self, cluster: SimulatedCluster) -> Sequence[str]:
        """Create what the pods need; return additional flags for the node plugin."""

    def submit(self, cluster: SimulatedCluster, progress: Progress) -> Sequence[str]:
        """Create the pods; return the names of those that the API server accepted."""

    def requested(self, cluster: SimulatedCluster, pod: str) -> Mapping[str, str]:
        """Return what a pod requests of each GPU, by capacity; empty for whole GPUs."""

    def admissions(self, cluster: SimulatedCluster) -> Sequence[Admission]:
        """Return the results of the webhook; empty without a webhook."""

    def delete(self, cluster: SimulatedCluster, pod: str) -> None:
        """Delete a pod; it ends later."""

    def stop(self) -> None:
        """Stop the processes that the workload started."""


class GeneratedPods:
    """Pods with claims of their own; they take turns at the requests in the options."""

    def __init__(self, options: Options) -> None:
        requests = options.requests
        self._pods: Final[Mapping[str, ShareRequest]] = {
            f"pod-{n + 1}": requests[n % len(requests)] for n in range(options.pods)
        }
        self._virtual: Final = options.is_virtual

    def prepare(self, cluster: SimulatedCluster) -> Sequence[str]:
        """Return no flags; the pods need nothing."""
        return ()

    def submit(self, cluster: SimulatedCluster, progress: Progress) -> Sequence[str]:
        """Create the pods and their claim templates; return the names of all pods."""
        for name, asks in self._pods.items():
            progress.show(f"submitting {name}")
            cluster.submit(name, asks.capacity(virtual=self._virtual), asks.annotations)
        return tuple(self._pods)

    def requested(self, cluster: SimulatedCluster, pod: str) -> Mapping[str, str]:
        """Return the quantities of the pod's request."""
        return self._pods[pod].amounts

    def admissions(self, cluster: SimulatedCluster) -> Sequence[Admission]:
        """Return nothing: no webhook is involved."""
        return ()

    def delete(self, cluster: SimulatedCluster, pod: str) -> None:
        """Delete a pod and its claim template."""
        cluster.delete(pod)

    def stop(self) -> None:
        """Do nothing: no processes were started."""
