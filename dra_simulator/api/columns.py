"""Columns that `kubectl get` shows for each kind.

Names, types, formats and priorities are those of pkg/printers/internalversion/printers.go, release
1.36; clients show columns of priority 1 with `-o wide` only. Columns of custom resources are the
additionalPrinterColumns of their definitions.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from dra_simulator.api import pod_columns
from dra_simulator.api.ages import age
from dra_simulator.api.kinds import ADMISSION_GROUP, RESOURCE_GROUP, Kind
from dra_simulator.api.pod_columns import NONE
from dra_simulator.api.schema import elements
from dra_simulator.api.strategy import Json, part
from dra_simulator.api.webhook_matching import MUTATING, VALIDATING
from tensorfusion_dra.core.names import TENSOR_FUSION_GROUP

_ROLE_PREFIX: Final = "node-role.kubernetes.io/"
_ROLE_LABEL: Final = "kubernetes.io/role"


@dataclass(frozen=True, slots=True)
class Column:
    """One column, with the fields of a TableColumnDefinition of meta.k8s.io/v1."""

    name: str
    description: str
    priority: int = 0
    type: str = "string"
    format: str = ""

    def definition(self) -> Json:
        """Return the TableColumnDefinition."""
        found = asdict(self)
        order = ("name", "type", "format", "description", "priority")
        return {name: found[name] for name in order}


def _no_conditions(_: Json) -> list[Json]:
    return []


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a kind.

    Attributes:
        cells: Returns the cells of an object's row, one for each column.
        conditions: Returns the conditions of an object's row.
    """

    columns: tuple[Column, ...]
    cells: Callable[[Json], Sequence[object]]
    conditions: Callable[[Json], list[Json]] = _no_conditions


_NAME: Final = Column("Name", "Name of the object", format="name")
_AGE: Final = Column("Age", "Time since the object was created")


def _name(document: Json) -> object:
    return part(document, "metadata").get("name", "")


def _age(document: Json) -> str:
    return age(part(document, "metadata").get("creationTimestamp"))


_NAMED: Final = Columns((_NAME, _AGE), lambda found: [_name(found), _age(found)])

_POD: Final = Columns(
    (
        _NAME,
        Column("Ready", "Containers that are ready, of all containers"),
        Column("Status", "State of the containers in one word"),
        Column("Restarts", "How often containers were restarted, and when last"),
        _AGE,
        Column("IP", "Address of the pod", 1),
        Column("Node", "Node that the pod is bound to", 1),
        Column("Nominated Node", "Node that pods are evicted from for this one", 1),
        Column("Readiness Gates", "Readiness gates that are true, of all", 1),
    ),
    pod_columns.cells,
    pod_columns.conditions,
)


def _node_cells(node: Json) -> list[object]:
    status = part(node, "status")
    system = part(status, "nodeInfo")
    architecture = system.get("architecture")
    kernel = str(system.get("kernelVersion") or "<unknown>")
    return [
        _name(node),
        ",".join(_node_states(node)),
        ",".join(sorted(set(_roles(part(part(node, "metadata"), "labels"))))) or NONE,
        _age(node),
        system.get("kubeletVersion", ""),
        _address(status, "InternalIP"),
        _address(status, "ExternalIP"),
        system.get("osImage") or "<unknown>",
        f"{kernel} ({architecture})" if architecture else kernel,
        system.get("containerRuntimeVersion") or "<unknown>",
    ]


def _node_states(node: Json) -> Iterator[str]:
    ready = [
        found.get("status") == "True"
        for found in elements(part(node, "status").get("conditions"))
        if found.get("type") == "Ready"
    ]
    yield ("Ready" if ready[-1] else "NotReady") if ready else "Unknown"
    if part(node, "spec").get("unschedulable"):
        yield "SchedulingDisabled"


def _roles(labels: Mapping[str, object]) -> Iterator[str]:
    for name, value in labels.items():
        if name.startswith(_ROLE_PREFIX) and name != _ROLE_PREFIX:
            yield name.removeprefix(_ROLE_PREFIX)
        elif name == _ROLE_LABEL and value:
            yield str(value)


def _address(status: Json, kind: str) -> object:
    addresses = elements(status.get("addresses"))
    return next((found.get("address") for found in addresses if found.get("type") == kind), NONE)


_NODE: Final = Columns(
    (
        _NAME,
        Column("Status", "Whether the node is ready and takes pods"),
        Column("Roles", "Roles from the node's labels"),
        _AGE,
        Column("Version", "Version of the kubelet"),
        Column("Internal-IP", "First address of type InternalIP", 1),
        Column("External-IP", "First address of type ExternalIP", 1),
        Column("OS-Image", "Operating system as the node reports it", 1),
        Column("Kernel-Version", "Kernel and architecture of the node", 1),
        Column("Container-Runtime", "Container runtime and its version", 1),
    ),
    _node_cells,
)


def _event_cells(event: Json) -> list[object]:
    about, source = part(event, "involvedObject"), part(event, "source")
    series = event.get("series")
    first = age(event.get("firstTimestamp") or event.get("eventTime"))
    last = age(event["lastTimestamp"]) if event.get("lastTimestamp") else first
    count = event.get("count") or 1
    if isinstance(series, dict):
        last, count = age(series.get("lastObservedTime")), series.get("count", 0)
    kind = str(about.get("kind", "")).lower()
    reporter = source.get("component") or event.get("reportingComponent") or ""
    instance = source.get("host") or event.get("reportingInstance")
    return [
        last,
        event.get("type", ""),
        event.get("reason", ""),
        f"{kind}/{about['name']}" if about.get("name") else kind,
        about.get("fieldPath", ""),
        f"{reporter}, {instance}" if instance else reporter,
        str(event.get("message", "")).strip(),
        first,
        count,
        _name(event),
    ]


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


def _claim_state(claim: Json) -> str:
    status, is_deleted = part(claim, "status"), "deletionTimestamp" in part(claim, "metadata")
    states = ["deleted"] if is_deleted else []
    if status.get("allocation") is None:
        states += [] if is_deleted else ["pending"]
    else:
        states += ["allocated", *(["reserved"] if status.get("reservedFor") else [])]
    return ",".join(states)


_CLAIM: Final = Columns(
    (_NAME, Column("State", "Whether the claim is pending, allocated, reserved or deleted"), _AGE),
    lambda found: [_name(found), _claim_state(found), _age(found)],
)


def _slice_cells(found: Json) -> list[object]:
    spec = part(found, "spec")
    pool = part(spec, "pool").get("name", "")
    return [_name(found), spec.get("nodeName", ""), spec.get("driver", ""), pool, _age(found)]


_SLICE: Final = Columns(
    (
        _NAME,
        Column("Node", "Node that has the devices; empty for devices of several nodes"),
        Column("Driver", "Driver that published the slice"),
        Column("Pool", "Pool that the devices belong to"),
        _AGE,
    ),
    _slice_cells,
)
_NAMESPACE: Final = Columns(
    (_NAME, Column("Status", "Active or Terminating"), _AGE),
    lambda found: [_name(found), part(found, "status").get("phase", ""), _age(found)],
)
_WEBHOOKS: Final = Columns(
    (_NAME, Column("Webhooks", "Number of webhooks of the configuration", type="integer"), _AGE),
    lambda found: [_name(found), len(list(elements(found.get("webhooks")))), _age(found)],
)


def _path_description(path: str) -> str:
    return f"Custom resource definition column (in JSONPath format): {path}"


def _gpupool_cells(pool: Json) -> list[object]:
    spec = part(pool, "spec")
    oversubscription = part(part(spec, "capacityConfig"), "oversubscription")
    ratio = oversubscription.get("tflopsOversellRatio")
    return [
        _name(pool),
        part(spec, "qosConfig").get("defaultQoS"),
        ratio if isinstance(ratio, int) else None,
        _age(pool),
    ]


_GPUPOOL: Final = Columns(
    (
        _NAME,
        Column("QoS", _path_description(".spec.qosConfig.defaultQoS")),
        Column(
            "TFLOPS percent",
            _path_description(".spec.capacityConfig.oversubscription.tflopsOversellRatio"),
            type="integer",
        ),
        Column("Age", _path_description(".metadata.creationTimestamp"), type="date"),
    ),
    _gpupool_cells,
)
# Columns of a CustomResourceDefinition that defines none.
_CUSTOM: Final = Columns(
    (_NAME, Column("Age", _AGE.description, type="date")), lambda found: [_name(found), _age(found)]
)

_COLUMNS: Final[Mapping[tuple[str, str], Columns]] = {
    ("", "namespaces"): _NAMESPACE,
    ("", "nodes"): _NODE,
    ("", "pods"): _POD,
    ("", "events"): _EVENT,
    ("events.k8s.io", "events"): _EVENT,
    (RESOURCE_GROUP, "deviceclasses"): _NAMED,
    (RESOURCE_GROUP, "resourceclaims"): _CLAIM,
    (RESOURCE_GROUP, "resourceclaimtemplates"): _NAMED,
    (RESOURCE_GROUP, "resourceslices"): _SLICE,
    (ADMISSION_GROUP, MUTATING): _WEBHOOKS,
    (ADMISSION_GROUP, VALIDATING): _WEBHOOKS,
    (TENSOR_FUSION_GROUP, "gpupools"): _GPUPOOL,
    (TENSOR_FUSION_GROUP, "schedulingconfigtemplates"): _CUSTOM,
}


def of(kind: Kind) -> Columns:
    """Return the columns of a kind."""
    return _COLUMNS[kind.group, kind.plural]
