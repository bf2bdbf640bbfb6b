"""Check of the records of claims and of the CDI specs that are derived from them."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from tensorfusion_dra.app.doctor.checks import Context
from tensorfusion_dra.core import names, printable
from tensorfusion_dra.core.doctor.finding import Finding, not_checked, note, ok, problem, warning
from tensorfusion_dra.core.errors import FatalError, RetryableError
from tensorfusion_dra.core.kubernetes import cdi_rules
from tensorfusion_dra.core.kubernetes.cdi_rules import CdiError
from tensorfusion_dra.state import claim_store

_SUFFIXES: Final = (".json", ".yaml")
_MOST_BYTES: Final = 16 * 2**20
_OTHER_RELEASE: Final = "run the release that wrote them, or drain the node and delete its folder"


def records(context: Context) -> Iterator[Finding]:
    """Check that the records of claims and the CDI specs can be read and agree with each other."""
    folder = context.settings.data_folder
    subject = f"claim records {folder / claim_store.FOLDER}"
    claims: dict[str, str] | None = None
    try:
        found = claim_store.read(folder)
    except FatalError as error:
        yield problem(subject, str(error), expected="records of this release", cure=_OTHER_RELEASE)
    except RetryableError as error:
        yield not_checked(subject, str(error), cure="run this as root on the node")
    else:
        claims = {uid: str(claim.ref) for uid, claim in found.claims.items()}
        for uid, reason in found.damaged.items():
            yield problem(
                f"record of claim {uid}",
                reason,
                expected="a readable one; until then its GPUs, or all, take no new claim",
                cure="start the node plugin, which rebuilds it from its claim; if it cannot, end "
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
    troubles = [trouble for path in files for trouble in _troubles(context, path, claims)]
    ours = {uid for path in files if (uid := _claim_uid(path)) is not None}
    missing = sorted(name for uid, name in (claims or {}).items() if uid not in ours)
    if missing:
        troubles.append(
            warning(
                "CDI specs",
                f"none for {len(missing)} prepared claims: {printable.first(missing)}",
                expected="one for each: a container of these claims that restarts gets no devices",
                cure="restart the node plugin of this node, which rewrites them",
            )
        )
    yield from troubles or [
        ok("CDI specs", f"{len(ours)} of this driver, {len(files) - len(ours)} of others")
    ]


def _files(context: Context) -> Iterator[Path]:
    settings = context.settings
    folders = [context.on_host(settings.static_cdi_dir), Path(settings.cdi_dir)]
    for folder in dict.fromkeys(folders):
        try:
            yield from sorted(path for path in folder.iterdir() if path.suffix in _SUFFIXES)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise RetryableError(f"{folder}: {error.strerror or error}") from error


def _claim_uid(path: Path) -> str | None:
    """Return the claim's UID in the name of this driver's specs; None for a spec of others."""
    if path.suffix != ".json" or not path.name.startswith(names.CDI_FILE_PREFIX):
        return None
    return path.stem.removeprefix(names.CDI_FILE_PREFIX)


def _troubles(context: Context, path: Path, claims: Mapping[str, str] | None) -> Iterator[Finding]:
    """Yield what is wrong with one spec."""
    subject, uid = f"CDI spec {path}", _claim_uid(path)
    try:
        missing = _missing(context, _content(path))
    except (OSError, CdiError, ValueError, yaml.YAMLError, RecursionError) as error:
        reason = " ".join(str(error).split())
        missing = []
        if uid is not None:
            yield problem(
                subject,
                reason,
                expected="a spec that runtimes load; without one, containers of its claim fail",
                cure="restart the node plugin of this node, which rewrites its specs",
            )
        else:
            yield warning(
                subject,
                reason,
                expected="a spec that runtimes load; until then they do not know its devices",
                cure="regenerate it with the tool that wrote it, or remove it",
            )
    if missing:
        yield warning(
            subject,
            f"names {len(missing)} host paths that do not exist: {printable.first(missing)}",
            expected="existing paths only: containers with these devices do not start",
            cure="regenerate it, as after an update of the NVIDIA driver: NVIDIA's own with "
            "nvidia-ctk cdi generate",
        )
    if uid is not None and claims is not None and uid not in claims:
        yield warning(
            subject,
            "of a claim that has no record",
            expected="only specs of claims with a record",
            cure="restart the node plugin of this node, which removes it",
        )


def _content(path: Path) -> Mapping[str, Any]:
    """Return the spec in a file, after a check of its form as a runtime checks it."""
    if path.stat().st_size > _MOST_BYTES:
        raise CdiError(f"over {_MOST_BYTES} bytes")
    text = path.read_text(encoding="utf-8")
    document = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    if not isinstance(document, dict):
        raise CdiError("found no mapping, expected a CDI spec")
    cdi_rules.check(document)
    return document


def _missing(context: Context, document: Mapping[str, Any]) -> list[str]:
    """Return the host paths in a spec that do not exist; none if the host cannot be seen."""
    if not context.sees_host:
        return []
    named: list[object] = []
    for part in (document, *document["devices"]):
        edits = part.get("containerEdits") or {}
        named += [node.get("hostPath") or node["path"] for node in edits.get("deviceNodes") or ()]
        named += [mount["hostPath"] for mount in edits.get("mounts") or ()]
    return [path for path in dict.fromkeys(map(str, named)) if not context.on_host(path).exists()]
