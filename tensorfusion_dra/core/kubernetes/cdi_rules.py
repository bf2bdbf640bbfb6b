"""Validation rules of container runtimes for a CDI spec (container-device-interface, pkg/cdi)."""

import re
from collections.abc import Mapping
from typing import Any, Final

from tensorfusion_dra.core.errors import DriverError

Version = tuple[int, int, int]

VERSIONS: Final[tuple[Version, ...]] = (
    (0, 3, 0),
    (0, 4, 0),
    (0, 5, 0),
    (0, 6, 0),
    (0, 7, 0),
    (0, 8, 0),
    (1, 0, 0),
    (1, 1, 0),
)

_VENDOR: Final = re.compile(r"[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
_DEVICE: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")

_SPEC_FIELDS: Final = {"cdiVersion", "kind", "annotations", "devices", "containerEdits"}
_DEVICE_FIELDS: Final = {"name", "annotations", "containerEdits"}
_EDIT_FIELDS: Final = {
    "env": set[str](),
    "deviceNodes": {
        *("path", "hostPath", "type", "major", "minor"),
        *("fileMode", "permissions", "uid", "gid"),
    },
    "hooks": {"hookName", "path", "args", "env", "timeout"},
    "mounts": {"hostPath", "containerPath", "options", "type"},
    "netDevices": {"hostInterfaceName", "name"},
    "additionalGids": set[str](),
    "intelRdt": {
        *("closID", "l3CacheSchema", "memBwSchema", "schemata"),
        *("enableCMT", "enableMBM", "enableMonitoring"),
    },
}
_HOOKS: Final = {
    *("prestart", "createRuntime", "createContainer"),
    *("startContainer", "poststart", "poststop"),
}


class CdiError(DriverError):
    """A CDI spec is invalid; runtimes ignore the whole file."""


def check(spec: Mapping[str, Any]) -> None:
    """Return if a runtime would load the spec.

    Raises:
        CdiError: A runtime would reject it; the text gives the reason.
    """
    _check_fields("spec", spec, _SPEC_FIELDS)
    version = _version(spec.get("cdiVersion"))
    vendor, slash, device_class = str(spec.get("kind", "")).partition("/")
    if not slash or not _VENDOR.fullmatch(vendor) or not _VENDOR.fullmatch(device_class):
        raise CdiError(f"kind: found {spec.get('kind')!r}, expected vendor/class")
    _check_edits("spec", spec.get("containerEdits") or {})
    devices = spec.get("devices") or []
    if not devices:
        raise CdiError("invalid spec, no devices")
    names: set[str] = set()
    for device in devices:
        _check_device(device)
        if device["name"] in names:
            raise CdiError(f"invalid spec, multiple device {device['name']}")
        names.add(device["name"])
    needed, feature = _needed_version(spec, device_class)
    if version < needed:
        raise CdiError(f"cdiVersion {_text(version)}: found {feature}, which needs {_text(needed)}")


def _check_device(device: Any) -> None:
    if not isinstance(device, dict):
        raise CdiError(f"device: found {type(device).__name__}, expected an object")
    name = device.get("name", "")
    if not isinstance(name, str) or not _DEVICE.fullmatch(name):
        raise CdiError(f"invalid device name {name!r}")
    _check_fields(f"device {name}", device, _DEVICE_FIELDS)
    edits = device.get("containerEdits") or {}
    if not any(edits.values()):
        raise CdiError(f"device {name}: invalid device, empty device edits")
    _check_edits(f"device {name}", edits)


def _check_edits(where: str, edits: Mapping[str, Any]) -> None:
    _check_fields(where, edits, set(_EDIT_FIELDS))
    for entry in edits.get("env") or ():
        if not isinstance(entry, str) or entry.find("=") <= 0:
            raise CdiError(f"{where}: invalid environment variable {entry!r}")
    for kind in ("deviceNodes", "hooks", "mounts", "netDevices"):
        for entry in edits.get(kind) or ():
            _check_fields(f"{where}: {kind}", entry, _EDIT_FIELDS[kind])
    for node in edits.get("deviceNodes") or ():
        _require(node, "path", where=f"{where}: deviceNodes")
        if node.get("type", "") not in {"", "b", "c", "u", "p"}:
            raise CdiError(f"{where}: device {node['path']}: invalid type {node['type']!r}")
        if not set(node.get("permissions", "")) <= set("rwm"):
            text = f"invalid permissions {node['permissions']!r}"
            raise CdiError(f"{where}: device {node['path']}: {text}")
    for hook in edits.get("hooks") or ():
        _require(hook, "path", where=f"{where}: hooks")
        if hook.get("hookName") not in _HOOKS:
            raise CdiError(f"{where}: invalid hook name {hook.get('hookName')!r}")
    for mount in edits.get("mounts") or ():
        _require(mount, "hostPath", where=f"{where}: mounts")
        _require(mount, "containerPath", where=f"{where}: mounts")


def _check_fields(where: str, found: Any, known: set[str]) -> None:
    if not isinstance(found, dict):
        raise CdiError(f"{where}: found {type(found).__name__}, expected an object")
    unknown = sorted(found.keys() - known)
    if unknown:
        raise CdiError(f"{where}: unknown field {', '.join(unknown)}")


def _require(entry: Mapping[str, Any], field: str, *, where: str) -> None:
    if not entry.get(field):
        raise CdiError(f"{where}: empty {field}")


def _version(text: object) -> Version:
    found = next((version for version in VERSIONS if _text(version) == text), None)
    if found is None:
        known = ", ".join(_text(version) for version in VERSIONS)
        raise CdiError(f"cdiVersion: found {text!r}, expected one of {known}")
    return found


def _text(version: Version) -> str:
    return ".".join(str(number) for number in version)


def _needed_version(spec: Mapping[str, Any], device_class: str) -> tuple[Version, str]:
    """Return the lowest version that the spec can declare, and the feature that needs it."""
    devices = spec["devices"]
    edits = [spec.get("containerEdits") or {}, *(device["containerEdits"] for device in devices)]
    nodes = [node for edit in edits for node in edit.get("deviceNodes") or ()]
    rdt = [edit["intelRdt"] for edit in edits if edit.get("intelRdt")]
    annotated = [spec, *devices]
    features = {
        "netDevices": ((1, 1, 0), any(edit.get("netDevices") for edit in edits)),
        "intelRdt.schemata": (
            (1, 1, 0),
            any(entry.get("schemata") or entry.get("enableMonitoring") for entry in rdt),
        ),
        "intelRdt": ((0, 7, 0), bool(rdt)),
        "additionalGids": ((0, 7, 0), any(edit.get("additionalGids") for edit in edits)),
        "annotations": ((0, 6, 0), any(entry.get("annotations") for entry in annotated)),
        "a dot in the class": ((0, 6, 0), "." in device_class),
        "deviceNodes.hostPath": ((0, 5, 0), any(node.get("hostPath") for node in nodes)),
        "a device name that begins with a digit": (
            (0, 5, 0),
            any(not device["name"][0].isalpha() for device in devices),
        ),
        "mounts.type": (
            (0, 4, 0),
            any(mount.get("type") for edit in edits for mount in edit.get("mounts") or ()),
        ),
    }
    used = ((version, name) for name, (version, is_used) in features.items() if is_used)
    return max(used, default=(VERSIONS[0], ""))
