"""Validation rules of container runtimes for a CDI spec (container-device-interface, pkg/cdi)."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from tensorfusion_dra.core.errors import DriverError

_VERSIONS: Final = ("0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")

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
_REQUIRED: Final = {
    "deviceNodes": ("path",),
    "hooks": ("path",),
    "mounts": ("hostPath", "containerPath"),
    "netDevices": (),
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
    version = spec.get("cdiVersion")
    if version not in _VERSIONS:
        raise CdiError(f"cdiVersion: found {version!r}, expected one of {', '.join(_VERSIONS)}")
    vendor, slash, device_class = str(spec.get("kind", "")).partition("/")
    if not slash or not _VENDOR.fullmatch(vendor) or not _VENDOR.fullmatch(device_class):
        raise CdiError(f"kind: found {spec.get('kind')!r}, expected vendor/class")
    _check_edits("spec", spec.get("containerEdits") or {})
    devices = spec.get("devices") or []
    if not devices:
        raise CdiError("invalid spec, no devices")
    names: set[str] = set()
    for device in devices:
        if not isinstance(device, dict):
            raise CdiError(f"device: found {type(device).__name__}, expected an object")
        name = device.get("name", "")
        if not isinstance(name, str) or not _DEVICE.fullmatch(name):
            raise CdiError(f"invalid device name {name!r}")
        _check_fields(f"device {name}", device, _DEVICE_FIELDS)
        if not any((device.get("containerEdits") or {}).values()):
            raise CdiError(f"device {name}: invalid device, empty device edits")
        _check_edits(f"device {name}", device["containerEdits"])
        if name in names:
            raise CdiError(f"invalid spec, multiple device {name}")
        names.add(name)
    needed, feature = max(_needed_versions(spec, device_class), default=("", ""))
    if version < needed:
        raise CdiError(f"cdiVersion {version}: found {feature}, which needs {needed}")


def _check_edits(where: str, edits: Mapping[str, Any]) -> None:
    _check_fields(where, edits, set(_EDIT_FIELDS))
    for entry in edits.get("env") or ():
        if not isinstance(entry, str) or entry.find("=") <= 0:
            raise CdiError(f"{where}: invalid environment variable {entry!r}")
    for kind, required in _REQUIRED.items():
        for entry in edits.get(kind) or ():
            _check_fields(f"{where}: {kind}", entry, _EDIT_FIELDS[kind])
            for field in required:
                if not entry.get(field):
                    raise CdiError(f"{where}: {kind}: empty {field}")
    for node in edits.get("deviceNodes") or ():
        if node.get("type", "") not in {"", "b", "c", "u", "p"}:
            raise CdiError(f"{where}: device {node['path']}: invalid type {node['type']!r}")
        if not set(node.get("permissions", "")) <= set("rwm"):
            text = f"invalid permissions {node['permissions']!r}"
            raise CdiError(f"{where}: device {node['path']}: {text}")
    for hook in edits.get("hooks") or ():
        if hook.get("hookName") not in _HOOKS:
            raise CdiError(f"{where}: invalid hook name {hook.get('hookName')!r}")


def _check_fields(where: str, found: Any, known: set[str]) -> None:
    if not isinstance(found, dict):
        raise CdiError(f"{where}: found {type(found).__name__}, expected an object")
    unknown = sorted(found.keys() - known)
    if unknown:
        raise CdiError(f"{where}: unknown field {', '.join(unknown)}")


def _needed_versions(spec: Mapping[str, Any], device_class: str) -> Iterator[tuple[str, str]]:
    """Yield the version that each feature of the spec needs, and the feature."""
    devices = spec["devices"]
    edits = [spec.get("containerEdits") or {}, *(device["containerEdits"] for device in devices)]

    def entries(kind: str) -> list[Mapping[str, Any]]:
        return [entry for edit in edits for entry in edit.get(kind) or ()]

    rdt = [edit["intelRdt"] for edit in edits if edit.get("intelRdt")]
    for version, feature, used in (
        ("1.1.0", "netDevices", entries("netDevices")),
        (
            "1.1.0",
            "intelRdt.schemata",
            [entry for entry in rdt if entry.get("schemata") or entry.get("enableMonitoring")],
        ),
        ("0.7.0", "intelRdt", rdt),
        ("0.7.0", "additionalGids", entries("additionalGids")),
        ("0.6.0", "annotations", [each for each in (spec, *devices) if each.get("annotations")]),
        ("0.6.0", "a dot in the class", "." in device_class),
        (
            "0.5.0",
            "deviceNodes.hostPath",
            [node for node in entries("deviceNodes") if node.get("hostPath")],
        ),
        (
            "0.5.0",
            "a device name that begins with a digit",
            [device for device in devices if not device["name"][0].isalpha()],
        ),
        ("0.4.0", "mounts.type", [mount for mount in entries("mounts") if mount.get("type")]),
    ):
        if used:
            yield version, feature
