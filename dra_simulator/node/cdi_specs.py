"""Reader of CDI specs with the runtimes' rules (container-device-interface, pkg/cdi)."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tensorfusion_dra.core.kubernetes import cdi_rules
from tensorfusion_dra.core.kubernetes.cdi_rules import CdiError


@dataclass(frozen=True, slots=True)
class CdiDevice:
    """One device of a CDI spec, and the file of that spec.

    Attributes:
        edits: The device's own containerEdits.
        spec_edits: containerEdits of the whole spec. They apply once to a container, even if it
            uses several devices of the spec.
    """

    name: str
    path: Path
    edits: Mapping[str, Any]
    spec_edits: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CdiDevices:
    """Devices of all CDI specs of a node.

    Attributes:
        devices: Usable devices by qualified name.
        errors: The reason, by file, why the file or one of its devices is not used.
    """

    devices: Mapping[str, CdiDevice]
    errors: Mapping[Path, str]


def read(folders: Iterable[Path]) -> CdiDevices:
    """Read the specs in these folders; later folders override earlier ones."""
    devices: dict[str, CdiDevice] = {}
    errors: dict[Path, str] = {}
    conflicts: set[str] = set()
    for folder in folders:
        here: dict[str, list[CdiDevice]] = {}
        for path in _files(folder):
            try:
                found = devices_of(path, path.read_text())
            except (CdiError, OSError, ValueError) as error:
                errors[path] = str(error)
                continue
            for device in found:
                here.setdefault(device.name, []).append(device)
        for name, candidates in here.items():
            devices[name] = candidates[0]
            if len(candidates) == 1:
                continue
            # Two files of equal priority describe the device, so neither is used.
            conflicts.add(name)
            for candidate in candidates:
                others = (str(other.path) for other in candidates if other is not candidate)
                errors[candidate.path] = f"conflicting device {name} in {', '.join(others)}"
    return CdiDevices({name: devices[name] for name in devices.keys() - conflicts}, errors)


def _files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.suffix in {".json", ".yaml"})


def devices_of(path: Path, text: str) -> list[CdiDevice]:
    """Return the devices of one spec.

    Raises:
        CdiError: The spec is invalid.
    """
    try:
        spec = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (ValueError, yaml.YAMLError) as error:
        raise CdiError(f"{path}: {error}") from error
    if not isinstance(spec, dict):
        raise CdiError(f"{path}: found {type(spec).__name__}, expected an object")
    try:
        cdi_rules.check(spec)
    except CdiError as error:
        raise CdiError(f"{path}: {error}") from error
    shared = spec.get("containerEdits") or {}
    return [
        CdiDevice(f"{spec['kind']}={device['name']}", path, device["containerEdits"], shared)
        for device in spec["devices"]
    ]
