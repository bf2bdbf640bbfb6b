"""Check of CDI in the container runtime, from the runtime's own configuration files."""

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tensorfusion_dra.app.doctor.checks import Context, Place
from tensorfusion_dra.app.doctor.kubernetes import checked_nodes
from tensorfusion_dra.core.doctor.finding import Finding, not_checked, note, ok, problem
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.core.kubernetes.untyped_json import as_list, as_map

_CONTAINERD: Final = (
    # Files of distributions with a runtime of their own come first: there the usual file may be
    # a leftover.
    "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
    "/var/lib/rancher/rke2/agent/etc/containerd/config.toml",
    "/run/k0s/containerd-cri.toml",
    "/etc/k0s/containerd.toml",
    "/var/snap/microk8s/current/args/containerd.toml",
    "/etc/containerd/config.toml",
)
_MAX_FILES: Final = 64
_CRI: Final = "io.containerd.grpc.v1.cri"
_CRI_FROM_2_0: Final = "io.containerd.cri.v1.runtime"
_DEFAULT_FOLDERS: Final = ("/etc/cdi", "/var/run/cdi")


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


def cdi(context: Context) -> Iterator[Finding]:
    """Check that runtimes use CDI, and read the folder that this driver writes specs to."""
    for node in checked_nodes(context):
        runtime_version = str(
            ((node.get("status") or {}).get("nodeInfo") or {}).get("containerRuntimeVersion", "")
        )
        settings = None
        if context.place is Place.NODE and context.sees_host:
            settings = _settings(context, runtime_version)
        yield from findings(runtime_version, settings, cdi_dir=context.settings.cdi_dir)


def _settings(context: Context, runtime_version: str) -> CdiSettings | None:
    """Return the CDI settings in the runtime's files; None if there is no file.

    They are read in the order in which containerd loads them: breadth first, each once.
    """
    name, release = release_of(runtime_version)
    if name != "containerd":
        return None
    named = context.runtime_config
    every = [named] if named else [context.on_host(path) for path in _CONTAINERD]
    pending = [path for path in every if path.is_file()][:1]
    if not pending:
        return None
    loaded: dict[Path, dict[str, Any]] = {}
    while pending and len(loaded) < _MAX_FILES:
        path = pending.pop(0)
        if path in loaded or not path.is_file():
            continue
        loaded[path] = _read(path)
        for pattern in map(str, as_list(loaded[path].get("imports"))):
            imported = context.on_host(pattern) if pattern[:1] == "/" else path.parent / pattern
            is_pattern = "*" in imported.name
            pending += sorted(imported.parent.glob(imported.name)) if is_pattern else [imported]
    documents = [(str(path), document) for path, document in loaded.items()]
    return containerd_settings(documents, release=release or (2, 0))


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RetryableError(f"{path}: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RetryableError(f"{path}: {error}, expected TOML") from error


def containerd_settings(documents: Iterable[Document], *, release: tuple[int, int]) -> CdiSettings:
    """Return the settings that result from containerd's files.

    Up to 1.7, an imported file with the CRI's section replaces the whole section. From 2.0 on it
    replaces only the keys that it has (containerd, server/config/config.go).

    Args:
        documents: The files in the order in which containerd loads them, the main one first.
        release: Major and minor version.
    """
    origin, merged = "", dict[str, object]()
    for path, document in documents:
        plugins = as_map(document.get("plugins"))
        section = next(
            (as_map(plugins[name]) for name in (_CRI_FROM_2_0, _CRI) if name in plugins), None
        )
        if section is not None:
            merged = {**(merged if release >= (2, 0) else {}), **section}
        if section is not None or not origin:
            origin = path
    enabled, folders = merged.get("enable_cdi"), merged.get("cdi_spec_dirs")
    return CdiSettings(
        path=origin,
        enabled=enabled if isinstance(enabled, bool) else None,
        folders=None if folders is None else tuple(map(str, as_list(folders))),
    )


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
        yield ok("container runtime", f"{reported}, in which CDI is always on")
    else:
        yield note(
            "container runtime",
            reported or "not reported",
            expected="containerd or CRI-O",
            remedy="check that it reads CDI specs: a pod with a claim must have "
            "TF_GPU_MEMORY_LIMIT "
            "in its environment",
        )
    if settings is None:
        return
    folders = _DEFAULT_FOLDERS if settings.folders is None else settings.folders
    subject = "cdi_spec_dirs of the container runtime"
    if _real(cdi_dir) in map(_real, folders):
        yield ok(subject, f"{', '.join(folders)}; this driver writes to {cdi_dir}")
    else:
        yield problem(
            subject,
            f"{', '.join(folders) or 'none'}, in {settings.path}",
            expected=f"a list with {cdi_dir}, where this driver writes",
            remedy=f"add {cdi_dir} to cdi_spec_dirs and restart the runtime, or start the node "
            "plugin with --cdi-dir",
        )


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
            remedy="upgrade containerd, preferably to 2.x, where CDI is on by default",
        )
        return
    on_by_default = release is None or release >= (2, 0)
    subject = f"enable_cdi of {reported}"
    if settings is None and not on_by_default:
        yield not_checked(
            subject,
            "off by default, and the configuration is not visible from here",
            remedy="run this on the node itself, or name the file with --runtime-config",
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
            remedy=f'put enable_cdi = true under [plugins."{section}"] in {settings.path} and '
            "restart containerd",
        )


def _real(folder: str) -> str:
    """Return the folder's real path: /var/run is a link to /run on every current system."""
    plain = folder.rstrip("/")
    return plain.removeprefix("/var") if plain.startswith("/var/run/") else plain
