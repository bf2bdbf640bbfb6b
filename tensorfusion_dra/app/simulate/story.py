"""Sequence of a simulation: discovery, publication, pods, report, teardown."""

import contextlib
import json
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Event
from typing import Any, Final

from tensorfusion_dra.app.simulate import report, text
from tensorfusion_dra.app.simulate.cluster import PATIENCE_SECONDS, SimulatedCluster
from tensorfusion_dra.app.simulate.options import Options
from tensorfusion_dra.app.simulate.plugin_process import WaitError
from tensorfusion_dra.app.simulate.progress import Progress
from tensorfusion_dra.app.simulate.report import FreeCapacity, Pod, Report, Share
from tensorfusion_dra.app.simulate.workload import GeneratedPods, Workload
from tensorfusion_dra.core import names
from tensorfusion_dra.core.errors import InputError, RetryableError
from tensorfusion_dra.core.kubernetes import quantity
from tensorfusion_dra.core.kubernetes.quantity import Quantity
from tensorfusion_dra.simulator.rest import Json

_INTERRUPTED: Final = 128 + signal.SIGINT
"""The exit code that shells report for Ctrl-C."""


def run(options: Options, *, form: str) -> int:
    """Simulate, print what happened, and return 1 if something was left behind.

    Args:
        options: Options of the simulation.
        form: ``text`` or ``json``.

    Raises:
        InputError: The GPUs are malformed.
        RetryableError: A step did not happen in time; the text names it.
    """
    progress = Progress(sys.stderr)
    # SIGTERM, like Ctrl-C, must end the started processes and remove the folder.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # A short path, because the folder holds Unix sockets.
    folder = Path(tempfile.mkdtemp(prefix="tfdra-"))
    cluster = SimulatedCluster(folder, gpus=options.gpus, tensor_fusion=options.file is not None)
    workload = _workload(options)
    try:
        return _run_and_print(cluster, workload, options, progress, form=form)
    except WaitError as error:
        progress.clear()
        _print_details(error)
        raise RetryableError(error.summary) from error
    except KeyboardInterrupt:
        return _INTERRUPTED
    finally:
        progress.clear()
        workload.stop()
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _run_and_print(
    cluster: SimulatedCluster,
    workload: Workload,
    options: Options,
    progress: Progress,
    *,
    form: str,
) -> int:
    """Simulate and print the report; return the exit code."""
    result = _simulate(cluster, workload, options, progress)
    progress.clear()
    if form == "json":
        printed = report.as_json(result)
    else:
        printed = text.as_text(result, verbose=options.verbose)
    sys.stdout.write(f"{printed}\n")
    sys.stdout.flush()
    if options.keep:
        _wait_for_interrupt(cluster, result)
    return 1 if result.left_behind else 0


def _workload(options: Options) -> Workload:
    if options.file is None:
        return GeneratedPods(options)
    # Imported here, because only this module needs the library for certificates.
    try:
        from tensorfusion_dra.app.simulate.manifest_file import FilePods  # noqa: PLC0415
    except ImportError as error:
        raise InputError(f"simulate --from needs the extra 'simulate': {error}") from error
    return FilePods(options, options.file)


def _simulate(
    cluster: SimulatedCluster, workload: Workload, options: Options, progress: Progress
) -> Report:
    started = time.monotonic()
    progress.show("starting API server, scheduler, kubelet and node plugin")
    cluster.start()
    cluster.plugin_flags.extend(
        [
            *("--tflops-oversell-ratio", options.tflops_oversell_ratio),
            *("--vram-expand-to-host-mem", options.vram_expand_to_host_mem),
            *workload.prepare(cluster),
        ]
    )
    cluster.start_plugin()
    cluster.until("registration", lambda: bool(cluster.kubelet.registered))
    cluster.until("publication", lambda: bool(cluster.slices()))
    ready = time.monotonic()

    pods = workload.submit(cluster, progress)
    settled = _wait_settled(cluster, pods, progress)
    ran = time.monotonic()

    reported = tuple(
        _pod(cluster, settled[name], workload.requested(cluster, name)) for name in pods
    )
    admissions = tuple(workload.admissions(cluster))
    cdi_file, cdi_spec = _first_spec(cluster, settled.values())
    slices = tuple(cluster.slices())
    left = tuple(_free_capacities(slices, cluster.claims()))
    left_behind: tuple[str, ...] = ()
    if not options.keep:
        left_behind = _tear_down(cluster, workload, pods, progress)
    ended = time.monotonic()
    return Report(
        node=cluster.node_name,
        pool=slices[0]["spec"]["pool"]["name"],
        slices=slices,
        pods=reported,
        admissions=admissions,
        cdi_file=cdi_file,
        cdi_spec=cdi_spec,
        left=left,
        left_behind=left_behind,
        kept_in=str(cluster.folder) if options.keep else "",
        seconds={
            "start": ready - started,
            "pods": ran - ready,
            "teardown": ended - ran,
            "all": ended - started,
        },
    )


def _wait_settled(
    cluster: SimulatedCluster, pods: Sequence[str], progress: Progress
) -> dict[str, Json]:
    """Wait until each pod runs or is unschedulable, and return the pods."""
    found: dict[str, Json] = {}

    def settled() -> bool:
        found.update({name: cluster.pod(name) for name in pods})
        done = [pod for pod in found.values() if _is_settled(pod)]
        progress.show(f"{len(done)} of {len(pods)} pods settled")
        return len(done) == len(pods)

    def unsettled() -> list[str]:
        return [
            f"{name}: {_phase(pod)}; {_waits_for(pod) or 'no message of the scheduler'}"
            for name, pod in found.items()
            if not _is_settled(pod)
        ]

    cluster.until("pods", settled, explain=unsettled)
    # The message of a waiting pod may be older than the last allocation of another pod.
    cluster.scheduler.catch_up(seconds=PATIENCE_SECONDS)
    return {name: cluster.pod(name) for name in pods}


def _phase(pod: Json) -> str:
    return str(pod.get("status", {}).get("phase", "Pending"))


def _is_settled(pod: Json) -> bool:
    """Return True if the pod runs, or if no node fits it; until then it waits for its claim."""
    return _phase(pod) == "Running" or "nodes are available" in _waits_for(pod)


def _waits_for(pod: Json) -> str:
    for condition in pod.get("status", {}).get("conditions") or []:
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return str(condition.get("message", ""))
    return ""


def _pod(cluster: SimulatedCluster, pod: Json, asks: Mapping[str, str]) -> Pod:
    name = pod["metadata"]["name"]
    container = cluster.container_of(name)
    return Pod(
        name=name,
        asks=asks,
        phase=_phase(pod),
        waits_for="" if container else _waits_for(pod),
        shares=tuple(_shares(cluster.claim_of(pod))),
        env=dict(container.env) if container else {},
        cdi_ids=container.cdi_ids if container else (),
    )


def _shares(claim: Json | None) -> list[Share]:
    allocation = ((claim or {}).get("status") or {}).get("allocation") or {}
    return [
        Share(
            device=result["device"],
            share_id=result.get("shareID"),
            consumed=result.get("consumedCapacity") or {},
        )
        for result in allocation.get("devices", {}).get("results", [])
    ]


def _first_spec(
    cluster: SimulatedCluster, pods: "Sequence[Json] | Any"
) -> tuple[str, dict[str, Any] | None]:
    """Return the path and content of the CDI spec of the first pod that has one."""
    for pod in pods:
        claim = cluster.claim_of(pod)
        uid = claim["metadata"]["uid"] if claim else ""
        for file in cluster.spec_files():
            if uid and file.name == f"{names.CDI_FILE_PREFIX}{uid}.json":
                return str(file), json.loads(file.read_text(encoding="utf-8"))
    return "", None


def _free_capacities(slices: Sequence[Json], claims: Sequence[Json]) -> list[FreeCapacity]:
    taken: dict[tuple[str, str], int] = {}
    for claim in claims:
        for share in _shares(claim):
            for name, amount in share.consumed.items():
                key = (share.device, name)
                taken[key] = taken.get(key, 0) + quantity.parse(amount).nano
    left = []
    for device in [device for item in slices for device in item["spec"].get("devices") or []]:
        for name, entry in _shared_capacity(device["capacity"]).items():
            total = quantity.parse(entry["value"])
            free = Quantity(total.nano - taken.get((device["name"], name), 0), total.family)
            left.append(
                FreeCapacity(
                    device=device["name"],
                    capacity=name,
                    total=str(total),
                    free=str(free),
                    free_share=free.nano / total.nano,
                )
            )
    return left


def _shared_capacity(capacity: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the capacities that tenants share: the virtual ones if there are any, else all."""
    virtual = {name: entry for name, entry in capacity.items() if name.startswith("virtual_")}
    return virtual or capacity


def _tear_down(
    cluster: SimulatedCluster, workload: Workload, pods: Sequence[str], progress: Progress
) -> tuple[str, ...]:
    """Delete the pods and stop the node plugin; return what is left and should not be."""
    for name in pods:
        progress.show(f"deleting {name}")
        workload.delete(cluster, name)
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


def _wait_for_interrupt(cluster: SimulatedCluster, report: Report) -> None:
    named = f" {report.pods[0].name}" if report.pods else "s"
    sys.stderr.write(
        "\nThe cluster runs until Ctrl-C. To look around in it from another shell:\n\n"
        f"  export KUBECONFIG={cluster.kubeconfig}\n"
        "  kubectl get pods,resourceclaims -o wide\n"
        f"  kubectl describe pod{named}\n\n"
        f"Log of the node plugin: {cluster.log_file}\n"
    )
    sys.stderr.flush()
    with contextlib.suppress(KeyboardInterrupt):
        Event().wait()
