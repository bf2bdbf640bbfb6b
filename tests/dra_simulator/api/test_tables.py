"""Tables, which `kubectl get` shows: the columns of a real 1.36 server, and the cells of rows."""

from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from dra_simulator.api import rendering
from dra_simulator.api.kinds import KINDS, Kind
from tests.dra_simulator.api.client import (
    CLAIMS,
    CLASSES,
    EVENTS,
    EVENTS_V1,
    GPUPOOLS,
    MERGE,
    NODES,
    PODS,
    SLICES,
    TABLE,
    Client,
    Json,
    served,
    with_metadata,
)
from tests.support.builders.documents import (
    allocation_document,
    claim_document,
    class_document,
    event_document,
    pod_with_claim,
    slice_document,
)

CRDS: Final = Path(__file__).parents[3] / "daemonset" / "chart" / "tensor-fusion-crds"

NAME: Final = ("Name", "string", "name", 0)
AGE: Final = ("Age", "string", "", 0)
EVENT: Final = [
    ("Last Seen", "string", "", 0),
    ("Type", "string", "", 0),
    ("Reason", "string", "", 0),
    ("Object", "string", "", 0),
    ("Subobject", "string", "", 1),
    ("Source", "string", "", 1),
    ("Message", "string", "", 0),
    ("First Seen", "string", "", 1),
    ("Count", "string", "", 1),
    ("Name", "string", "name", 1),
]
WEBHOOKS: Final = [NAME, ("Webhooks", "integer", "", 0), AGE]
REAL: Final = {
    "/namespaces": [NAME, ("Status", "string", "", 0), AGE],
    "/nodes": [
        NAME,
        ("Status", "string", "", 0),
        ("Roles", "string", "", 0),
        AGE,
        ("Version", "string", "", 0),
        ("Internal-IP", "string", "", 1),
        ("External-IP", "string", "", 1),
        ("OS-Image", "string", "", 1),
        ("Kernel-Version", "string", "", 1),
        ("Container-Runtime", "string", "", 1),
    ],
    "/pods": [
        NAME,
        ("Ready", "string", "", 0),
        ("Status", "string", "", 0),
        ("Restarts", "string", "", 0),
        AGE,
        ("IP", "string", "", 1),
        ("Node", "string", "", 1),
        ("Nominated Node", "string", "", 1),
        ("Readiness Gates", "string", "", 1),
    ],
    "/events": EVENT,
    "events.k8s.io/events": EVENT,
    "resource.k8s.io/deviceclasses": [NAME, AGE],
    "resource.k8s.io/devicetaintrules": [NAME, AGE],
    "resource.k8s.io/resourceclaims": [NAME, ("State", "string", "", 0), AGE],
    "resource.k8s.io/resourceclaimtemplates": [NAME, AGE],
    "resource.k8s.io/resourceslices": [
        NAME,
        ("Node", "string", "", 0),
        ("Driver", "string", "", 0),
        ("Pool", "string", "", 0),
        AGE,
    ],
    "admissionregistration.k8s.io/mutatingwebhookconfigurations": WEBHOOKS,
    "admissionregistration.k8s.io/validatingwebhookconfigurations": WEBHOOKS,
}
"""Name, type, format and priority of each column, as a real server answers."""


def path_of(kind: Kind) -> str:
    return f"/apis/{kind.group}/v1/{kind.plural}" if kind.group else f"/api/v1/{kind.plural}"


def columns_of(table: Json) -> list[tuple[str, str, str, int]]:
    names = ("name", "type", "format", "priority")
    return [tuple(column[name] for name in names) for column in table["columnDefinitions"]]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind.group}/{kind.plural}")
def test_every_kind_has_the_columns_of_a_real_server(empty: Client, kind: Kind) -> None:
    table = empty.get(path_of(kind), TABLE).json

    assert (table["kind"], table["apiVersion"]) == ("Table", "meta.k8s.io/v1")
    expected = custom_columns(kind) if kind.is_custom else REAL[f"{kind.group}/{kind.plural}"]
    assert columns_of(table) == expected
    assert all(column["description"] for column in table["columnDefinitions"])


def custom_columns(kind: Kind) -> list[tuple[str, str, str, int]]:
    """Return the columns that a real server derives from a definition's printer columns."""
    definition = yaml.safe_load((CRDS / f"{kind.plural}.yaml").read_text(encoding="utf-8"))
    (version,) = definition["spec"]["versions"]
    age = {"name": "Age", "type": "date"}
    found = version.get("additionalPrinterColumns", [age])
    return [NAME, *((column["name"], column["type"], "", 0) for column in found)]


@pytest.mark.parametrize("included", ["", "Metadata", "Object"])
def test_a_row_includes_the_requested_part_of_its_object(api: Client, included: str) -> None:
    made = api.post(CLASSES, class_document()).json
    partial = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1"}

    table = api.get(f"{CLASSES}?includeObject={included}", TABLE).json

    whole = included == "Object"
    expected = made if whole else {**partial, "metadata": made["metadata"]}
    assert [found["object"] for found in table["rows"]] == [expected]
    assert table["metadata"]["resourceVersion"] >= made["metadata"]["resourceVersion"]


def test_a_single_object_is_a_table_with_one_row(api: Client) -> None:
    made = api.post(CLASSES, class_document()).json

    table = api.get(f"{CLASSES}/tensor-fusion.ai", TABLE).json

    assert [found["cells"][0] for found in table["rows"]] == ["tensor-fusion.ai"]
    assert table["metadata"] == {"resourceVersion": made["metadata"]["resourceVersion"]}
    assert api.get(f"{CLASSES}/other", TABLE).json["kind"] == "Status"


@pytest.mark.parametrize(
    ("accept", "code", "kind"),
    [
        ("", 200, "DeviceClassList"),
        ("*/*", 200, "DeviceClassList"),
        ("application/json;as=Table;v=v1;g=meta.k8s.io,application/json", 200, "Table"),
        ("application/json;as=Table;v=v2;g=meta.k8s.io,application/json", 200, "DeviceClassList"),
        ("application/vnd.kubernetes.protobuf,application/json", 200, "DeviceClassList"),
        ("application/vnd.kubernetes.protobuf", 406, "Status"),
        ("application/json;as=Table;v=v2;g=meta.k8s.io", 406, "Status"),
        ("application/json;as=Chair;v=v1;g=meta.k8s.io", 406, "Status"),
        ("application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io", 406, "Status"),
    ],
)
def test_an_answer_has_the_first_form_that_can_be_served(
    empty: Client, accept: str, code: int, kind: str
) -> None:
    found = empty.get(CLASSES, accept)

    assert (found.code, found.json["kind"]) == (code, kind)


def row(api: Client, path: str) -> Json:
    """Return the only row of a Table, its cells by the names of their columns."""
    table = api.get(path, TABLE).json
    (found,) = table["rows"]
    names = [column["name"] for column in table["columnDefinitions"]]
    return dict(zip(names, found["cells"], strict=True))


def ended(code: int, **fields: object) -> Json:
    return {"name": "app", "state": {"terminated": {"exitCode": code, **fields}}}


RUNNING: Final = {"name": "app", "ready": True, "restartCount": 2, "state": {"running": {}}}
WAITING: Final = {"name": "app", "state": {"waiting": {"reason": "CrashLoopBackOff"}}}


@pytest.mark.parametrize(
    ("spec", "status", "shown"),
    [
        ({"schedulingGates": [{"name": "a.b/c"}]}, {}, ("0/1", "SchedulingGated", "0")),
        *(
            ({}, status, shown)
            for status, shown in (
                ({"phase": "Pending"}, ("0/1", "Pending", "0")),
                ({"phase": "Running", "containerStatuses": [RUNNING]}, ("1/1", "Running", "2")),
                (
                    {"phase": "Running", "containerStatuses": [WAITING]},
                    ("0/1", "CrashLoopBackOff", "0"),
                ),
                (
                    {"phase": "Succeeded", "containerStatuses": [ended(0, reason="Completed")]},
                    ("0/1", "Completed", "0"),
                ),
                ({"phase": "Failed", "containerStatuses": [ended(3)]}, ("0/1", "ExitCode:3", "0")),
                ({"phase": "Failed", "reason": "Evicted"}, ("0/1", "Evicted", "0")),
            )
        ),
    ],
)
def test_a_pods_row_summarizes_its_containers(
    api: Client, spec: Json, status: Json, shown: tuple[str, str, str]
) -> None:
    api.post(PODS, pod_with_claim(**spec))
    api.patch(f"{PODS}/pod-a/status", {"status": status})

    found = row(api, PODS)

    assert (found["Ready"], found["Status"], found["Restarts"]) == shown
    assert (found["Name"], found["IP"], found["Node"]) == ("pod-a", "<none>", "<none>")


def test_a_pod_in_deletion_is_shown_as_terminating_and_a_completed_one_is_marked(
    api: Client,
) -> None:
    api.post(PODS, pod_with_claim(nodeName="node-a"))
    api.delete(f"{PODS}/pod-a")
    api.post(PODS, pod_with_claim("pod-b"))
    api.patch(f"{PODS}/pod-b/status", {"status": {"phase": "Succeeded"}})

    terminating, completed = api.get(PODS, TABLE).json["rows"]

    assert (terminating["cells"][2], terminating.get("conditions")) == ("Terminating", None)
    (condition,) = completed["conditions"]
    assert (condition["type"], condition["status"]) == ("Completed", "True")


def test_a_claims_row_shows_its_state(api: Client) -> None:
    api.post(CLAIMS, with_metadata(claim_document(), finalizers=["a.b/c"]))
    user = {"resource": "pods", "name": "pod-a", "uid": "u"}
    states = []
    for status in ({}, {"allocation": allocation_document()}, {"reservedFor": [user]}):
        api.patch(f"{CLAIMS}/claim-a/status", {"status": status}, MERGE)
        states.append(row(api, CLAIMS)["State"])
    api.delete(f"{CLAIMS}/claim-a")

    assert states == ["pending", "allocated", "allocated,reserved"]
    assert row(api, CLAIMS)["State"] == "deleted,allocated,reserved"


def test_rows_of_slices_and_nodes_show_their_fields(api: Client) -> None:
    labels = {"node-role.kubernetes.io/gpu": ""}
    status = {
        "conditions": [{"type": "Ready", "status": "False"}],
        "nodeInfo": {"kubeletVersion": "v1.36.2", "kernelVersion": "6.1"},
        "addresses": [{"type": "InternalIP", "address": "192.0.2.1"}],
    }
    node = {"metadata": {"name": "node-a", "labels": labels}, "spec": {"unschedulable": True}}
    api.post(SLICES, slice_document())
    api.post(NODES, {**node, "status": status})

    assert {**row(api, SLICES), "Age": ""} == {
        "Name": "slice-a",
        "Node": "node-a",
        "Driver": "tensor-fusion.ai.dra-driver",
        "Pool": "pool-a/node-a",
        "Age": "",
    }
    assert {**row(api, NODES), "Age": ""} == {
        "Name": "node-a",
        "Status": "NotReady,SchedulingDisabled",
        "Roles": "gpu",
        "Age": "",
        "Version": "v1.36.2",
        "Internal-IP": "192.0.2.1",
        "External-IP": "<none>",
        "OS-Image": "<unknown>",
        "Kernel-Version": "6.1",
        "Container-Runtime": "<unknown>",
    }


def test_an_events_row_counts_and_names_its_source(api: Client) -> None:
    first, last = "2001-01-01T00:00:00Z", "2011-01-01T00:00:00Z"
    about = {"kind": "Pod", "name": "pod-a", "namespace": "default", "fieldPath": "spec.a"}
    source = {"component": "kubelet", "host": "node-a"}
    times = {"firstTimestamp": first, "lastTimestamp": last, "count": 3}
    event = event_document(involvedObject=about, message=" no card\n", source=source)
    api.post(EVENTS, {**event, **times})

    assert row(api, EVENTS) == row(api, EVENTS_V1)
    assert row(api, EVENTS) == {
        "Last Seen": rendering.age(last),
        "Type": "Normal",
        "Reason": "Prepared",
        "Object": "pod/pod-a",
        "Subobject": "spec.a",
        "Source": "kubelet, node-a",
        "Message": "no card",
        "First Seen": rendering.age(first),
        "Count": 3,
        "Name": "event-a",
    }


def test_a_row_of_a_custom_resource_has_the_values_at_its_columns_paths() -> None:
    ratio = {"oversubscription": {"tflopsOversellRatio": 500}}
    spec = {"qosConfig": {"defaultQoS": "high"}, "capacityConfig": ratio}
    marks = {"apiVersion": "tensor-fusion.ai/v1", "kind": "GPUPool"}
    with served(tensor_fusion=True) as api:
        api.post(GPUPOOLS, {**marks, "metadata": {"name": "full"}, "spec": spec})
        api.post(GPUPOOLS, {**marks, "metadata": {"name": "none"}})
        rows = api.get(GPUPOOLS, TABLE).json["rows"]

    assert [found["cells"][:3] for found in rows] == [["full", "high", 500], ["none", None, None]]


@pytest.mark.parametrize(
    ("passed", "shown"),
    [
        ({"seconds": -1}, "0s"),
        ({"seconds": 119}, "119s"),
        ({"minutes": 2}, "2m"),
        ({"minutes": 179}, "179m"),
        ({"hours": 3}, "3h"),
        ({"days": 2, "hours": 3}, "2d"),
    ],
)
def test_an_age_is_in_its_largest_fitting_unit(passed: dict[str, Any], shown: str) -> None:
    assert rendering.human(timedelta(**passed)) == shown


def test_events_of_a_watch_are_tables_and_a_bookmark_still_ends_the_initial_ones(
    api: Client,
) -> None:
    api.post(CLASSES, class_document("a"))
    query = "sendInitialEvents=true&allowWatchBookmarks=true&includeObject=None"

    with api.watch(f"{CLASSES}?{query}", TABLE) as watch:
        added, bookmark = islice(watch, 2)

    assert (added["type"], added["object"]["rows"][0]["cells"][0]) == ("ADDED", "a")
    assert columns_of(added["object"]) == [NAME, AGE]
    assert bookmark["type"] == "BOOKMARK"
    annotations = bookmark["object"]["rows"][0]["object"]["metadata"]["annotations"]
    assert annotations == {"k8s.io/initial-events-end": "true"}
