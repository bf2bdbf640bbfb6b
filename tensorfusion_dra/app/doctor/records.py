"""Check of the ledger and of the CDI specs that are derived from it."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from tensorfusion_dra.app.doctor.checks import Context
from tensorfusion_dra.core.doctor import records as rules
from tensorfusion_dra.core.doctor.finding import Finding
from tensorfusion_dra.core.doctor.records import SpecFile
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.core.kubernetes import cdi_rules
from tensorfusion_dra.core.kubernetes.cdi_rules import CdiError
from tensorfusion_dra.state import ledger_file, ledger_reading

_SUFFIXES: Final = (".json", ".yaml")
_MOST_BYTES: Final = 16 * 2**20


def records(context: Context) -> Iterator[Finding]:
    """Check that the ledger and the CDI specs can be read and agree with each other."""
    facts = ledger_reading.facts(context.settings.data_folder)
    yield from rules.ledger(facts, version=ledger_file.VERSION)
    claims = {} if not facts.exists else facts.claims
    yield from rules.specs(list(_files(context)), None if facts.damage else claims)


def _files(context: Context) -> Iterator[SpecFile]:
    settings = context.settings
    folders = [context.on_host(settings.static_cdi_dir), Path(settings.cdi_dir)]
    for folder in dict.fromkeys(folders):
        try:
            found = sorted(path for path in folder.iterdir() if path.suffix in _SUFFIXES)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise RetryableError(f"{folder}: {error.strerror or error}") from error
        for path in found:
            yield _file(context, path)


def _file(context: Context, path: Path) -> SpecFile:
    try:
        if path.stat().st_size > _MOST_BYTES:
            return SpecFile(path=str(path), trouble=f"over {_MOST_BYTES} bytes")
        text = path.read_text(encoding="utf-8")
        document = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
        if not isinstance(document, dict):
            return SpecFile(path=str(path), trouble="found no mapping, expected a CDI spec")
        cdi_rules.check(document)
    except OSError as error:
        return SpecFile(path=str(path), trouble=error.strerror or str(error))
    except (CdiError, ValueError, yaml.YAMLError, RecursionError) as error:
        return SpecFile(path=str(path), trouble=" ".join(str(error).split()))
    return SpecFile(path=str(path), missing_paths=tuple(_missing(context, document)))


def _missing(context: Context, document: Mapping[str, Any]) -> Iterator[str]:
    """Yield the host paths in a spec that do not exist; none if the host cannot be seen."""
    if not context.sees_host:
        return
    edits = [document.get("containerEdits") or {}]
    edits += [device["containerEdits"] for device in document["devices"]]
    named: dict[str, None] = {}
    for each in edits:
        for node in each.get("deviceNodes") or ():
            named[str(node.get("hostPath") or node["path"])] = None
        for mount in each.get("mounts") or ():
            named[str(mount["hostPath"])] = None
    for path in named:
        if not context.on_host(path).exists():
            yield path
