"""Check of the container runtime's CDI settings, from its own configuration files."""

import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from tensorfusion_dra.app.doctor.checks import Context, Place
from tensorfusion_dra.app.doctor.kubernetes import checked_nodes
from tensorfusion_dra.core.doctor import kubernetes
from tensorfusion_dra.core.doctor import runtime as rules
from tensorfusion_dra.core.doctor.finding import Finding
from tensorfusion_dra.core.doctor.runtime import CdiSettings, Document
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.core.kubernetes.untyped_json import as_list

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
_MOST_FILES: Final = 64


def cdi(context: Context) -> Iterator[Finding]:
    """Check that runtimes use CDI, and read the folder that this driver writes specs to."""
    for node in checked_nodes(context):
        runtime_version = str(kubernetes.node_info(node).get("containerRuntimeVersion", ""))
        settings = None
        if context.place is Place.NODE and context.sees_host:
            settings = _settings(context, runtime_version)
        yield from rules.findings(runtime_version, settings, cdi_dir=context.settings.cdi_dir)


def _settings(context: Context, runtime_version: str) -> CdiSettings | None:
    """Return the CDI settings in the runtime's files; None if there is no file."""
    name, release = rules.release_of(runtime_version)
    named = context.runtime_config
    if name != "containerd":
        return None
    candidates = [named] if named else [context.on_host(path) for path in _CONTAINERD]
    for path in candidates:
        if path.is_file():
            imported = _with_imports(path, context)
            return rules.containerd_settings(imported, release=release or (2, 0))
    return None


def _with_imports(main: Path, context: Context) -> Iterator[Document]:
    """Yield the files in the order in which containerd loads them: breadth first, each once."""
    pending, loaded = [main], set[Path]()
    while pending and len(loaded) < _MOST_FILES:
        path = pending.pop(0)
        if path in loaded or not path.is_file():
            continue
        loaded.add(path)
        document = _read(path)
        yield str(path), document
        pending += _imported(path, as_list(document.get("imports")), context)


def _imported(parent: Path, patterns: Sequence[object], context: Context) -> list[Path]:
    found: list[Path] = []
    for pattern in map(str, patterns):
        folder = context.on_host(pattern) if pattern.startswith("/") else parent.parent / pattern
        found += sorted(folder.parent.glob(folder.name)) if "*" in folder.name else [folder]
    return found


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RetryableError(f"{path}: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RetryableError(f"{path}: {error}, expected TOML") from error
