"""Sections that `simulate -v` adds to the report: objects and environments in full."""

import json
from collections.abc import Iterator

from tensorfusion_dra.app.simulate.report import Admission, Report


def sections(report: Report) -> list[list[str]]:
    """Return the slices, the filled claims, the CDI spec and the environment, as lines each."""
    parts = [_slices(report), *map(_claim, report.admissions), *_container(report)]
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


def _claim(admission: Admission) -> list[str]:
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
