"""`simulate`: a whole node on this machine, without GPU or cluster, from discovery to teardown."""

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
from tensorfusion_dra.app.simulate.report import Left, Pod, Report, Share
from tensorfusion_dra.app.simulate.workload import GeneratedPods, Workload
from tensorfusion_dra.core import names
from tensorfusion_dra.core.errors import InputError, RetryableError
from tensorfusion_dra.core.kubernetes import quantity
from tensorfusion_dra.core.kubernetes.quantity import Quantity
from tensorfusion_dra.simulator.rest import Json

_INTERRUPTED: Final = 128 + signal.SIGINT
"""The exit code that shells give for Ctrl-C."""


def run(chosen: Options, *, form: str) -> int:
    """Simulate, print what happened, and return 1 if something was left behind.

    Args:
        chosen: What to simulate.
        form: ``text`` or ``json``.

    Raises:
        InputError: The GPUs are malformed.
        RetryableError: Something did not happen in time; the text says what.
    """
    progress = Progress(sys.stderr)
    # Like Ctrl-C, SIGTERM ends the processes that were started and removes the folder.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # Short, because sockets lie in it.
    folder = Path(tempfile.mkdtemp(prefix="tfdra-"))
    cluster = SimulatedCluster(folder, gpus=chosen.gpus, tensor_fusion=chosen.file is not None)
    workload = _workload(chosen)
    try:
        return _shown(cluster, workload, chosen, progress, form=form)
    except WaitError as error:
        progress.clear()
        _explain(error)
        raise RetryableError(error.summary) from error
    except KeyboardInterrupt:
        return _INTERRUPTED
    finally:
        progress.clear()
        workload.stop()
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _shown(
    cluster: SimulatedCluster,
    workload: Workload,
    chosen: Options,
    progress: Progress,
    *,
    form: str,
) -> int:
    """Simulate and print the report; return the exit code."""
    outcome = _simulated(cluster, workload, chosen, progress)
    progress.clear()
    if form == "json":
        shown = report.as_json(outcome)
    else:
        shown = text.as_text(outcome, verbose=chosen.verbose)
    sys.stdout.write(f"{shown}\n")
    sys.stdout.flush()
    if chosen.keep:
        _wait_for_interrupt(cluster, outcome)
    return 1 if outcome.left_behind else 0


def _workload(chosen: Options) -> Workload:
    if chosen.file is None:
        return GeneratedPods(chosen)
    # Imported here, as only this needs what makes certificates.
    try:
        from tensorfusion_dra.app.simulate.manifest_file import FilePods  # noqa: PLC0415
    except ImportError as error:
        raise InputError(f"simulate --from needs the extra 'simulate': {error}") from error
    return FilePods(chosen, chosen.file)


def _simulated(
    cluster: SimulatedCluster, workload: Workload, chosen: Options, progress: Progress
) -> Report:
    started = time.monotonic()
    progress.say("starting API server, scheduler, kubelet and node plugin")
    cluster.start()
    cluster.plugin_flags.extend(
        [
            *("--tflops-oversell-ratio", chosen.tflops_oversell_ratio),
            *("--vram-expand-to-host-mem", chosen.vram_expand_to_host_mem),
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

    shown = tuple(_pod(cluster, settled[name], workload.asked(cluster, name)) for name in pods)
    admissions = tuple(workload.admissions(cluster))
    cdi_file, cdi_spec = _first_spec(cluster, settled.values())
    slices = tuple(cluster.slices())
    left = tuple(_left(slices, cluster.claims()))
    left_behind: tuple[str, ...] = ()
    if not chosen.keep:
        left_behind = _torn_down(cluster, workload, pods, progress)
    ended = time.monotonic()
    return Report(
        node=cluster.node_name,
        pool=slices[0]["spec"]["pool"]["name"],
        slices=slices,
        pods=shown,
        admissions=admissions,
        cdi_file=cdi_file,
        cdi_spec=cdi_spec,
        left=left,
        left_behind=left_behind,
        kept_in=str(cluster.folder) if chosen.keep else "",
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
    """The pods once each of them runs or is known to wait for a card."""
    found: dict[str, Json] = {}

    def settled() -> bool:
        found.update({name: cluster.pod(name) for name in pods})
        done = [pod for pod in found.values() if _phase(pod) == "Running" or _is_too_much(pod)]
        progress.say(f"{len(done)} of {len(pods)} pods settled")
        return len(done) == len(pods)

    def unsettled() -> list[str]:
        return [
            f"{name}: {_phase(pod)}; {_waits_for(pod) or 'no word of the scheduler'}"
            for name, pod in found.items()
            if _phase(pod) != "Running" and not _is_too_much(pod)
        ]

    cluster.until("pods", settled, explain=unsettled)
    # The reason why a pod waits may be from before the last of the others got its share.
    cluster.scheduler.catch_up(seconds=PATIENCE_SECONDS)
    return {name: cluster.pod(name) for name in pods}


def _phase(pod: Json) -> str:
    return str(pod.get("status", {}).get("phase", "Pending"))


def _is_too_much(pod: Json) -> bool:
    """The scheduler has tried every node; before that, a pod only waits for its claim."""
    return "nodes are available" in _waits_for(pod)


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
    """The CDI spec of the first pod that runs, and where it lies."""
    for pod in pods:
        claim = cluster.claim_of(pod)
        uid = claim["metadata"]["uid"] if claim else ""
        for file in cluster.spec_files():
            if uid and file.name == f"{names.CDI_FILE_PREFIX}{uid}.json":
                return str(file), json.loads(file.read_text(encoding="utf-8"))
    return "", None


def _left(slices: Sequence[Json], claims: Sequence[Json]) -> list[Left]:
    taken: dict[tuple[str, str], int] = {}
    for claim in claims:
        for share in _shares(claim):
            for name, amount in share.consumed.items():
                key = (share.device, name)
                taken[key] = taken.get(key, 0) + quantity.parse(amount).nano
    left = []
    for device in [device for item in slices for device in item["spec"].get("devices") or []]:
        for name, entry in _divided(device["capacity"]).items():
            total = quantity.parse(entry["value"])
            free = Quantity(total.nano - taken.get((device["name"], name), 0), total.family)
            left.append(
                Left(
                    device=device["name"],
                    capacity=name,
                    total=str(total),
                    free=str(free),
                    free_share=free.nano / total.nano,
                )
            )
    return left


def _divided(capacity: Mapping[str, Any]) -> Mapping[str, Any]:
    """What tenants divide among themselves: the virtual amounts where there are any."""
    virtual = {name: entry for name, entry in capacity.items() if name.startswith("virtual_")}
    return virtual or capacity


def _torn_down(
    cluster: SimulatedCluster, workload: Workload, pods: Sequence[str], progress: Progress
) -> tuple[str, ...]:
    """Ends everything in order; what should be gone by then and is not."""
    for name in pods:
        progress.say(f"deleting {name}")
        workload.delete(cluster, name)
    progress.say("waiting until every claim is unprepared")
    left: list[str] = []
    try:
        cluster.until(
            "teardown",
            lambda: not cluster.claims() and not cluster.spec_files(),
        )
    except WaitError as error:
        progress.clear()
        _explain(error)
        left += [f"claim {claim['metadata']['name']}" for claim in cluster.claims()]
        left += [f"CDI spec {path}" for path in cluster.spec_files()]
    progress.say("stopping the node plugin")
    cluster.stop_plugin()
    left += [f"socket {path}" for path in cluster.folder.rglob("*") if path.is_socket()]
    return tuple(left)


def _explain(error: WaitError) -> None:
    sys.stderr.writelines(f"{line}\n" for line in error.details)


def _wait_for_interrupt(cluster: SimulatedCluster, report: Report) -> None:
    named = f" {report.pods[0].name}" if report.pods else "s"
    sys.stderr.write(
        "\nThe cluster goes on until Ctrl-C. To look around in it, in another shell:\n\n"
        f"  export KUBECONFIG={cluster.kubeconfig}\n"
        "  kubectl get pods,resourceclaims -o wide\n"
        f"  kubectl describe pod{named}\n\n"
        f"Log of the node plugin: {cluster.log_file}\n"
    )
    sys.stderr.flush()
    with contextlib.suppress(KeyboardInterrupt):
        Event().wait()
