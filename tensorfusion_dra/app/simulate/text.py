"""Report of a simulation as text: one screen, or with `-v` all details."""

import json
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import ROUND_HALF_UP, Decimal
from typing import Any, Final

from tensorfusion_dra.app.shared.tables import short_names, table
from tensorfusion_dra.app.simulate.report import Admission, FreeCapacity, Pod, Report
from tensorfusion_dra.core import names
from tensorfusion_dra.core.kubernetes import quantity
from tensorfusion_dra.core.kubernetes.quantity import GIB, MIB, NANO

_BAR: Final = 10
_WIDTH: Final = 100
_MOST_LINES_OF_A_REASON: Final = 3
_NOTHING: Final = "-"

_LIMITS: Final = {
    names.ENV_ISOLATION_MODE: "",
    names.ENV_SM_PERCENT_LIMIT: "percent of the GPU's compute",
    names.ENV_MEMORY_LIMIT: "MiB of its memory",
}
"""The variables that carry a container's limits, with their units."""


def as_text(report: Report, *, verbose: bool) -> str:
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
        parts += _sections(report)
    parts.append(_closing_line(report, verbose=verbose))
    return "\n\n".join("\n".join(lines) for lines in parts if lines)


def _sections(report: Report) -> list[list[str]]:
    """Return the slices, the filled claims, the CDI spec and the environment, as lines each."""
    parts = [_slices(report), *map(_request_of_claim, report.admissions), *_container(report)]
    return [lines for lines in parts if lines]


def _slices(report: Report) -> list[str]:
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


def _request_of_claim(admission: Admission) -> list[str]:
    if not admission.claim:
        return []
    times = f", {admission.requests} times" if admission.requests > 1 else ""
    return [f"Request of claim {admission.claim}{times}", *_indented(admission.request)]


def _container(report: Report) -> Iterator[list[str]]:
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


def _gpus(report: Report, short: Mapping[str, str]) -> list[str]:
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
                f"{_taken(compute)} of {_amount(compute.total)} TFLOPS",
                _bar(memory),
                f"{_taken(memory)} of {_memory(memory.total)}",
            )
        )
    beyond = ", which hands out more than its GPUs have" if is_virtual else ""
    lines = [f"GPUs of {report.node}, in the resource pool {report.pool}{beyond}"]
    return lines + (table(rows) if len(rows) > 1 else ["  none"])


def _pods(report: Report, short: Mapping[str, str]) -> list[str]:
    if not report.pods:
        return []
    rows: list[tuple[object, ...]] = [
        ("POD", "ASKS FOR", "STATUS", "GPU", "LIMITS IN ITS CONTAINER")
    ]
    waiting: dict[str, list[str]] = {}
    for pod in report.pods:
        got = [short.get(share.device, share.device) for share in pod.shares] or [_NOTHING]
        rows.append((pod.name, _request(pod), pod.phase, got[0], _limits(pod)))
        rows += [("", "", "", more, "") for more in got[1:]]
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
            max_lines=_MOST_LINES_OF_A_REASON,
            placeholder=" ...",
        )
    return lines


def _admissions(admissions: Iterable[Admission]) -> list[str]:
    rows: list[tuple[object, ...]] = []
    for admission in admissions:
        if admission.refused:
            rows += _cells(admission.pod, "refused", admission.refused)
            continue
        rows.append((admission.pod, "admitted", _claim(admission)))
        for warning in admission.warnings:
            rows += _cells("", "warning", warning)
    return ["Admission by the webhook", *table(rows)] if rows else []


def _claim(admission: Admission) -> str:
    if not admission.claim:
        return "unchanged: it asks for no share, or DRA is off for it"
    return f"claim {admission.claim}"


def _cells(pod: str, verdict: str, text: str) -> list[tuple[object, ...]]:
    """Return the rows of a text in the admission table; a long text continues in further rows."""
    first, *rest = textwrap.wrap(text, _WIDTH - 36) or [""]
    return [(pod, verdict, first), *(("", "", more) for more in rest)]


def _limits_of_one(report: Report) -> list[str]:
    """Return the limits in the environment of the first container that runs."""
    pod = next((pod for pod in report.pods if pod.env), None)
    if pod is None:
        return []
    rows = [
        (f"{name}={pod.env[name]}", meaning) for name, meaning in _LIMITS.items() if name in pod.env
    ]
    return [f"Limits in {pod.name}'s container, set by the claim's CDI spec", *table(rows)]


def _closing_line(report: Report, *, verbose: bool) -> list[str]:
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
    """Return what a pod requests of each GPU, such as ``71.2 TFLOPS, 10Gi``."""
    amounts = {name.removeprefix("virtual_"): text for name, text in pod.asks.items()}
    parts = []
    if names.CAPACITY_TFLOPS in amounts:
        parts.append(f"{_amount(amounts[names.CAPACITY_TFLOPS])} TFLOPS")
    if names.CAPACITY_VRAM in amounts:
        parts.append(_memory(amounts[names.CAPACITY_VRAM]))
    count = len({(share.device, share.share_id) for share in pod.shares})
    if not parts:
        return "a whole GPU" if count < 2 else f"{count} whole GPUs"
    each = ", ".join(parts)
    return each if count < 2 else f"{count} GPUs, {each} each"


def _limits(pod: Pod) -> str:
    """Return the limits in the container's environment, such as ``33 %, 16Gi, soft``."""
    mode = pod.env.get(names.ENV_ISOLATION_MODE, "")
    percent, mib = pod.env.get(names.ENV_SM_PERCENT_LIMIT), pod.env.get(names.ENV_MEMORY_LIMIT)
    if percent is None or mib is None:
        return mode or _NOTHING
    return f"{percent} %, {_human_bytes(int(mib) * MIB)}, {mode}"


def _devices(report: Report) -> list[Mapping[str, Any]]:
    return [device for item in report.slices for device in item["spec"].get("devices") or []]


def _with_short_names(text: str, report: Report, short: Mapping[str, str]) -> str:
    text = text.replace(f"{names.DRIVER}/{report.pool}/", "")
    for name, cut in short.items():
        text = text.replace(name, cut)
    return re.sub(r"\b[0-9]+m\b", lambda found: _amount(found.group()), text)


def _taken(left: FreeCapacity) -> str:
    nano = quantity.parse(left.total).nano - quantity.parse(left.free).nano
    if left.capacity in {names.CAPACITY_VRAM, names.CAPACITY_VIRTUAL_VRAM}:
        return _human_bytes(nano // NANO)
    return _decimal(Decimal(nano) / NANO)


def _amount(text: str) -> str:
    """Return a quantity of TFLOPS as a decimal: ``71.2`` for ``71200m``."""
    return _decimal(Decimal(quantity.parse(text).nano) / NANO)


def _memory(text: str) -> str:
    return _human_bytes(quantity.parse(text).nano // NANO)


def _human_bytes(amount: int) -> str:
    """Return an amount of memory in Gi, or in Mi below 1Gi, to a tenth."""
    if 0 < amount < GIB:
        return f"{_decimal(Decimal(amount) / MIB)}Mi"
    return f"{_decimal(Decimal(amount) / GIB)}Gi" if amount else "0"


def _decimal(amount: Decimal) -> str:
    """Return the amount with at most one digit after the point."""
    rounded = amount.quantize(Decimal("0.1"), ROUND_HALF_UP)
    return f"{rounded:f}".removesuffix(".0")


def _bar(left: FreeCapacity) -> str:
    filled = round((1 - left.free_share) * _BAR)
    return f"[{'#' * filled}{'.' * (_BAR - filled)}]"
