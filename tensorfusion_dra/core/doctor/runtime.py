"""Findings about CDI in the node's container runtime."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tensorfusion_dra.core.doctor.finding import Finding, not_checked, note, ok, problem
from tensorfusion_dra.core.kubernetes.untyped_json import as_list, as_map

_CRI: Final = "io.containerd.grpc.v1.cri"
_CRI_FROM_2_0: Final = "io.containerd.cri.v1.runtime"
_DEFAULT_FOLDERS: Final = ("/etc/cdi", "/var/run/cdi")
_OLDEST_CRIO: Final = (1, 28)
"""The first CRI-O that reads CDI devices from the CRI, the only way by which 1.34 passes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CdiSettings:
    """CDI settings in a runtime's configuration.

    Attributes:
        path: The file with the settings; if no file has any, the first that was read.
        enabled: Value of enable_cdi; None if it is not set.
        folders: Folders of CDI specs; None if they are not set.
    """

    path: str
    enabled: bool | None = None
    folders: tuple[str, ...] | None = None


Document = tuple[str, Mapping[str, Any]]
"""A configuration file's path and content."""


def containerd_settings(documents: Iterable[Document], *, release: tuple[int, int]) -> CdiSettings:
    """Return the settings that result from containerd's files.

    Up to 1.7, an imported file with the CRI's section replaces the whole section. From 2.0 on it
    replaces only the keys that it has (containerd, server/config/config.go).

    Args:
        documents: The files in the order in which containerd loads them, the main one first.
        release: Major and minor version.
    """
    settings: CdiSettings | None = None
    for path, document in documents:
        settings = settings or CdiSettings(path=path)
        section = _section(document)
        if section is None:
            continue
        found = _cdi_settings(path, section)
        if release < (2, 0):
            settings = found
            continue
        enabled = settings.enabled if found.enabled is None else found.enabled
        folders = settings.folders if found.folders is None else found.folders
        settings = CdiSettings(path=path, enabled=enabled, folders=folders)
    return settings or CdiSettings(path="")


def findings(reported: str, settings: CdiSettings | None, *, cdi_dir: str) -> Iterator[Finding]:
    """Judge a node's container runtime.

    Args:
        reported: The node's containerRuntimeVersion, such as ``containerd://2.1.9``.
        settings: CDI settings; None if the configuration is not visible from here.
        cdi_dir: Folder to which this driver writes its CDI specs.
    """
    name, release = release_of(reported)
    if name == "containerd":
        yield from _containerd(reported, release, settings)
    elif name == "cri-o":
        yield from _crio(reported, release)
    else:
        yield note(
            "container runtime",
            reported or "not reported",
            expected="containerd or CRI-O",
            cure="check that it reads CDI specs: a pod with a claim must have TF_GPU_MEMORY_LIMIT "
            "in its environment",
        )
    if settings is not None:
        yield from _folders(settings, cdi_dir)


def release_of(reported: str) -> tuple[str, tuple[int, int] | None]:
    """Return name, and major and minor version, of a text such as ``containerd://2.1.9``."""
    name, _, version = reported.partition("://")
    found = re.match(r"v?([0-9]+)\.([0-9]+)", version)
    return name, (int(found[1]), int(found[2])) if found else None


def _containerd(
    reported: str, release: tuple[int, int] | None, settings: CdiSettings | None
) -> Iterator[Finding]:
    if release is not None and release < (1, 7):
        yield problem(
            "container runtime",
            reported,
            expected="containerd 1.7 or later, which supports CDI",
            cure="upgrade containerd, preferably to 2.x, where CDI is on by default",
        )
        return
    on_by_default = release is None or release >= (2, 0)
    subject = f"enable_cdi of {reported}"
    if settings is None and not on_by_default:
        yield not_checked(
            subject,
            "off by default, and the configuration is not visible from here",
            cure="run this on the node itself, or name the file with --runtime-config",
        )
    elif settings is None:
        yield ok(subject, "on by default; the configuration is not visible from here")
    elif settings.enabled or (settings.enabled is None and on_by_default):
        origin = "set" if settings.enabled else "the default, not set"
        yield ok(subject, f"on: {origin} in {settings.path}")
    else:
        state = "not set, and off by default" if settings.enabled is None else "false"
        section = _CRI_FROM_2_0 if on_by_default else _CRI
        yield problem(
            subject,
            f"{state}, in {settings.path}",
            expected="enable_cdi = true: without it containers start without GPU and limits",
            cure=f'put enable_cdi = true under [plugins."{section}"] in {settings.path} and '
            "restart containerd",
        )


def _crio(reported: str, release: tuple[int, int] | None) -> Iterator[Finding]:
    if release is not None and release < _OLDEST_CRIO:
        yield problem(
            "container runtime",
            reported,
            expected="CRI-O 1.28 or later, which takes CDI devices from the kubelet",
            cure="upgrade CRI-O to the minor version of the cluster",
        )
    else:
        yield ok("container runtime", f"{reported}, in which CDI is always on")


def _folders(settings: CdiSettings, cdi_dir: str) -> Iterator[Finding]:
    folders = _DEFAULT_FOLDERS if settings.folders is None else settings.folders
    subject = "cdi_spec_dirs of the container runtime"
    if _real(cdi_dir) in map(_real, folders):
        yield ok(subject, f"{', '.join(folders)}; this driver writes to {cdi_dir}")
    else:
        yield problem(
            subject,
            f"{', '.join(folders) or 'none'}, in {settings.path}",
            expected=f"a list with {cdi_dir}, where this driver writes",
            cure=f"add {cdi_dir} to cdi_spec_dirs and restart the runtime, or start the node "
            "plugin with --cdi-dir",
        )


def _section(document: Mapping[str, Any]) -> Mapping[str, object] | None:
    plugins = as_map(document.get("plugins"))
    for name in (_CRI_FROM_2_0, _CRI):
        if name in plugins:
            return as_map(plugins[name])
    return None


def _cdi_settings(path: str, section: Mapping[str, object]) -> CdiSettings:
    enabled = section.get("enable_cdi")
    return CdiSettings(
        path=path,
        enabled=enabled if isinstance(enabled, bool) else None,
        folders=_texts(section["cdi_spec_dirs"]) if "cdi_spec_dirs" in section else None,
    )


def _texts(value: object) -> tuple[str, ...]:
    return tuple(str(item) for item in as_list(value))


def _real(folder: str) -> str:
    """Return the folder's real path: /var/run is a link to /run on every current system."""
    plain = folder.rstrip("/")
    return plain.removeprefix("/var") if plain.startswith("/var/run/") else plain
