"""What the CDI devices of a claim add to a container."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dra_simulator import runtime
from dra_simulator.runtime import Mount
from gpucheck.steps import CheckError


@dataclass(frozen=True, slots=True, kw_only=True)
class Edits:
    """Edits of CDI devices, merged as a container runtime does.

    Attributes:
        device_nodes: Paths on the host. No container hides the others from a tenant of the check.
    """

    env: Mapping[str, str]
    mounts: Sequence[Mount]
    device_nodes: Sequence[str]


def of(ids: Sequence[str], folder: Path) -> Edits:
    """Return the edits of the devices with these qualified names.

    Raises:
        CheckError: The folder has no spec with one of them.
    """
    found = runtime.cdi_devices([folder])
    missing = [each for each in ids if each not in found.devices]
    if missing:
        raise CheckError(f"CDI devices: found no {', '.join(missing)} in the specs, expected them")
    devices = [found.devices[each] for each in ids]
    parts = [devices[0].spec_edits, *(device.edits for device in devices)]
    return Edits(
        env=dict(entry.split("=", 1) for part in parts for entry in part.get("env") or ()),
        mounts=[
            Mount(host_path=entry["hostPath"], container_path=entry["containerPath"])
            for part in parts
            for entry in part.get("mounts") or ()
        ],
        device_nodes=[
            entry.get("hostPath") or entry["path"]
            for part in parts
            for entry in part.get("deviceNodes") or ()
        ],
    )
