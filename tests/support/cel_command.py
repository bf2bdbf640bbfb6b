"""The verb `cel`, run in this process or in a process of its own, and slices for it."""

from dataclasses import replace
from typing import Any, Final

import pytest

from tensorfusion_dra import cli
from tensorfusion_dra.core import names
from tensorfusion_dra.core.devices.device import Device
from tensorfusion_dra.core.kubernetes.quantity import GIB
from tests.support import forks
from tests.support.builders.devices import NODE, published_devices
from tests.support.builders.gpus import gpu, gpus

Json = dict[str, Any]

A100: Final = 'device.attributes["model"] == "A100"'
"""A selector in the form of CEL that the user guide shows."""


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Run the command; return its exit code, stdout and stderr."""
    code = cli.main(["cel", *arguments])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def squeezed(out: str) -> list[str]:
    """Return the printed lines, each with runs of blanks reduced to one."""
    return [" ".join(line.split()) for line in out.splitlines()]


def child(*arguments: str, stdin: str = "") -> tuple[int, str, str]:
    """Run the command in a process of its own; return its exit code, stdout and stderr."""
    forked = forks.run("cel", *arguments, stdin=stdin.encode())
    return forked.returncode, forked.stdout, forked.stderr


def slice_of_devices(node: str, devices: tuple[Device, ...], *, generation: int = 1) -> Json:
    pool = {"name": f"default/{node}", "generation": generation, "resourceSliceCount": 1}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"slice-{node}-{generation}"},
        "spec": {
            "driver": names.DRIVER,
            "nodeName": node,
            "pool": pool,
            "devices": [device.as_api() for device in devices],
        },
    }


def two_nodes() -> list[Json]:
    """Return the slices of a node with three A100 and QoS medium, and of one with a T4 and high."""
    t4 = gpu(7, model="T4", milli_tflops=65_000, vram_bytes=16 * GIB)
    high = replace(NODE, name="node-02", qos="high")
    return [
        slice_of_devices("node-01", published_devices(*gpus(3))),
        slice_of_devices("node-02", published_devices(t4, node=high)),
    ]
