"""Stored objects as the text of answers: alone, in lists and in watch events."""

import json
from collections.abc import Iterable

from tensorfusion_dra.simulator.api import kinds
from tensorfusion_dra.simulator.api.kinds import Kind
from tensorfusion_dra.simulator.api.schema import Schema
from tensorfusion_dra.simulator.api.store import Stored

Json = dict[str, object]


def text(document: object) -> str:
    """A document as compact JSON."""
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False)


def _fields(stored: Stored, kind: Kind) -> str:
    """An object's fields as JSON without the opening brace."""
    return text(kind.outward(stored.document))[1:] if kind.renamed else stored.fields_text


def alone(stored: Stored, kind: Kind, version: str) -> str:
    """One object with its kind and apiVersion."""
    api_version = kinds.api_version(kind.group, version)
    return f'{{"kind":"{kind.kind}","apiVersion":"{api_version}",{_fields(stored, kind)}'


def listed(found: Iterable[Stored], kind: Kind, version: str, latest: int) -> str:
    """A list; its items carry neither kind nor apiVersion."""
    items = ",".join("{" + _fields(stored, kind) for stored in found)
    api_version = kinds.api_version(kind.group, version)
    return (
        f'{{"kind":"{kind.kind}List","apiVersion":"{api_version}",'
        f'"metadata":{{"resourceVersion":"{latest}"}},"items":[{items}]}}\n'
    )


def event(change: str, object_text: str) -> bytes:
    """One line of a watch."""
    return f'{{"type":"{change}","object":{object_text}}}\n'.encode()


def bookmark(schema: Schema, kind: Kind, version: str, latest: int, *, first: bool) -> bytes:
    """A line that only tells a version; the first one ends the initial events."""
    metadata: Json = {"resourceVersion": str(latest)}
    if first:
        metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
    document = {
        "kind": kind.kind,
        "apiVersion": kinds.api_version(kind.group, version),
        **kind.outward(schema.stored(kind.struct, {"metadata": metadata})),
    }
    return event("BOOKMARK", text(document))
