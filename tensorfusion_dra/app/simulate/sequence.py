"""Sequence of a simulation: discovery, publication, pods and what they need, report, teardown."""

import contextlib
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from signal import SIGINT, SIGTERM
from typing import Final, Protocol

from dra_simulator.rest import PODS, Json
from tensorfusion_dra.app.shared import streams
from tensorfusion_dra.app.simulate import report
from tensorfusion_dra.app.simulate.cluster import NAMESPACE, PATIENCE_SECONDS, SimulatedCluster
from tensorfusion_dra.app.simulate.options import Options, ShareRequest
from tensorfusion_dra.app.simulate.plugin_process import WaitError
from tensorfusion_dra.app.simulate.progress import Progress
from tensorfusion_dra.app.simulate.report import AdmissionReport, SimulationReport
from tensorfusion_dra.core.errors import InputError, RetryableError

_INTERRUPTED: Final = 128 + SIGINT
"""The exit code that shells report for Ctrl-C."""
_TURN_SECONDS: Final = 1.0


class PodSource(Protocol):
    """Interface of a source of pods; all pods are in the namespace default."""

    def prepare(self, cluster: SimulatedCluster) -> Sequence[str]:
        """Create what the pods need; return additional flags for the node plugin."""

    def submit(self, cluster: SimulatedCluster, progress: Progress) -> Sequence[str]:
        """Create the pods; return the names of those that the API server accepted."""

    def requested(self, cluster: SimulatedCluster, pod: str) -> Sequence[Mapping[str, str]]:
        """Return what a pod requests of each GPU, by capacity; nothing for a whole GPU."""

    def admissions(self, cluster: SimulatedCluster) -> Sequence[AdmissionReport]:
        """Return the results of the webhook; empty without a webhook."""


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

    def requested(self, cluster: SimulatedCluster, pod: str) -> Sequence[Mapping[str, str]]:
        """Return the quantities of the pod's request."""
        return (self._pods[pod].amounts,)

    def admissions(self, cluster: SimulatedCluster) -> Sequence[AdmissionReport]:
        """Return nothing: no webhook is involved."""
        return ()


def run(options: Options, *, form: str) -> int:
    """Simulate, print what happened, and return 1 if something was left behind.

    Args:
        options: Options of the simulation.
        form: As -o has it.

    Raises:
        InputError: The GPUs are malformed.
        RetryableError: A step did not happen in time; the text names it.
    """
    progress = Progress(sys.stderr)
    signals: list[object] = []

    def terminate(number: int, _: object) -> None:
        # Python drops an exception that a signal handler raises within a destructor. The list is
        # what ends a kept cluster in that case.
        signals.append(number)
        raise KeyboardInterrupt

    # SIGTERM, like Ctrl-C, must end the started processes and remove the folder.
    signal.signal(SIGTERM, terminate)
    # A short path, because the folder holds Unix sockets.
    folder = Path(tempfile.mkdtemp(prefix="tfdra-"))
    cluster = SimulatedCluster(
        folder,
        gpus=options.gpus,
        tensor_fusion=options.file is not None,
        release=options.release,
    )
    workload = _workload(options)
    try:
        return _run_and_print(cluster, workload, options, progress, form=form, signals=signals)
    except WaitError as error:
        progress.clear()
        _print_details(error)
        raise RetryableError(error.summary) from error
    except KeyboardInterrupt:
        return _INTERRUPTED
    finally:
        with _uninterrupted():
            progress.clear()
            cluster.stop()
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ignore SIGINT and SIGTERM during the block, so that a second one leaves nothing behind."""
    before = {each: signal.signal(each, signal.SIG_IGN) for each in (SIGINT, SIGTERM)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _run_and_print(
    cluster: SimulatedCluster,
    workload: PodSource,
    options: Options,
    progress: Progress,
    *,
    form: str,
    signals: Sequence[object],
) -> int:
    """Simulate and print the report; return the exit code."""
    result = _simulate(cluster, workload, options, progress)
    progress.clear()
    text = report.as_text(result, verbose=options.verbose)
    sys.stdout.write(streams.formatted(form, asdict(result), [text]))
    sys.stdout.flush()
    if options.keep:
        _wait_for_interrupt(cluster, result, signals)
    return 1 if result.left_behind else 0


def _workload(options: Options) -> PodSource:
    if options.file is None:
        return GeneratedPods(options)
    # Imported here, because only this module needs the library for certificates.
    try:
        from tensorfusion_dra.app.simulate.manifest_file import FilePods  # noqa: PLC0415
    except ImportError as error:
        raise InputError(f"simulate --from needs the extra 'simulate': {error}") from error
    return FilePods(options, options.file)


def _simulate(
    cluster: SimulatedCluster, workload: PodSource, options: Options, progress: Progress
) -> SimulationReport:
    started = time.monotonic()
    _start(cluster, workload, options, progress)
    ready = time.monotonic()

    pods = workload.submit(cluster, progress)
    settled = _wait_settled(cluster, pods, progress)
    ran = time.monotonic()

    result = _result(cluster, workload, settled)
    left_behind: tuple[str, ...] = ()
    if not options.keep:
        left_behind = _tear_down(cluster, pods, progress)
    ended = time.monotonic()
    return replace(
        result,
        left_behind=left_behind,
        kept_in=str(cluster.folder) if options.keep else "",
        seconds={
            "start": ready - started,
            "pods": ran - ready,
            "teardown": ended - ran,
            "all": ended - started,
        },
    )


def _start(
    cluster: SimulatedCluster, workload: PodSource, options: Options, progress: Progress
) -> None:
    """Start the cluster with one node plugin; return once the node's slices are published."""
    progress.show("starting API server, scheduler, kubelet and node plugin")
    cluster.start()
    cluster.plugin_flags.extend(
        [
            *("--tflops-oversell-ratio", options.tflops_oversell_ratio),
            *("--vram-expand-to-host-mem", options.vram_expand_to_host_mem),
            *workload.prepare(cluster),
        ]
    )
    if options.keep:
        cluster.serve_pages()
    cluster.start_plugin()
    cluster.until("registration", lambda: bool(cluster.kubelet.registered))
    cluster.until("publication", lambda: bool(cluster.slices()))


def _result(
    cluster: SimulatedCluster, workload: PodSource, settled: Mapping[str, Json]
) -> SimulationReport:
    """Return the report of the settled pods, without teardown and times."""
    cdi_file, cdi_spec = report.first_spec(cluster, list(settled.values()))
    slices = tuple(cluster.slices())
    return SimulationReport(
        node=cluster.node_name,
        pool=slices[0]["spec"]["pool"]["name"],
        slices=slices,
        pods=tuple(
            report.pod_report(cluster, pod, workload.requested(cluster, name))
            for name, pod in settled.items()
        ),
        admissions=tuple(workload.admissions(cluster)),
        cdi_file=cdi_file,
        cdi_spec=cdi_spec,
        left=tuple(report.free_capacities(slices, cluster.claims())),
        left_behind=(),
        kept_in="",
        seconds={},
    )


def _wait_settled(
    cluster: SimulatedCluster, pods: Sequence[str], progress: Progress
) -> dict[str, Json]:
    """Wait until each pod runs or is unschedulable, and return the pods."""
    found: dict[str, Json] = {}

    def settled() -> bool:
        found.update({name: cluster.pod(name) for name in pods})
        done = [pod for pod in found.values() if report.is_settled(pod)]
        progress.show(f"{len(done)} of {len(pods)} pods settled")
        return len(done) == len(pods)

    def unsettled() -> list[str]:
        return [
            f"{name}: {report.phase(pod)}; {report.waits_for(pod) or 'no message of the scheduler'}"
            for name, pod in found.items()
            if not report.is_settled(pod)
        ]

    cluster.until("pods", settled, explain=unsettled)
    # The message of a waiting pod may be older than the last allocation of another pod.
    cluster.scheduler.catch_up(seconds=PATIENCE_SECONDS)
    return {name: cluster.pod(name) for name in pods}


def _tear_down(
    cluster: SimulatedCluster, pods: Sequence[str], progress: Progress
) -> tuple[str, ...]:
    """Delete the pods and stop the node plugin; return what is left and should not be."""
    for name in pods:
        progress.show(f"deleting {name}")
        cluster.client.delete(PODS, name, NAMESPACE)
    progress.show("waiting until every claim is unprepared")
    left: list[str] = []
    try:
        cluster.until(
            "teardown",
            lambda: not cluster.claims() and not cluster.spec_files(),
        )
    except WaitError as error:
        progress.clear()
        _print_details(error)
        left += [f"claim {claim['metadata']['name']}" for claim in cluster.claims()]
        left += [f"CDI spec {path}" for path in cluster.spec_files()]
    progress.show("stopping the node plugin")
    cluster.stop_plugin()
    left += [f"socket {path}" for path in cluster.folder.rglob("*") if path.is_socket()]
    return tuple(left)


def _print_details(error: WaitError) -> None:
    sys.stderr.writelines(f"{line}\n" for line in error.details)


def _wait_for_interrupt(
    cluster: SimulatedCluster, result: SimulationReport, signals: Sequence[object]
) -> None:
    named = f" {result.pods[0].name}" if result.pods else "s"
    with contextlib.suppress(KeyboardInterrupt):
        sys.stderr.write(
            "\nThe cluster runs until Ctrl-C. In a browser:\n\n"
            f"  status page  {cluster.pages_url}\n"
            f"  metrics      {cluster.pages_url}metrics\n\n"
            "To look around in it from another shell:\n\n"
            f"  export KUBECONFIG={cluster.kubeconfig}\n"
            "  kubectl get pods,resourceclaims -o wide\n"
            f"  kubectl describe pod{named}\n\n"
            f"Log of the node plugin: {cluster.log_file}\n"
        )
        sys.stderr.flush()
        # In turns: a signal just before a wait without end would only be handled after it.
        while not signals:
            time.sleep(_TURN_SECONDS)
