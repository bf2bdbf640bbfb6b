"""Whether the node's container runtime gives containers what CDI specs say."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tensorfusion_dra.core.doctor.finding import Finding, could_not_look, note, ok, problem
from tensorfusion_dra.core.kubernetes.untyped_json import as_list, as_map

_CRI: Final = "io.containerd.grpc.v1.cri"
_CRI_FROM_2_0: Final = "io.containerd.cri.v1.runtime"
_DEFAULT_FOLDERS: Final = ("/etc/cdi", "/var/run/cdi")
_OLDEST_CRIO: Final = (1, 28)
"""The first CRI-O that reads the CDI devices of the CRI, the only way by which 1.34 tells them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CdiSettings:
    """What a runtime's configuration says of CDI.

    Attributes:
        path: The file that said so; where nothing was said, the first that was read.
        enabled: None if nothing is said.
        folders: Where specs are looked for; None if nothing is said.
    """

    path: str
    enabled: bool | None = None
    folders: tuple[str, ...] | None = None


Document = tuple[str, Mapping[str, Any]]
"""A configuration file's path, and what it holds."""


def containerd_settings(documents: Iterable[Document], *, release: tuple[int, int]) -> CdiSettings:
    """What containerd's files say together.

    Up to 1.7 an imported file that has the CRI's section replaces the whole section; from 2.0 on,
    only what it names (containerd, server/config/config.go).

    Args:
        documents: In the order in which containerd loads them, the main one first.
        release: Major and minor.
    """
    settings: CdiSettings | None = None
    for path, document in documents:
        settings = settings or CdiSettings(path=path)
        section = _section(document)
        if section is None:
            continue
        said = _said(path, section)
        if release < (2, 0):
            settings = said
            continue
        kept = settings.enabled if said.enabled is None else said.enabled
        folders = settings.folders if said.folders is None else said.folders
        settings = CdiSettings(path=path, enabled=kept, folders=folders)
    return settings or CdiSettings(path="")


def crio_settings(documents: Iterable[Document]) -> CdiSettings:
    """What CRI-O's files say together; a later one wins key by key."""
    path, folders = "", None
    for name, document in documents:
        path = path or name
        section = as_map(as_map(document.get("crio")).get("runtime"))
        if "cdi_spec_dirs" in section:
            path, folders = name, _texts(section["cdi_spec_dirs"])
    return CdiSettings(path=path, folders=folders)


def judged(told: str, settings: CdiSettings | None, *, cdi_dir: str) -> Iterator[Finding]:
    """What to think of a runtime.

    Args:
        told: The node's containerRuntimeVersion, such as ``containerd://2.1.9``.
        settings: None if its configuration is not to be seen from here.
        cdi_dir: Where this driver writes its specs.
    """
    name, release = release_of(told)
    if name == "containerd":
        yield from _containerd(told, release, settings)
    elif name == "cri-o":
        yield from _crio(told, release)
    else:
        yield note(
            "container runtime",
            told or "not told",
            expected="containerd or CRI-O",
            cure="make sure that it reads CDI specs: a pod with a claim finds TF_GPU_MEMORY_LIMIT "
            "in its environment",
        )
    if settings is not None:
        yield from _folders(settings, cdi_dir)


def release_of(told: str) -> tuple[str, tuple[int, int] | None]:
    """Name, and major and minor version, of ``containerd://2.1.9``."""
    name, _, version = told.partition("://")
    found = re.match(r"v?([0-9]+)\.([0-9]+)", version)
    return name, (int(found[1]), int(found[2])) if found else None


def _containerd(
    told: str, release: tuple[int, int] | None, settings: CdiSettings | None
) -> Iterator[Finding]:
    if release is not None and release < (1, 7):
        yield problem(
            "container runtime",
            told,
            expected="containerd 1.7 or later, which knows CDI",
            cure="upgrade containerd, best to 2.x, where CDI is on",
        )
        return
    on_by_default = release is None or release >= (2, 0)
    looked_at = f"enable_cdi of {told}"
    if settings is None and not on_by_default:
        yield could_not_look(
            looked_at,
            "its configuration is not to be seen from here, and it is off by default",
            cure="run this on the node itself, or name the file with --runtime-config",
        )
    elif settings is None:
        yield ok(looked_at, "on by default; its configuration is not to be seen from here")
    elif settings.enabled or (settings.enabled is None and on_by_default):
        said = "said" if settings.enabled else "not said, and on by default,"
        yield ok(looked_at, f"on: {said} in {settings.path}")
    else:
        said = "not said, and off by default" if settings.enabled is None else "false"
        section = _CRI_FROM_2_0 if on_by_default else _CRI
        yield problem(
            looked_at,
            f"{said}, in {settings.path}",
            expected="enable_cdi = true: without it containers start without GPU and limits",
            cure=f'put enable_cdi = true under [plugins."{section}"] in {settings.path} and '
            "restart containerd",
        )


def _crio(told: str, release: tuple[int, int] | None) -> Iterator[Finding]:
    if release is not None and release < _OLDEST_CRIO:
        yield problem(
            "container runtime",
            told,
            expected="CRI-O 1.28 or later, which takes CDI devices from the kubelet",
            cure="upgrade CRI-O to the minor version of the cluster",
        )
    else:
        yield ok("container runtime", f"{told}, in which CDI is always on")


def _folders(settings: CdiSettings, cdi_dir: str) -> Iterator[Finding]:
    folders = _DEFAULT_FOLDERS if settings.folders is None else settings.folders
    looked_at = "cdi_spec_dirs of the container runtime"
    if _real(cdi_dir) in map(_real, folders):
        yield ok(looked_at, f"{', '.join(folders)}; this driver writes to {cdi_dir}")
    else:
        yield problem(
            looked_at,
            f"{', '.join(folders) or 'none'}, in {settings.path}",
            expected=f"{cdi_dir} among them, where this driver writes",
            cure=f"add {cdi_dir} to cdi_spec_dirs and restart the runtime, or start the node "
            "plugin with --cdi-dir",
        )


def _section(document: Mapping[str, Any]) -> Mapping[str, object] | None:
    plugins = as_map(document.get("plugins"))
    for name in (_CRI_FROM_2_0, _CRI):
        if name in plugins:
            return as_map(plugins[name])
    return None


def _said(path: str, section: Mapping[str, object]) -> CdiSettings:
    enabled = section.get("enable_cdi")
    return CdiSettings(
        path=path,
        enabled=enabled if isinstance(enabled, bool) else None,
        folders=_texts(section["cdi_spec_dirs"]) if "cdi_spec_dirs" in section else None,
    )


def _texts(value: object) -> tuple[str, ...]:
    return tuple(str(item) for item in as_list(value))


def _real(folder: str) -> str:
    """/var/run is a link to /run on every current system."""
    plain = folder.rstrip("/")
    return plain.removeprefix("/var") if plain.startswith("/var/run/") else plain
