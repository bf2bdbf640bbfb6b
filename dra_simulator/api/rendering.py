"""Rendering of stored objects as JSON: single objects, lists, watch events and Tables."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from dra_simulator.api import kinds, tables
from dra_simulator.api.failures import ApiError
from dra_simulator.api.kinds import Kind
from dra_simulator.api.requests import Request
from dra_simulator.api.schema import Schema, part
from dra_simulator.api.store import Stored

Json = dict[str, object]

_INITIAL_EVENTS_END: Final = "k8s.io/initial-events-end"
_JSON: Final = {"application/json", "application/*", "*/*"}


def text(document: object) -> str:
    """Return a document as compact JSON."""
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False)


def wants_table(request: Request) -> bool:
    """Return True if the client's first acceptable form is a Table, which kubectl get requests.

    Raises:
        ApiError: 406 if it accepts neither JSON nor a Table of meta.k8s.io/v1.
    """
    for clause in filter(None, request.headers.get("accept", "").split(",")):
        media_type, *parameters = (piece.strip() for piece in clause.split(";"))
        if media_type not in _JSON:
            continue
        shape = {name for name in parameters if name.startswith(("as=", "g=", "v="))}
        if not shape:
            return False
        if shape == {"as=Table", "g=meta.k8s.io", "v=v1"}:
            return True
    if not request.headers.get("accept"):
        return False
    message = "only the following media types are accepted: application/json"
    raise ApiError(406, "NotAcceptable", message)


@dataclass(frozen=True, slots=True)
class View:
    """Representation of the objects in the answer to one request.

    Attributes:
        version: Version of the kind's group.
        table: Show them as the rows of a Table.
        whole: Each row of a Table includes its whole object instead of its metadata.
    """

    kind: Kind
    version: str
    table: bool = False
    whole: bool = False

    def one(self, stored: Stored, *, headers: bool = True) -> str:
        """Return one object with its kind and apiVersion, or as a Table.

        Args:
            headers: Whether a Table has its columns.
        """
        if self.table:
            version = part(stored.document, "metadata").get("resourceVersion", "")
            return self._table([stored], str(version), headers=headers)
        return self._object(stored)

    def many(self, found: Iterable[Stored], latest: int) -> str:
        """Return a list at one resourceVersion; its items have neither kind nor apiVersion."""
        if self.table:
            return self._table(list(found), str(latest), headers=True) + "\n"
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
            found = self.one(stored, headers=headers)
            headers = False
            return found

        return shown

    @property
    def _api_version(self) -> str:
        return kinds.api_version(self.kind.group, self.version)

    def _object(self, stored: Stored) -> str:
        fields = _fields(stored, self.kind)
        return f'{{"kind":"{self.kind.kind}","apiVersion":"{self._api_version}",{fields}'

    def _table(self, found: Sequence[Stored], version: str, *, headers: bool) -> str:
        shown = tables.of(self.kind)
        return text(
            {
                "kind": "Table",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": {"resourceVersion": version} if version else {},
                "columnDefinitions": shown.definitions() if headers else None,
                "rows": [
                    {**shown.row(stored.document), "object": self._included(stored)}
                    for stored in found
                ],
            }
        )

    def _included(self, stored: Stored) -> Json:
        if self.whole:
            found: Json = json.loads(self._object(stored))
            return found
        marks = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1"}
        return {**marks, "metadata": stored.document["metadata"]}


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
