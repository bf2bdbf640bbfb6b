"""Rendering of stored objects as JSON: single objects, lists and watch events."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from dra_simulator.api import columns, kinds
from dra_simulator.api.failures import ApiError
from dra_simulator.api.kinds import Kind
from dra_simulator.api.media import AS_IT_IS, Form
from dra_simulator.api.schema import Schema
from dra_simulator.api.store import Stored
from dra_simulator.api.strategy import Json, part

_INITIAL_EVENTS_END: Final = "k8s.io/initial-events-end"


def text(document: object) -> str:
    """Return a document as compact JSON."""
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class View:
    """Representation of the objects in the answer to one request.

    Attributes:
        version: Version of the kind's group.
    """

    kind: Kind
    version: str
    form: Form = AS_IT_IS

    def one(self, stored: Stored) -> str:
        """Return one object with its kind and apiVersion, or converted to the form.

        Raises:
            ApiError: 406 if the form is a list.
        """
        return self._one(stored, headers=True)

    def many(self, found: Iterable[Stored], latest: int) -> str:
        """Return a list at one resourceVersion; its items have neither kind nor apiVersion.

        Raises:
            ApiError: 406 if the form is a single object.
        """
        match self.form.shape:
            case "Table":
                return self._table(list(found), str(latest), headers=True) + "\n"
            case "PartialObjectMetadata":
                raise self._unfit("a list", f"{self.kind.kind}List")
            case "PartialObjectMetadataList":
                items = [self._partial(stored) for stored in found]
                document = {**self._marks(), "metadata": {"resourceVersion": str(latest)}}
                return text({**document, "items": items}) + "\n"
        items_text = ",".join("{" + _fields(stored, self.kind) for stored in found)
        return (
            f'{{"kind":"{self.kind.kind}List","apiVersion":"{self._api_version}",'
            f'"metadata":{{"resourceVersion":"{latest}"}},"items":[{items_text}]}}\n'
        )

    def stream(self) -> Callable[[Stored], str]:
        """Return a renderer of the objects of a watch; only the first Table has its columns."""
        headers = True

        def shown(stored: Stored) -> str:
            nonlocal headers
            found = self._one(stored, headers=headers)
            headers = False
            return found

        return shown

    @property
    def _api_version(self) -> str:
        return kinds.api_version(self.kind.group, self.version)

    def _one(self, stored: Stored, *, headers: bool) -> str:
        match self.form.shape:
            case "Table":
                version = part(stored.document, "metadata").get("resourceVersion", "")
                return self._table([stored], str(version), headers=headers)
            case "PartialObjectMetadata":
                return text(self._partial(stored))
            case "PartialObjectMetadataList":
                raise self._unfit("not a list", self.kind.kind)
        kind, fields = self.kind.kind, _fields(stored, self.kind)
        return f'{{"kind":"{kind}","apiVersion":"{self._api_version}",{fields}'

    def _unfit(self, what: str, kind: str) -> ApiError:
        text = f"you requested {self.form.shape}, but the requested object is {what} ({kind})"
        return ApiError(406, "NotAcceptable", text)

    def _marks(self) -> Json:
        return {"kind": self.form.shape, "apiVersion": self.form.api_version}

    def _partial(self, stored: Stored) -> Json:
        marks = {"kind": "PartialObjectMetadata", "apiVersion": self.form.api_version}
        return {**marks, "metadata": stored.document["metadata"]}

    def _table(self, found: Sequence[Stored], version: str, *, headers: bool) -> str:
        shown = columns.of(self.kind)
        rows = []
        for stored in found:
            row: Json = {"cells": shown.cells(stored.document)}
            conditions = shown.conditions(stored.document)
            if conditions:
                row["conditions"] = conditions
            rows.append({**row, "object": self._included(stored)})
        metadata = {"resourceVersion": version} if version else {}
        definitions = [column.definition() for column in shown.columns] if headers else None
        document = {"metadata": metadata, "columnDefinitions": definitions, "rows": rows}
        return text({**self._marks(), **document})

    def _included(self, stored: Stored) -> Json | None:
        annotations = part(part(stored.document, "metadata"), "annotations")
        if self.form.included == "Object":
            whole = replace(self, form=AS_IT_IS).one(stored)
            found: Json = json.loads(whole)
            return found
        if self.form.included == "None" and _INITIAL_EVENTS_END not in annotations:
            return None
        return self._partial(stored)


def _fields(stored: Stored, kind: Kind) -> str:
    """Return an object's fields as JSON without the opening brace."""
    return text(kind.outward(stored.document))[1:] if kind.renamed else stored.fields_text


def event(change: str, object_text: str) -> bytes:
    """Return one line of a watch."""
    return f'{{"type":"{change}","object":{object_text}}}\n'.encode()


def bookmark(schema: Schema, kind: Kind, latest: int, *, first: bool) -> Stored:
    """Return the object of a bookmark, which has only a resourceVersion.

    The first bookmark ends the initial events.
    """
    metadata: Json = {"resourceVersion": str(latest)}
    if first:
        metadata["annotations"] = {_INITIAL_EVENTS_END: "true"}
    document = schema.stored(kind.struct, {"metadata": metadata})
    return Stored("", "", latest, document)
