"""Report of a simulation: its facts, as `-o json` prints them, and its text."""

import json
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Final

from dra_simulator.rest import Json
from tensorfusion_dra.app.shared.streams import short_names, shown, shown_bytes, table, with_points
from tensorfusion_dra.app.simulate.cluster import SimulatedCluster
from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims import device_status
from tensorfusion_dra.core.kubernetes import quantity, resource_claims
from tensorfusion_dra.core.kubernetes.quantity import MIB, Quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A pod's share of one device.

    Attributes:
        share_id: Set by the scheduler if the device can be shared; else None.
        consumed: Quantities by capacity; empty for admin access.
    """

    device: str
    share_id: str | None
    consumed: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """One pod of the simulation.

    Attributes:
        asks: Quantities by capacity for each GPU that its claim requests; without quantities, a
            whole card. Empty without a claim.
        phase: The phase in its status.
        waits_for: The scheduler's message if its container does not run; else empty.
        env: Environment of its first container with devices: the CDI spec's and the image's.
        other_envs: Those of its other containers with devices.
    """

    name: str
    asks: tuple[Mapping[str, str], ...]
    phase: str
    waits_for: str = ""
    shares: tuple[Share, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    other_envs: tuple[Mapping[str, str], ...] = ()
    cdi_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionReport:
    """Result of a pod's admission.

    Attributes:
        refused: Why the API server refused the pod; empty if it accepted it.
        annotations: Annotations of the stored pod.
        claim: Name of its claim; empty if it has none.
        requests: The claim's requests, the content of `exactly`; one for each GPU.
    """

    pod: str
    refused: str = ""
    warnings: tuple[str, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    claim: str = ""
    requests: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeCapacity:
    """The free part of one capacity of one device.

    Attributes:
        total: Quantity in the capacity's unit.
        free: Quantity in the capacity's unit.
        free_share: Fraction of the total, 0 to 1.
    """

    device: str
    capacity: str
    total: str
    free: str
    free_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationReport:
    """Result of a simulation.

    Attributes:
        slices: The stored ResourceSlices.
        cdi_file: Path of the CDI spec of the first pod that runs; empty if none runs.
        left: Free capacities while the pods run.
        admissions: Results of the webhook; empty without one.
        left_behind: Claims, CDI specs and sockets that the teardown should have removed.
        kept_in: The folder if the cluster is kept running; else empty.
        seconds: Durations by name.
    """

    node: str
    pool: str
    slices: tuple[Mapping[str, Any], ...]
    pods: tuple[Pod, ...]
    cdi_file: str
    cdi_spec: Mapping[str, Any] | None
    left: tuple[FreeCapacity, ...]
    admissions: tuple[AdmissionReport, ...]
    left_behind: tuple[str, ...]
    kept_in: str
    seconds: Mapping[str, float]


def phase(pod: Json) -> str:
    """Return the pod's phase; ``Pending`` for a new pod."""
    return str(pod.get("status", {}).get("phase", "Pending"))


def is_settled(pod: Json) -> bool:
    """Return True if the pod runs, or if no node fits it; until then it waits for its claim."""
    return phase(pod) == "Running" or "nodes are available" in waits_for(pod)


def waits_for(pod: Json) -> str:
    """Return the scheduler's message of a pod that is not scheduled; else an empty text."""
    for condition in pod.get("status", {}).get("conditions") or []:
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return str(condition.get("message", ""))
    return ""


def pod_report(cluster: SimulatedCluster, pod: Json, asks: Iterable[Mapping[str, str]]) -> Pod:
    """Return what became of a pod: its phase, its shares and its containers."""
    name = pod["metadata"]["name"]
    containers = cluster.containers_of(name)
    env, *others = [dict(each.env) for each in containers] or [{}]
    return Pod(
        name=name,
        asks=tuple(asks),
        phase=phase(pod),
        waits_for="" if containers else waits_for(pod),
        shares=tuple(_shares(cluster.claim_of(pod))),
        env=env,
        other_envs=tuple(others),
        cdi_ids=containers[0].cdi_ids if containers else (),
    )


def _shares(claim: Json | None) -> list[Share]:
    return [
        Share(
            device=result["device"],
            share_id=result.get("shareID"),
            consumed=device_status.consumed(claim or {}, result),
        )
        for result in resource_claims.results(claim or {})
    ]


def first_spec(
    cluster: SimulatedCluster, pods: Sequence[Json]
) -> tuple[str, dict[str, Any] | None]:
    """Return the path and content of the CDI spec of the first pod that has one."""
    for pod in pods:
        claim = cluster.claim_of(pod)
        uid = claim["metadata"]["uid"] if claim else ""
        for file in cluster.spec_files():
            if uid and file.name == f"{names.CDI_FILE_PREFIX}{uid}.json":
                return str(file), json.loads(file.read_text(encoding="utf-8"))
    return "", None


def free_capacities(slices: Sequence[Json], claims: Sequence[Json]) -> list[FreeCapacity]:
    """Return what the claims leave of each device's capacities."""
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


_BAR: Final = 10
_WIDTH: Final = 100
_MAX_LINES_OF_A_REASON: Final = 3
_NOTHING: Final = "-"

_LIMITS: Final = {
    names.ENV_ISOLATION_MODE: "",
    names.ENV_SM_PERCENT_LIMIT: "percent of the GPU's compute",
    names.ENV_MEMORY_LIMIT: "MiB of its memory",
}
"""The variables that carry a container's limits, with their units."""


def as_text(report: SimulationReport, *, verbose: bool) -> str:
    """Return the report as text.

    Args:
        report: What the simulation did.
        verbose: Adds the filled claims, the CDI spec, the whole environment and the durations.
    """
    short = short_names(str(device["name"]) for device in _devices(report))
    parts = [
        _gpus(report, short),
        _admissions(report.admissions),
        _pods(report, short),
        [] if verbose else _limits_of_one(report),
    ]
    if verbose:
        of_claims = [lines for each in report.admissions for lines in _requests_of_claim(each)]
        parts += [_slices(report), *of_claims, *_container(report)]
    parts.append(_closing_line(report, verbose=verbose))
    return "\n\n".join("\n".join(lines) for lines in parts if lines)


def _slices(report: SimulationReport) -> list[str]:
    lines = []
    for item in report.slices:
        devices = item["spec"].get("devices") or []
        attributes = len(devices[0]["attributes"]) if devices else 0
        lines.append(
            f"ResourceSlice {item['metadata']['name']}, generation "
            f"{item['spec']['pool']['generation']}, {attributes} attributes each:"
        )
        lines += [f"  {device['name']}" for device in devices]
    return lines


def _requests_of_claim(admission: AdmissionReport) -> Iterator[list[str]]:
    """Yield each of a claim's requests; those that are alike are one."""
    counts = Counter("\n".join(_indented(each)) for each in admission.requests)
    for text, count in counts.items():
        times = f", {count} times" if count > 1 else ""
        yield [f"Request of claim {admission.claim}{times}", text]


def _container(report: SimulationReport) -> Iterator[list[str]]:
    """Yield the CDI spec and the environment of the first container that runs."""
    if report.cdi_spec is None:
        return
    pod = next(pod for pod in report.pods if pod.shares)
    yield [f"CDI spec of {pod.name}: {report.cdi_file}", *_indented(report.cdi_spec)]
    yield [
        f"Environment of {pod.name}'s container",
        *(f"  {name}={value}" for name, value in sorted(pod.env.items())),
    ]


def _indented(found: object) -> list[str]:
    text = json.dumps(found, indent=2, ensure_ascii=False)
    return [f"  {line}" for line in text.splitlines()]


def _gpus(report: SimulationReport, short: Mapping[str, str]) -> list[str]:
    left = {(each.device, each.capacity.removeprefix("virtual_")): each for each in report.left}
    is_virtual = any(each.capacity.startswith("virtual_") for each in report.left)
    rows: list[tuple[object, ...]] = [("GPU", "MODEL", "COMPUTE TAKEN", "", "MEMORY TAKEN", "")]
    for device in _devices(report):
        name = device["name"]
        compute, memory = (
            left[name, names.CAPACITY_TFLOPS],
            left[name, names.CAPACITY_VRAM],
        )
        rows.append(
            (
                short[name],
                device["attributes"]["product_name"]["string"],
                _bar(compute),
                f"{_taken(compute)} of {_amount(compute.total, compute.capacity)} TFLOPS",
                _bar(memory),
                f"{_taken(memory)} of {_amount(memory.total, memory.capacity)}",
            )
        )
    beyond = ", which hands out more than its GPUs have" if is_virtual else ""
    lines = [f"GPUs of {report.node}, in the resource pool {report.pool}{beyond}"]
    return lines + (table(rows) if len(rows) > 1 else ["  none"])


def _pods(report: SimulationReport, short: Mapping[str, str]) -> list[str]:
    if not report.pods:
        return []
    rows: list[tuple[object, ...]] = [
        ("POD", "ASKS FOR", "STATUS", "GPU", "LIMITS IN ITS CONTAINER")
    ]
    waiting: dict[str, list[str]] = {}
    for pod in report.pods:
        got = [short.get(share.device, share.device) for share in pod.shares] or [_NOTHING]
        limits = map(_limits, (pod.env, *pod.other_envs))
        columns = (pod.name,), (_request(pod),), (pod.phase,), dict.fromkeys(got)
        rows += zip_longest(*columns, dict.fromkeys(limits), fillvalue="")
        if pod.waits_for:
            reason = _with_short_names(pod.waits_for, report, short)
            waiting.setdefault(reason, []).append(pod.name)
    return ["Pods", *table(rows), *_reasons(waiting)]


def _reasons(waiting: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the reasons why pods wait, each once and cut to a few lines."""
    lines: list[str] = []
    for reason, pods in waiting.items():
        subject = f"{pods[0]} waits" if len(pods) == 1 else f"{', '.join(pods)} wait"
        lines += textwrap.wrap(
            f"{subject}: {reason}",
            _WIDTH,
            initial_indent="  ",
            subsequent_indent="    ",
            max_lines=_MAX_LINES_OF_A_REASON,
            placeholder=" ...",
        )
    return lines


def _admissions(admissions: Iterable[AdmissionReport]) -> list[str]:
    rows: list[tuple[object, ...]] = []
    for admission in admissions:
        if admission.refused:
            rows += _cells(admission.pod, "refused", admission.refused)
            continue
        unchanged = "unchanged: it asks for no share, or DRA is off for it"
        claim = f"claim {admission.claim}" if admission.claim else unchanged
        rows.append((admission.pod, "admitted", claim))
        for warning in admission.warnings:
            rows += _cells("", "warning", warning)
    return ["Admission by the webhook", *table(rows)] if rows else []


def _cells(pod: str, verdict: str, text: str) -> list[tuple[object, ...]]:
    """Return the rows of a text in the admission table; a long text continues in further rows."""
    first, *rest = textwrap.wrap(text, _WIDTH - 36) or [""]
    return [(pod, verdict, first), *(("", "", more) for more in rest)]


def _limits_of_one(report: SimulationReport) -> list[str]:
    """Return the limits in the environment of the first container that runs."""
    pod = next((pod for pod in report.pods if pod.env), None)
    if pod is None:
        return []
    rows = [
        (f"{name}={pod.env[name]}", meaning) for name, meaning in _LIMITS.items() if name in pod.env
    ]
    return [f"Limits in {pod.name}'s container, set by the claim's CDI spec", *table(rows)]


def _closing_line(report: SimulationReport, *, verbose: bool) -> list[str]:
    seconds = f"{report.seconds['all']:.1f} s"
    if verbose:
        seconds = ", ".join(f"{name} {value:.1f} s" for name, value in report.seconds.items())
    if report.kept_in:
        return [f"Kept running, everything in {report.kept_in} ({seconds})"]
    if report.left_behind:
        return [f"Left behind ({seconds}):", *(f"  {item}" for item in report.left_behind)]
    more = "" if verbose else "; -v shows the CDI spec and the whole environment"
    return [f"Torn down, nothing left behind ({seconds}{more})"]


def _request(pod: Pod) -> str:
    """Return what a pod requests, such as ``71.2 TFLOPS, 10Gi`` or ``2 GPUs, 16Gi each``."""
    counts = Counter(map(_asked, pod.asks))
    if len(counts) == 1 and len(pod.asks) > 1:
        (each,), count = counts, len(pod.asks)
        what = "GPUs" if len({share.device for share in pod.shares}) == count else "shares"
        return f"{count} {what}, {each} each" if each else f"{count} whole GPUs"
    return (
        " + ".join(
            (f"{count} x " if count > 1 else "") + (each or "a whole GPU")
            for each, count in counts.items()
        )
        or "no GPU"
    )


def _asked(asks: Mapping[str, str]) -> str:
    """Return the amounts of one GPU, such as ``71.2 TFLOPS, 10Gi``; "" for all of it."""
    units = {names.CAPACITY_TFLOPS: " TFLOPS", names.CAPACITY_VRAM: ""}
    amounts = {name.removeprefix("virtual_"): text for name, text in asks.items()}
    return ", ".join(
        f"{_amount(amounts[name], name)}{units.get(name, f' {name}')}"
        for name in (*units, *(amounts.keys() - units.keys()))
        if name in amounts
    )


def _limits(env: Mapping[str, str]) -> str:
    """Return the limits in a container's environment, such as ``33 %, 16Gi, soft``."""
    mode = env.get(names.ENV_ISOLATION_MODE, "")
    percent, mib = env.get(names.ENV_SM_PERCENT_LIMIT), env.get(names.ENV_MEMORY_LIMIT)
    if percent is None or mib is None:
        return mode or _NOTHING
    return f"{percent} %, {shown_bytes(int(mib) * MIB)}, {mode}"


def _devices(report: SimulationReport) -> list[Mapping[str, Any]]:
    return [device for item in report.slices for device in item["spec"].get("devices") or []]


def _with_short_names(text: str, report: SimulationReport, short: Mapping[str, str]) -> str:
    text = text.replace(f"{names.DRIVER}/{report.pool}/", "")
    for name, cut in short.items():
        text = text.replace(name, cut)
    return with_points(text)


def _taken(left: FreeCapacity) -> str:
    return shown(quantity.parse(left.total) - quantity.parse(left.free), left.capacity)


def _amount(text: str, capacity: str) -> str:
    return shown(quantity.parse(text), capacity)


def _bar(left: FreeCapacity) -> str:
    filled = round((1 - left.free_share) * _BAR)
    return f"[{'#' * filled}{'.' * (_BAR - filled)}]"
