"""What a simulation did, as facts for `-o json` and as text for a person."""

import json
import re
import textwrap
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from typing import Any, Final

from tensorfusion_dra.app.tables import table
from tensorfusion_dra.core import names, quantity

_BAR: Final = 20
_WIDTH: Final = 100
_SHORT: Final = len("gpu-00000000")


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What a pod got of one device.

    Attributes:
        consumed: Quantities by capacity; empty for admin access.
    """

    device: str
    share_id: str | None
    consumed: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """One pod of the simulation.

    Attributes:
        asks: Quantities by capacity, as its claim requests them; empty asks for a whole card.
        phase: As in its status.
        waits_for: The scheduler's words if it is not running.
        env: Environment of its container as the runtime made it, ours and the image's.
    """

    name: str
    asks: Mapping[str, str]
    phase: str
    waits_for: str = ""
    shares: tuple[Share, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cdi_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """What the webhook made of a pod.

    Attributes:
        refused: Why the API server did not take it; empty if it did.
        annotations: Of the pod as it was stored.
        claim: Name of its claim; empty if it has none.
        request: What the claim asks for, as the API has it.
    """

    pod: str
    refused: str = ""
    warnings: tuple[str, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    claim: str = ""
    request: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """What is still free of one device's capacity.

    Attributes:
        total: In the capacity's unit.
        free: In the capacity's unit.
        free_share: 0 to 1.
    """

    device: str
    capacity: str
    total: str
    free: str
    free_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything that a simulation shows.

    Attributes:
        slices: As the API server stores them.
        admissions: What the webhook did, if there is one.
        cdi_file: Path of the first pod's spec; empty if no pod ran.
        left_behind: What the teardown should have removed and did not.
        seconds: Durations by name.
    """

    node: str
    pool: str
    slices: tuple[Mapping[str, Any], ...]
    pods: tuple[Pod, ...]
    cdi_file: str
    cdi_spec: Mapping[str, Any] | None
    left: tuple[Left, ...]
    admissions: tuple[Admission, ...]
    left_behind: tuple[str, ...]
    kept_in: str
    seconds: Mapping[str, float]


def as_json(report: Report) -> str:
    """The report for programs."""
    return json.dumps(asdict(report), indent=2)


def as_text(report: Report) -> str:
    """The report for a person; after the first table, devices go by the start of their names."""
    parts = [
        _devices(report),
        _pods(report),
        *map(_admission, report.admissions),
        _spec(report),
        _env(report),
        _left(report),
        _end(report),
    ]
    return "\n\n".join("\n".join(lines) for lines in parts if lines)


def _devices(report: Report) -> list[str]:
    rows: list[tuple[object, ...]] = []
    for item in report.slices:
        for device in item["spec"].get("devices") or []:
            attributes, capacity = device["attributes"], device["capacity"]
            rows.append(
                (
                    device["name"],
                    attributes["model"]["string"],
                    f"{capacity['tflops']['value']} TFLOPS",
                    capacity["vram"]["value"],
                    attributes["product_name"]["string"],
                )
            )
    lines = [f"GPUs of {report.node}, published as pool {report.pool}"]
    lines += table(rows) if rows else ["  none"]
    for item in report.slices:
        devices = item["spec"].get("devices") or []
        attributes = len(devices[0]["attributes"]) if devices else 0
        lines.append(
            f"  in ResourceSlice {item['metadata']['name']}, generation "
            f"{item['spec']['pool']['generation']}: {len(devices)} devices, "
            f"{attributes} attributes each"
        )
    return lines


def _pods(report: Report) -> list[str]:
    rows: list[tuple[object, ...]] = [("POD", "ASKS FOR", "PHASE", "GOT", "LIMITS")]
    waiting: list[str] = []
    for pod in report.pods:
        got = [f"{_amounts(share.consumed)} of {_short(share.device)}" for share in pod.shares]
        first = got[0] if got else "nothing yet"
        rows.append((pod.name, _amounts(pod.asks), pod.phase, first, _limits(pod)))
        rows += [("", "", "", more, "") for more in got[1:]]
        if pod.waits_for:
            waiting += ["", *_wrapped(f"{pod.name} waits: {_without_names(pod.waits_for, report)}")]
    return ["Pods", *table(rows), *waiting]


def _admission(admission: Admission) -> list[str]:
    if admission.refused:
        return [f"Admission of {admission.pod}: refused", *_wrapped(admission.refused)]
    lines = [f"Admission of {admission.pod}"]
    for warning in admission.warnings:
        lines += _wrapped(f"warning: {warning}")
    if admission.claim:
        lines.append(f"  claim {admission.claim}, filled with")
        text = json.dumps(admission.request, indent=2, ensure_ascii=False).splitlines()
        lines += [f"    {line}" for line in text]
    else:
        lines.append("  left as it is: it asks for no share, or DRA is off for it")
    return lines


def _amounts(consumed: Mapping[str, str]) -> str:
    """Such as 71.2 tflops and 10Gi vram; what a share takes nothing of is not worth a word."""
    parts = (f"{_plain(text)} {name}" for name, text in consumed.items() if text != "0")
    return " and ".join(parts) or "a whole card"


def _limits(pod: Pod) -> str:
    """What the container's environment holds, such as soft: 33 %, 16384 MiB."""
    percent, mib = pod.env.get(names.ENV_SM_PERCENT_LIMIT), pod.env.get(names.ENV_MEMORY_LIMIT)
    mode = pod.env.get(names.ENV_ISOLATION_MODE, "")
    return f"{mode}: {percent} %, {mib} MiB" if percent else mode


def _plain(text: str) -> str:
    """A quantity as people write it: 71.2 and not 71200m."""
    if text.endswith("m"):
        return f"{Decimal(quantity.parse(text).nano) / quantity.NANO:f}"
    return text


def _short(device: str) -> str:
    return device[:_SHORT]


def _without_names(text: str, report: Report) -> str:
    text = text.replace(f"{names.DRIVER}/{report.pool}/", "")
    for item in report.slices:
        for device in item["spec"].get("devices") or []:
            text = text.replace(device["name"], _short(device["name"]))
    return re.sub(r"\b[0-9]+m\b", lambda found: _plain(found.group()), text)


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent="  ", subsequent_indent="    ")


def _spec(report: Report) -> list[str]:
    if report.cdi_spec is None:
        return []
    text = json.dumps(report.cdi_spec, indent=2).splitlines()
    return [f"CDI spec of {_first(report).name}: {report.cdi_file}", *(f"  {x}" for x in text)]


def _env(report: Report) -> list[str]:
    if report.cdi_spec is None:
        return []
    pod = _first(report)
    return [
        f"Environment of {pod.name}'s container",
        *(f"  {name}={value}" for name, value in sorted(pod.env.items())),
    ]


def _first(report: Report) -> Pod:
    return next(pod for pod in report.pods if pod.shares)


def _left(report: Report) -> list[str]:
    rows = [
        (
            _short(left.device),
            left.capacity,
            _bar(1 - left.free_share),
            f"{_plain(left.free)} of {_plain(left.total)} free",
        )
        for left in report.left
    ]
    return ["Capacity while the pods ran", *table(rows)] if rows else []


def _bar(used: float) -> str:
    filled = round(used * _BAR)
    return f"[{'#' * filled}{'.' * (_BAR - filled)}]"


def _end(report: Report) -> list[str]:
    times = ", ".join(f"{name} {value:.1f} s" for name, value in report.seconds.items())
    if report.kept_in:
        return [f"Kept running, everything in {report.kept_in} ({times})"]
    if report.left_behind:
        return [f"Left behind ({times}):", *(f"  {item}" for item in report.left_behind)]
    return [f"Torn down, nothing left behind ({times})"]
