"""Answers: stored objects as JSON, in lists and Tables, and the lines of a watch.

Tables of meta.k8s.io/v1 are what `kubectl get` shows. Names, types, formats and priorities of
columns are those of pkg/printers/internalversion of release 1.37; clients show columns of priority
1 with `-o wide` only. Columns of custom resources are the additionalPrinterColumns of their
definitions. Of a pod's containers only those are looked at that a simulated kubelet reports: no
restarts, no sidecars.
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import Final

from dra_simulator.api import kinds
from dra_simulator.api.failures import ApiError
from dra_simulator.api.kinds import ADMISSION_GROUP, MUTATING, RESOURCE_GROUP, VALIDATING, Kind
from dra_simulator.api.requests import Request
from dra_simulator.api.schema import Json, Schema, elements, part
from dra_simulator.api.store import Event, Store, Stored
from tensorfusion_dra.core.names import TENSOR_FUSION_GROUP

_NONE: Final = "<none>"
_COMPLETED: Final = {
    "Succeeded": "The pod has completed successfully.",
    "Failed": "The pod failed.",
}
_ROLE_PREFIX: Final = "node-role.kubernetes.io/"

_MINUTE: Final = 60
_HOUR: Final = 60 * _MINUTE
_DAY: Final = 24 * _HOUR
_AGES: Final = (
    (2 * _MINUTE, 1, "s"),
    (3 * _HOUR, _MINUTE, "m"),
    (2 * _DAY, _HOUR, "h"),
)
"""Upper bound of a duration in seconds, its unit in seconds, and the unit's letter."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column, with the fields of a TableColumnDefinition."""

    name: str
    description: str
    priority: int = 0
    type: str = "string"
    format: str = ""


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a kind.

    Attributes:
        cells: Returns the cells of an object's row, one for each column.
    """

    columns: tuple[Column, ...]
    cells: Callable[[Json], Sequence[object]]

    def row(self, document: Json) -> Json:
        """Return an object's row; clients use its conditions to hide completed pods."""
        cells: Json = {"cells": self.cells(document)}
        phase = str(part(document, "status").get("phase", ""))
        if phase not in _COMPLETED:
            return cells
        text = _COMPLETED[phase]
        condition = {"type": "Completed", "status": "True", "reason": phase, "message": text}
        return {**cells, "conditions": [condition]}


def age(timestamp: object) -> str:
    """Return the time since a timestamp of the API; ``<unknown>`` if there is none."""
    if not isinstance(timestamp, str) or not timestamp:
        return "<unknown>"
    return human(datetime.now(UTC) - datetime.fromisoformat(timestamp))


def human(passed: timedelta) -> str:
    """Return a duration in its largest fitting unit, such as ``119s`` or ``5m``."""
    seconds = max(0, int(passed.total_seconds()))
    found = (each for each in _AGES if seconds < each[0])
    _, unit, letter = next(found, (None, _DAY, "d"))
    return f"{seconds // unit}{letter}"


def _name(document: Json) -> object:
    return part(document, "metadata").get("name", "")


def _age(document: Json) -> str:
    return age(part(document, "metadata").get("creationTimestamp"))


def _pod_cells(pod: Json) -> list[object]:
    spec, status = part(pod, "spec"), part(pod, "status")
    statuses = list(elements(status.get("containerStatuses")))
    ready = sum(1 for found in statuses if found.get("ready"))
    addresses = elements(status.get("podIPs"))
    return [
        _name(pod),
        f"{ready}/{len(list(elements(spec.get('containers'))))}",
        _pod_state(pod, statuses),
        str(sum(int(str(found.get("restartCount", 0))) for found in statuses)),
        _age(pod),
        next((address.get("ip") for address in addresses), _NONE),
        spec.get("nodeName") or _NONE,
        status.get("nominatedNodeName") or _NONE,
        _NONE,
    ]


def _pod_state(pod: Json, statuses: Sequence[Json]) -> str:
    status = part(pod, "status")
    if "deletionTimestamp" in part(pod, "metadata") and status.get("phase") not in _COMPLETED:
        return "Terminating"
    for found in statuses:
        state = part(found, "state")
        ended = part(state, "terminated")
        reason = part(state, "waiting").get("reason") or ended.get("reason")
        if reason or ended:
            return str(reason or f"ExitCode:{ended.get('exitCode', 0)}")
    for found in elements(status.get("conditions")):
        if found.get("type") == "PodScheduled" and found.get("reason") == "SchedulingGated":
            return "SchedulingGated"
    return str(status.get("reason") or status.get("phase", ""))


def _node_cells(node: Json) -> list[object]:
    status = part(node, "status")
    system, labels = part(status, "nodeInfo"), part(part(node, "metadata"), "labels")
    roles = [name.removeprefix(_ROLE_PREFIX) for name in labels if name.startswith(_ROLE_PREFIX)]
    addresses = {
        found.get("type"): found.get("address") for found in elements(status.get("addresses"))
    }
    return [
        _name(node),
        ",".join(_node_states(node)),
        ",".join(sorted(roles)) or _NONE,
        _age(node),
        system.get("kubeletVersion", ""),
        addresses.get("InternalIP", _NONE),
        addresses.get("ExternalIP", _NONE),
        system.get("osImage") or "<unknown>",
        system.get("kernelVersion") or "<unknown>",
        system.get("containerRuntimeVersion") or "<unknown>",
    ]


def _node_states(node: Json) -> Iterator[str]:
    conditions = elements(part(node, "status").get("conditions"))
    ready = {found.get("type"): found.get("status") == "True" for found in conditions}
    yield "Unknown" if "Ready" not in ready else "Ready" if ready["Ready"] else "NotReady"
    if part(node, "spec").get("unschedulable"):
        yield "SchedulingDisabled"


def _event_cells(event: Json) -> list[object]:
    about, source = part(event, "involvedObject"), part(event, "source")
    series = part(event, "series")
    first = event.get("firstTimestamp") or event.get("eventTime")
    kind = str(about.get("kind", "")).lower()
    reporter = source.get("component") or event.get("reportingComponent") or ""
    instance = source.get("host") or event.get("reportingInstance")
    return [
        age(series.get("lastObservedTime") or event.get("lastTimestamp") or first),
        event.get("type", ""),
        event.get("reason", ""),
        f"{kind}/{about['name']}" if about.get("name") else kind,
        about.get("fieldPath", ""),
        f"{reporter}, {instance}" if instance else reporter,
        str(event.get("message", "")).strip(),
        age(first),
        series.get("count") or event.get("count") or 1,
        _name(event),
    ]


def _claim_state(claim: Json) -> str:
    status, is_deleted = part(claim, "status"), "deletionTimestamp" in part(claim, "metadata")
    states = ["deleted"] if is_deleted else []
    if status.get("allocation") is None:
        states += [] if is_deleted else ["pending"]
    else:
        states += ["allocated", *(["reserved"] if status.get("reservedFor") else [])]
    return ",".join(states)


def _slice_cells(found: Json) -> list[object]:
    spec = part(found, "spec")
    pool = part(spec, "pool").get("name", "")
    return [_name(found), spec.get("nodeName", ""), spec.get("driver", ""), pool, _age(found)]


def _path_description(path: str) -> str:
    return f"Custom resource definition column (in JSONPath format): {path}"


_NAME: Final = Column("Name", "Name of the object", format="name")
_AGE: Final = Column("Age", "Time since the object was created")
_CUSTOM_AGE: Final = Column("Age", _path_description(".metadata.creationTimestamp"), type="date")


def _printed(*columns: tuple[str, str, str]) -> Columns:
    """Return the columns of a CustomResourceDefinition: name, type and path of each."""

    def cells(found: Json) -> list[object]:
        values = []
        for _, _, path in columns:
            *folders, name = path.split(".")[1:]
            values.append(reduce(part, folders, found).get(name))
        return [_name(found), *values, _age(found)]

    shown = (Column(name, _path_description(path), type=kind) for name, kind, path in columns)
    return Columns((_NAME, *shown, _CUSTOM_AGE), cells)


_NAMED: Final = Columns((_NAME, _AGE), lambda found: [_name(found), _age(found)])
_EVENT: Final = Columns(
    (
        Column("Last Seen", "Time since the event happened last"),
        Column("Type", "Normal or Warning"),
        Column("Reason", "Why the event was written, in one word"),
        Column("Object", "Kind and name of what the event is about"),
        Column("Subobject", "Part of the object that the event is about", 1),
        Column("Source", "Component that wrote the event, and its host", 1),
        Column("Message", "What happened"),
        Column("First Seen", "Time since the event happened first", 1),
        Column("Count", "How often the event happened", 1),
        Column("Name", "Name of the event", 1, format="name"),
    ),
    _event_cells,
)
_WEBHOOKS: Final = Columns(
    (_NAME, Column("Webhooks", "Number of webhooks of the configuration", type="integer"), _AGE),
    lambda found: [_name(found), len(list(elements(found.get("webhooks")))), _age(found)],
)
_COLUMNS: Final[Mapping[tuple[str, str], Columns]] = {
    ("", "namespaces"): Columns(
        (_NAME, Column("Status", "Active or Terminating"), _AGE),
        lambda found: [_name(found), part(found, "status").get("phase", ""), _age(found)],
    ),
    ("", "nodes"): Columns(
        (
            _NAME,
            Column("Status", "Whether the node is ready and takes pods"),
            Column("Roles", "Roles from the node's labels"),
            _AGE,
            Column("Version", "Version of the kubelet"),
            Column("Internal-IP", "Address of type InternalIP", 1),
            Column("External-IP", "Address of type ExternalIP", 1),
            Column("OS-Image", "Operating system as the node reports it", 1),
            Column("Kernel-Version", "Kernel of the node", 1),
            Column("Container-Runtime", "Container runtime and its version", 1),
        ),
        _node_cells,
    ),
    ("", "pods"): Columns(
        (
            _NAME,
            Column("Ready", "Containers that are ready, of all containers"),
            Column("Status", "State of the containers in one word"),
            Column("Restarts", "How often containers were restarted"),
            _AGE,
            Column("IP", "Address of the pod", 1),
            Column("Node", "Node that the pod is bound to", 1),
            Column("Nominated Node", "Node that pods are evicted from for this one", 1),
            Column("Readiness Gates", "Readiness gates, which the simulated kubelet has not", 1),
        ),
        _pod_cells,
    ),
    ("", "events"): _EVENT,
    ("events.k8s.io", "events"): _EVENT,
    (RESOURCE_GROUP, "deviceclasses"): _NAMED,
    (RESOURCE_GROUP, "devicetaintrules"): _NAMED,
    (RESOURCE_GROUP, "resourceclaims"): Columns(
        (
            _NAME,
            Column("State", "Whether the claim is pending, allocated, reserved or deleted"),
            _AGE,
        ),
        lambda found: [_name(found), _claim_state(found), _age(found)],
    ),
    (RESOURCE_GROUP, "resourceclaimtemplates"): _NAMED,
    (RESOURCE_GROUP, "resourceslices"): Columns(
        (
            _NAME,
            Column("Node", "Node that has the devices; empty for devices of several nodes"),
            Column("Driver", "Driver that published the slice"),
            Column("Pool", "Pool that the devices belong to"),
            _AGE,
        ),
        _slice_cells,
    ),
    (ADMISSION_GROUP, MUTATING): _WEBHOOKS,
    (ADMISSION_GROUP, VALIDATING): _WEBHOOKS,
    (TENSOR_FUSION_GROUP, "gpupools"): _printed(
        ("QoS", "string", ".spec.qosConfig.defaultQoS"),
        ("TFLOPS percent", "integer", ".spec.capacityConfig.oversubscription.tflopsOversellRatio"),
        ("Isolation", "string", ".spec.nodeManagerConfig.defaultIsolationMode"),
        ("DRA", "boolean", ".spec.draConfig.enable"),
    ),
    (TENSOR_FUSION_GROUP, "schedulingconfigtemplates"): _printed(),
    (TENSOR_FUSION_GROUP, "gpuresourcequotas"): _printed(
        ("Max TFLOPS", "string", ".spec.total.requests.tflops"),
        ("Max VRAM", "string", ".spec.total.requests.vram"),
        ("Max VRAM limit", "string", ".spec.total.limits.vram"),
        ("Max claims", "integer", ".spec.total.maxWorkers"),
    ),
}


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

    def one(self, stored: Stored) -> str:
        """Return one object with its kind and apiVersion, or as a Table."""
        if self.table:
            version = part(stored.document, "metadata").get("resourceVersion", "")
            return self._table([stored], str(version))
        return self._object(stored)

    def many(self, found: Iterable[Stored], latest: int) -> str:
        """Return a list at one resourceVersion; its items have neither kind nor apiVersion."""
        if self.table:
            return self._table(list(found), str(latest)) + "\n"
        items_text = ",".join("{" + _fields(stored, self.kind) for stored in found)
        return (
            f'{{"kind":"{self.kind.kind}List","apiVersion":"{self._api_version}",'
            f'"metadata":{{"resourceVersion":"{latest}"}},"items":[{items_text}]}}\n'
        )

    @property
    def _api_version(self) -> str:
        return kinds.api_version(self.kind.group, self.version)

    def _object(self, stored: Stored) -> str:
        fields = _fields(stored, self.kind)
        return f'{{"kind":"{self.kind.kind}","apiVersion":"{self._api_version}",{fields}'

    def _table(self, found: Sequence[Stored], version: str) -> str:
        shown = _COLUMNS[self.kind.group, self.kind.plural]
        return text(
            {
                "kind": "Table",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": {"resourceVersion": version} if version else {},
                "columnDefinitions": [asdict(column) for column in shown.columns],
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
    chooses: Callable[[Json], bool]
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
        kind = self.view.kind
        cursor = self.since
        if cursor is None:
            found, cursor = self.store.listed(kind.storage, self.namespace or None)
            for stored in found:
                if self.chooses(stored.document):
                    yield _event("ADDED", self.view.one(stored))
            if self.bookmarks:
                yield self._bookmark(cursor, first=True)
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
                yield from self._line(event)
            if not events:
                yield b""
            cursor = max(cursor, latest)
            now = time.monotonic()
            over = now >= ends
            if now >= next_bookmark or over:
                next_bookmark = now + self.bookmark_seconds
                if self.bookmarks:
                    yield self._bookmark(cursor, first=False)
            if over:
                return

    def error_line(self, error: ApiError) -> bytes:
        """Return the event that ends a watch with an error."""
        return _event("ERROR", text(error.status()))

    def _bookmark(self, latest: int, *, first: bool) -> bytes:
        """Return a bookmark, whose object has only a resourceVersion; the first one is marked."""
        metadata: Json = {"resourceVersion": str(latest)}
        if first:
            metadata["annotations"] = {_INITIAL_EVENTS_END: "true"}
        document = self.schema.stored(self.view.kind.struct, {"metadata": metadata})
        return _event("BOOKMARK", self.view.one(Stored("", "", latest, document)))

    def _line(self, event: Event) -> Iterator[bytes]:
        """Yield the event as the selector sees it: an object that no longer matches is DELETED."""
        if self.namespace and event.stored.namespace != self.namespace:
            return
        is_chosen = event.change != "DELETED" and self.chooses(event.stored.document)
        was_chosen = event.before is not None and self.chooses(event.before.document)
        if not is_chosen and not was_chosen:
            return
        shown = event.stored
        if is_chosen:
            change = "MODIFIED" if was_chosen else "ADDED"
        else:
            change = "DELETED"
            if event.change != "DELETED" and event.before is not None:
                shown = event.before.at_version(event.version)
        yield _event(change, self.view.one(shown))
