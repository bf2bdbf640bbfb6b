"""Steps about the cards: what NVML answers, and what the driver publishes of it."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from gpucheck.machine import Machine
from gpucheck.steps import CheckError, Deadline, Json, Step
from gpucheck.workplace import Workplace
from tensorfusion_dra.core import names
from tensorfusion_dra.core.kubernetes import quantity
from tensorfusion_dra.discovery.recording import bus_id_in_sysfs

_PACKAGE_PARENT: Final = Path(__file__).resolve().parents[2]
_NO_CARDS: Final = "found no card, expected one"
_ANONYMOUS: Final = "GPU-{index:08d}-aaaa-bbbb-cccc-dddddddddddd"


class Cards:
    """Steps that need no enforcer."""

    def __init__(self, work: Workplace, out: Path) -> None:
        """Remember the folders.

        Args:
            out: Where the recording is written.
        """
        self._work: Final = work
        self._out: Final = out

    def steps(self) -> list[Step]:
        """Return the steps in their order."""
        return [
            Step(name="discovery", seconds=60, run=self.discover),
            Step(name="baseline", seconds=30 + 3 * self._work.seconds, run=self.measure),
        ]

    def discover(self, deadline: Deadline, facts: Json) -> str:
        """Record NVML's answers, and compare them with the devices that the driver publishes."""
        recording = json.loads(self._inspect(["--raw"], deadline))
        file = self._out / recording_file(self._work.machine)
        file.write_text(json.dumps(anonymous(recording), indent=2) + "\n", encoding="utf-8")
        view = json.loads(self._inspect(["-o", "json"], deadline))
        facts |= {"recording": file.name, "left_out": view["leftOut"]}
        reasons = differences(recording, view["devices"])
        if reasons:
            raise CheckError("; ".join(reasons))
        if not view["devices"]:
            left_out = [f"{each['subject']}: {each['reason']}" for each in view["leftOut"]]
            raise CheckError("; ".join([_NO_CARDS, *left_out]))
        names_ = [str(gpu["name"]) for gpu in recording["gpus"]]
        return f"{', '.join(names_)}; NVIDIA driver {recording['driver_version']}; {file.name}"

    def measure(self, deadline: Deadline, facts: Json) -> str:
        """Find the kernel to measure with, and its rate without a limit."""
        facts |= self._work.kernel(deadline)
        base = self._work.unlimited(deadline)
        facts["rates"] = [base.row("no limit", base)]
        return (
            f"{base.rate:.1f} kernels/s without a limit ({base.low:.1f} to {base.high:.1f}), "
            f"{facts['blocks']} blocks of {facts['rounds']} rounds each"
        )

    def _inspect(self, flags: Sequence[str], deadline: Deadline) -> str:
        nowhere = self._work.folder / "nowhere"
        command = [
            *(sys.executable, "-m", "tensorfusion_dra", "inspect", *flags),
            *("--driver-root", str(self._work.machine.driver_root), "--node-name", "gpu-check"),
            *("--data-dir", str(nowhere), "--cdi-dir", str(nowhere), "--enforcer", "none"),
            *("--kubelet-root", str(nowhere)),
        ]
        return _output(command, self._work.machine, deadline)


def recording_file(machine: Machine) -> str:
    """Return the file name of the recording; that of stand-ins says so."""
    return "recording-of-stand-ins.json" if machine.stand_ins else "recording.json"


def anonymous(recording: Json) -> Json:
    """Return the recording without what identifies the cards: their UUIDs become made-up ones."""
    gpus = [
        {**gpu, "uuid": _ANONYMOUS.format(index=gpu["index"])}
        if isinstance(gpu["uuid"], str)
        else gpu
        for gpu in recording["gpus"]
    ]
    return {**recording, "gpus": gpus}


def differences(recording: Json, devices: Sequence[Json]) -> list[str]:
    """Return where the published devices do not show what NVML answered."""
    by_uuid = {_attribute(device, names.ATTR_UUID): device for device in devices}
    found: list[str] = []
    for gpu in recording["gpus"]:
        device = by_uuid.get(gpu["uuid"]) if isinstance(gpu["uuid"], str) else None
        if device is None:
            continue  # left out, with the reason in `left_out`
        usable = gpu["memory_bytes"]
        if isinstance(gpu["reserved_bytes"], int):
            usable -= gpu["reserved_bytes"]
        pairs = {
            "product name": (gpu["name"], _attribute(device, names.ATTR_PRODUCT_NAME)),
            "bus ID": (bus_id_in_sysfs(gpu["bus_id"]), _attribute(device, names.ATTR_PCI_BUS_ID)),
            "vram in MiB": (usable // 2**20, _mib(device)),
        }
        found += [
            f"{device['name']}: {what}: found {published} published, expected {answered}"
            for what, (answered, published) in pairs.items()
            if answered != published
        ]
    return found


def _attribute(device: Json, name: str) -> Any:
    """Return the value of an attribute, whatever its type."""
    return next(iter(device["attributes"].get(name, {"": None}).values()))


def _mib(device: Json) -> int:
    return quantity.parse(device["capacity"]["vram"]["value"]).ceil() // 2**20


def _output(command: Sequence[str], machine: Machine, deadline: Deadline) -> str:
    """Return what a command prints.

    Raises:
        CheckError: It failed, or did not end in time.
    """
    try:
        ended = subprocess.run(
            command,
            env=machine.environment(),
            cwd=_PACKAGE_PARENT,
            capture_output=True,
            text=True,
            timeout=max(0.1, deadline.left_seconds()),
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise CheckError(f"{' '.join(command[1:4])}: found no end in time") from None
    if ended.returncode != 0:
        raise CheckError(f"{' '.join(command[1:4])}: {ended.stderr.strip()[-600:]}")
    return ended.stdout
