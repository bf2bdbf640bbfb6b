"""Answers: stored objects as JSON, in lists and Tables, and the lines of a watch."""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from dra_simulator.api import kinds, tables
from dra_simulator.api.failures import ApiError
from dra_simulator.api.kinds import Kind
from dra_simulator.api.requests import Request
from dra_simulator.api.schema import Schema, part
from dra_simulator.api.selectors import Selector
from dra_simulator.api.store import Event, Store, Stored

Json = dict[str, object]

_IDLE_SECONDS: Final = 0.5
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


def _event(change: str, object_text: str) -> bytes:
    """Return one line of a watch."""
    return f'{{"type":"{change}","object":{object_text}}}\n'.encode()


def _bookmark_object(schema: Schema, kind: Kind, latest: int, *, first: bool) -> Stored:
    """Return the object of a bookmark, which has only a resourceVersion.

    The first bookmark ends the initial events.
    """
    metadata: Json = {"resourceVersion": str(latest)}
    if first:
        metadata["annotations"] = {_INITIAL_EVENTS_END: "true"}
    document = schema.stored(kind.struct, {"metadata": metadata})
    return Stored("", "", latest, document)


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """One watch request.

    Attributes:
        namespace: "" for all namespaces.
        since: resourceVersion to continue from; None to begin with the existing objects.
        seconds: Time after which the server ends the watch.
        bookmarks: The client wants BOOKMARK events.
        bookmark_seconds: Interval of bookmarks; the API server sends one a minute.
    """

    store: Store
    schema: Schema
    view: View
    namespace: str
    selector: Selector
    since: int | None
    seconds: float
    bookmarks: bool
    bookmark_seconds: float

    def lines(self) -> Iterator[bytes]:
        """Yield the events as they happen, until the time is over or the store is closed.

        An empty line means that nothing happened for a while, so that the caller can check if the
        client is still connected.
        """
        ends = time.monotonic() + self.seconds
        kind, show = self.view.kind, self.view.stream()
        cursor = self.since
        if cursor is None:
            found, cursor = self.store.listed(kind.storage, self.namespace or None)
            for stored in found:
                if self.selector.chooses(stored.document):
                    yield _event("ADDED", show(stored))
            if self.bookmarks:
                yield self._bookmark(cursor, show, first=True)
        next_bookmark = time.monotonic() + self.bookmark_seconds

        while not self.store.closed:
            wait = min(ends, next_bookmark) - time.monotonic()
            try:
                events, latest = self.store.events_after(
                    kind.storage, cursor, wait_seconds=min(wait, _IDLE_SECONDS)
                )
            except ApiError as error:
                yield self.error_line(error)
                return
            for event in events:
                yield from self._line(event, show)
            if not events:
                yield b""
            cursor = max(cursor, latest)
            now = time.monotonic()
            over = now >= ends
            if now >= next_bookmark or over:
                next_bookmark = now + self.bookmark_seconds
                if self.bookmarks:
                    yield self._bookmark(cursor, show, first=False)
            if over:
                return

    def error_line(self, error: ApiError) -> bytes:
        """Return the event that ends a watch with an error."""
        return _event("ERROR", text(error.status()))

    def _bookmark(self, latest: int, show: Callable[[Stored], str], *, first: bool) -> bytes:
        stored = _bookmark_object(self.schema, self.view.kind, latest, first=first)
        return _event("BOOKMARK", show(stored))

    def _line(self, event: Event, show: Callable[[Stored], str]) -> Iterator[bytes]:
        """Yield the event as the selector sees it: an object that no longer matches is DELETED."""
        if self.namespace and event.stored.namespace != self.namespace:
            return
        is_chosen = event.change != "DELETED" and self.selector.chooses(event.stored.document)
        was_chosen = event.before is not None and self.selector.chooses(event.before.document)
        if not is_chosen and not was_chosen:
            return
        shown = event.stored
        if is_chosen:
            change = "MODIFIED" if was_chosen else "ADDED"
        else:
            change = "DELETED"
            if event.change != "DELETED" and event.before is not None:
                shown = event.before.at_version(event.version)
        yield _event(change, show(shown))
