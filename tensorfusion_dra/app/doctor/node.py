"""Checks of the node's files: folders, sockets, records of claims, and CDI specs."""

import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tensorfusion_dra.app.doctor.checks import Context
from tensorfusion_dra.app.shared import node_parts
from tensorfusion_dra.core import names, printable
from tensorfusion_dra.core.errors import FatalError, InputError, RetryableError
from tensorfusion_dra.core.finding import Finding, not_checked, note, ok, problem, warning
from tensorfusion_dra.core.kubernetes import cdi_rules
from tensorfusion_dra.core.kubernetes.cdi_rules import CdiError
from tensorfusion_dra.enforcers import written_files
from tensorfusion_dra.kubelet import sockets
from tensorfusion_dra.runtime import untyped_yaml
from tensorfusion_dra.state import claim_store, unix_sockets

_AS_ROOT: Final = "run this as root on the node"
_ELSEWHERE: Final = (
    "set --kubelet-root to the kubelet's --root-dir (microk8s: "
    "/var/snap/microk8s/common/var/lib/kubelet); in a pod, mount it at the same path"
)
_MIN_FREE_BYTES: Final = 16 * 2**20
_MIN_FREE_RATIO: Final = 0.1
"""As in the alert TensorFusionDRATenantFilesFull."""
_MAX_BYTES: Final = 16 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """Purpose of a folder, with its requirements.

    Attributes:
        what: Name of the purpose, such as ``registration folder``.
        may_be_made: The node plugin creates it if it is missing.
        written: The node plugin writes to it.
        of_containers: Containers write to it, so it should be a file system of its own.
        missing_remedy: What to do if it is missing; "" to create it.
    """

    what: str
    may_be_made: bool = False
    written: bool = True
    of_containers: bool = False
    missing_remedy: str = ""


_TENANTS: Final = Use(what="folder that containers write to", may_be_made=True, of_containers=True)


def folders(context: Context) -> Iterator[Finding]:
    """Check that each folder exists, is the host's own, and suits its use."""
    settings = context.settings
    uses = [
        (settings.registry_folder, Use(what="registration folder", missing_remedy=_ELSEWHERE)),
        (settings.data_folder, Use(what="data folder", may_be_made=True)),
        (Path(settings.cdi_dir), Use(what="CDI folder", may_be_made=True)),
        (
            Path(settings.tensor_fusion_root),
            Use(what="limits folder", may_be_made=True),
        ),
    ]
    if not settings.simulated_gpus:
        use = Use(
            what="device folder",
            written=False,
            missing_remedy="mount the host's /dev and set --dev-dir",
        )
        uses.append((node_parts.device_nodes(settings).folder(), use))
        for enforcer in node_parts.candidates(settings).values():
            if folder := enforcer.tenants_folder:
                uses.append((Path(folder).resolve(), _TENANTS))
    for path, use in uses:
        yield from of_path(path, use, in_pod=context.in_pod)
        free = written_files.free_ratio(str(path)) if use.of_containers else None
        if free is not None and free < _MIN_FREE_RATIO:
            yield full(path, free, settings.data_folder)


def full(folder: Path, free: float, data: Path) -> Finding:
    """Return the finding of a nearly full tenant folder, with its largest users."""
    claims: dict[str, str] = {}
    with suppress(RetryableError, FatalError):
        claims = {uid: f"claim {each.ref}" for uid, each in claim_store.read(data).claims.items()}
    counts = written_files.by_writer(folder, claims)
    most = sorted(counts, key=lambda writer: (-counts[writer], writer))[:3]
    return problem(
        f"{_TENANTS.what} {folder}",
        f"{free:.0%} of its space or files free",
        expected=f"at least {_MIN_FREE_RATIO:.0%}; once it is full, no claim of this enforcer is "
        "prepared",
        remedy="end the pods that have most files and pages of 4 KiB there: "
        + ", ".join(f"{writer} ({counts[writer]})" for writer in most),
    )


def of_path(path: Path, use: Use, *, in_pod: bool) -> Iterator[Finding]:
    """Judge a path: one finding if it is fine, else one for each fault."""
    subject = f"{use.what} {path}"
    try:
        status, space = path.stat(), os.statvfs(path)
    except FileNotFoundError:
        if use.may_be_made:
            yield ok(subject, "not created yet; the node plugin creates it")
        else:
            remedy = use.missing_remedy or f"mkdir -p {path}"
            yield problem(subject, "not found", expected="a folder", remedy=remedy)
        return
    except OSError as error:
        yield not_checked(subject, error.strerror or str(error), remedy=_AS_ROOT)
        return
    if not stat.S_ISDIR(status.st_mode):
        remedy = use.missing_remedy or f"mkdir -p {path}"
        yield problem(subject, "not a folder", expected="a folder", remedy=remedy)
        return
    mode = stat.S_IMODE(status.st_mode)
    found = faults(
        str(path),
        use,
        mode=mode,
        is_mount=path.is_mount(),
        is_of_container=in_pod and status.st_dev == Path("/").stat().st_dev,
        writable=os.access(path, os.W_OK | os.X_OK),
        read_only=bool(space.f_flag & os.ST_RDONLY),
        free_bytes=space.f_bavail * space.f_frsize,
    )
    yield from [*found] or [ok(subject, f"mode {mode:04o}")]


def faults(
    path: str,
    use: Use,
    *,
    mode: int,
    is_mount: bool,
    is_of_container: bool,
    writable: bool,
    read_only: bool,
    free_bytes: int,
) -> Iterator[Finding]:
    """Yield what is wrong with a folder: only the node plugin should write there.

    Args:
        is_mount: It is a file system of its own.
        is_of_container: It is on the root file system of the container in which this process runs.
        writable: The user of this process may write to it.
    """
    subject = f"{use.what} {path}"
    if is_of_container:
        yield problem(
            subject,
            "on the container's own file system",
            expected="the host's folder, which the kubelet and the runtime see",
            remedy=f"mount the host path {path} at the same path into the pod",
        )
    elif use.of_containers and not is_mount:
        yield warning(
            subject,
            "no mount: a container can fill its file system, and then no claim of the node can be "
            "prepared",
            expected="a tmpfs of its own",
            remedy="reboot the node, and the chart's DaemonSet mounts one; without the chart at "
            "each "
            f"boot: mount -t tmpfs -o nosuid,nodev,noexec,size=512M tmpfs {path}",
        )
    if use.written and read_only:
        yield problem(
            subject,
            "mounted read-only",
            expected="writable",
            remedy="take readOnly from its volumeMount, or mount the file system writable",
        )
    elif use.written and not writable:
        yield not_checked(
            subject,
            "not writable by the user of this process",
            remedy=_AS_ROOT,
        )
    elif use.written and free_bytes < _MIN_FREE_BYTES:
        yield problem(
            subject,
            f"{free_bytes // 2**20} MiB free",
            expected=f"at least {_MIN_FREE_BYTES // 2**20} MiB",
            remedy="make room; claims fail on a full disk",
        )
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        yield warning(
            subject,
            f"mode {mode:04o}: every user of the node may write there",
            expected="writable only by root: another user's file may become part of a container",
            remedy=f"chmod o-w {path}",
        )


def serving(context: Context) -> Iterator[Finding]:
    """Check which of this driver's sockets in the registration folder are served."""
    folder = context.settings.registry_folder
    try:
        os.scandir(folder).close()  # rglob() raises no error for a folder that it may not read
        files = sorted(path for path in folder.rglob("*") if path.is_socket())
    except OSError as error:
        raise RetryableError(f"{folder}: {error.strerror or error}") from error
    yield from registrations(
        {
            str(path): not unix_sockets.reason(str(path)) if os.access(path, os.W_OK) else None
            for path in files
            if sockets.OUR_REGISTRATION.fullmatch(path.name)
        }
    )


def registrations(found: Mapping[str, bool | None]) -> Iterator[Finding]:
    """Judge this driver's sockets in the registration folder.

    Args:
        found: By path, whether a process serves it; None if this process may not connect to it.
    """
    if not any(found.values()):
        yield problem(
            "registration socket",
            f"{len(found)} of this driver, none of them served",
            expected=f"one that is served: {names.DRIVER}-reg.sock",
            remedy="start the node plugin on this node; if it runs, its log gives the reason why "
            "it does not serve",
        )
    for path, is_live in found.items():
        subject = f"socket {path}"
        if is_live is None:
            yield not_checked(subject, "no permission to connect to it", remedy=_AS_ROOT)
        elif is_live:
            yield ok(subject, "served")
        else:
            yield warning(
                subject,
                "not served: its process died without removing it",
                expected="no socket, or a served one: the kubelet keeps connecting to it",
                remedy="restart the node plugin of this node; it removes what its predecessor left",
            )


def records(context: Context) -> Iterator[Finding]:
    """Check that the records of claims and the CDI specs can be read and agree with each other."""
    folder = context.settings.data_folder
    subject = f"claim records {folder / claim_store.FOLDER}"
    claims: dict[str, str] | None = None
    try:
        found = claim_store.read(folder)
    except FatalError as error:
        yield problem(
            subject,
            str(error),
            expected="records of this release",
            remedy="run the release that wrote them, or drain the node and delete its folder",
        )
    except RetryableError as error:
        yield not_checked(subject, str(error), remedy=_AS_ROOT)
    else:
        claims = {uid: str(claim.ref) for uid, claim in found.claims.items()}
        for uid, reason in found.damaged.items():
            yield problem(
                f"record of claim {uid}",
                reason,
                expected="a readable one; until then its GPUs, or all, take no new claim",
                remedy="start the node plugin, which rebuilds it from its claim; if it cannot, end "
                f"the claim's pod, delete {folder / claim_store.FOLDER / uid}.json, and restart it",
            )
        if not (folder / claim_store.LOCK).exists():
            yield note(subject, "not found: no node plugin has run here yet")
        elif not found.damaged:
            yield ok(subject, f"{len(claims)} claims")
        claims |= {uid: uid for uid in found.damaged}
    yield from _specs(context, claims)


def _specs(context: Context, claims: Mapping[str, str] | None) -> Iterator[Finding]:
    """Yield the faults of the CDI specs in all folders that the runtime reads, or that all is well.

    Args:
        claims: The recorded claims, ``namespace/name`` by UID; None if they could not be read.
    """
    files = list(_files(context))
    found = [each for path in files for each in _faults_of_spec(context, path, claims)]
    ours = {uid for path in files if (uid := _claim_uid(path)) is not None}
    missing = sorted(name for uid, name in (claims or {}).items() if uid not in ours)
    if missing:
        found.append(
            warning(
                "CDI specs",
                f"none for {len(missing)} prepared claims: {printable.first(missing)}",
                expected="one for each: a container of these claims that restarts gets no devices",
                remedy="restart the node plugin of this node, which rewrites them",
            )
        )
    yield from found or [
        ok("CDI specs", f"{len(ours)} of this driver, {len(files) - len(ours)} of others")
    ]


def _files(context: Context) -> Iterator[Path]:
    settings = context.settings
    for folder in dict.fromkeys((Path(settings.static_cdi_dir), Path(settings.cdi_dir))):
        try:
            yield from sorted(
                path for path in folder.iterdir() if path.suffix in {".json", ".yaml"}
            )
        except FileNotFoundError:
            continue
        except OSError as error:
            raise RetryableError(f"{folder}: {error.strerror or error}") from error


def _claim_uid(path: Path) -> str | None:
    """Return the claim's UID in the name of this driver's specs; None for a spec of others."""
    if path.suffix != ".json" or not path.name.startswith(names.CDI_FILE_PREFIX):
        return None
    return path.stem.removeprefix(names.CDI_FILE_PREFIX)


def _faults_of_spec(
    context: Context, path: Path, claims: Mapping[str, str] | None
) -> Iterator[Finding]:
    """Yield what is wrong with one spec."""
    subject, uid = f"CDI spec {path}", _claim_uid(path)
    try:
        missing = _missing(context, _content(path))
    except (OSError, CdiError, InputError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        missing = []
        if uid is not None:
            yield problem(
                subject,
                reason,
                expected="a spec that runtimes load; without one, containers of its claim fail",
                remedy="restart the node plugin of this node, which rewrites its specs",
            )
        else:
            yield warning(
                subject,
                reason,
                expected="a spec that runtimes load; until then they do not know its devices",
                remedy="regenerate it with the tool that wrote it, or remove it",
            )
    if missing:
        yield warning(
            subject,
            f"names {len(missing)} host paths that do not exist: {printable.first(missing)}",
            expected="existing paths only: containers with these devices do not start",
            remedy="regenerate it, as after an update of the NVIDIA driver: NVIDIA's own with "
            "nvidia-ctk cdi generate",
        )
    if uid is not None and claims is not None and uid not in claims:
        yield warning(
            subject,
            "of a claim that has no record",
            expected="only specs of claims with a record",
            remedy="restart the node plugin of this node, which removes it",
        )


def _content(path: Path) -> Mapping[str, Any]:
    """Return the spec in a file, after a check of its form as a runtime checks it."""
    if path.stat().st_size > _MAX_BYTES:
        raise CdiError(f"over {_MAX_BYTES} bytes")
    text = path.read_text(encoding="utf-8")
    document = json.loads(text) if path.suffix == ".json" else untyped_yaml.document(text)
    if not isinstance(document, dict):
        raise CdiError("found no mapping, expected a CDI spec")
    cdi_rules.check(document)
    return document


def _missing(context: Context, document: Mapping[str, Any]) -> list[str]:
    """Return the host paths in a spec that do not exist; none in a pod, which does not see all."""
    if context.in_pod:
        return []
    named: list[object] = []
    for part in (document, *document["devices"]):
        edits = part.get("containerEdits") or {}
        named += [node.get("hostPath") or node["path"] for node in edits.get("deviceNodes") or ()]
        named += [mount["hostPath"] for mount in edits.get("mounts") or ()]
    return [path for path in dict.fromkeys(map(str, named)) if not Path(path).exists()]
