"""Rows of Tables, which `kubectl get` shows: the cells of a real 1.36 server."""

from datetime import timedelta
from typing import Any, Final

import pytest

from dra_simulator.api import ages
from dra_simulator.apiserver import ApiServer
from tests.dra_simulator.api.client import (
    CLAIMS,
    EVENTS,
    EVENTS_V1,
    MERGE,
    NODES,
    PODS,
    SLICES,
    TABLE,
    Client,
    Json,
)
from tests.support.builders.documents import (
    allocation_document,
    claim_document,
    pod_with_claim,
    slice_document,
)


def row(api: Client, path: str) -> Json:
    """Return the only row of a Table, its cells by the names of their columns."""
    table = api.get(path, TABLE).json
    (found,) = table["rows"]
    names = [column["name"] for column in table["columnDefinitions"]]
    return dict(zip(names, found["cells"], strict=True))


def running(**fields: object) -> Json:
    state = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
    return {"name": "app", "ready": True, "restartCount": 0, "state": state, **fields}


def ended(code: int, **fields: object) -> Json:
    return {"name": "app", "state": {"terminated": {"exitCode": code, **fields}}}


WAITING: Final = {"name": "app", "state": {"waiting": {"reason": "CrashLoopBackOff"}}}
LONG_AGO: Final = {"terminated": {"exitCode": 1, "finishedAt": "2001-01-01T00:00:00Z"}}


@pytest.mark.parametrize(
    ("status", "shown"),
    [
        ({"phase": "Pending"}, ("0/1", "Pending", "0")),
        ({"phase": "Running", "containerStatuses": [running()]}, ("1/1", "Running", "0")),
        ({"phase": "Running", "containerStatuses": [WAITING]}, ("0/1", "CrashLoopBackOff", "0")),
        (
            {"phase": "Succeeded", "containerStatuses": [ended(0, reason="Completed")]},
            ("0/1", "Completed", "0"),
        ),
        ({"phase": "Failed", "containerStatuses": [ended(3)]}, ("0/1", "ExitCode:3", "0")),
        ({"phase": "Failed", "containerStatuses": [ended(0, signal=9)]}, ("0/1", "Signal:9", "0")),
        ({"phase": "Failed", "reason": "Evicted"}, ("0/1", "Evicted", "0")),
        (
            {
                "phase": "Pending",
                "conditions": [
                    {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}
                ],
            },
            ("0/1", "SchedulingGated", "0"),
        ),
        (
            {"phase": "Pending", "initContainerStatuses": [{"name": "init", "state": {}}]},
            ("0/1", "Init:0/1", "0"),
        ),
        (
            {"phase": "Pending", "initContainerStatuses": [{**ended(1), "name": "init"}]},
            ("0/1", "Init:ExitCode:1", "0"),
        ),
    ],
)
def test_a_pods_row_summarizes_its_containers(
    api: Client, status: Json, shown: tuple[str, str, str]
) -> None:
    api.post(PODS, pod_with_claim(initContainers=[{"name": "init", "image": "init"}]))
    api.patch(f"{PODS}/pod-a/status", {"status": status})

    found = row(api, PODS)

    assert (found["Ready"], found["Status"], found["Restarts"]) == shown
    assert (found["Name"], found["IP"], found["Node"]) == ("pod-a", "<none>", "<none>")


def test_a_pod_with_scheduling_gates_is_shown_as_gated(api: Client) -> None:
    api.post(PODS, pod_with_claim(schedulingGates=[{"name": "example.com/gate"}]))

    assert row(api, PODS)["Status"] == "SchedulingGated"


def test_a_pods_row_shows_when_a_container_was_restarted(api: Client) -> None:
    api.post(PODS, pod_with_claim())
    restarted = running(restartCount=2, lastState=LONG_AGO)
    api.patch(f"{PODS}/pod-a/status", {"status": {"containerStatuses": [restarted]}})

    assert row(api, PODS)["Restarts"] == f"2 ({ages.age('2001-01-01T00:00:00Z')} ago)"


def test_a_pod_in_deletion_is_shown_as_terminating_and_a_completed_one_is_marked(
    api: Client,
) -> None:
    api.post(PODS, pod_with_claim(nodeName="node-a"))
    api.post(PODS, pod_with_claim("pod-b"))
    api.patch(f"{PODS}/pod-b/status", {"status": {"phase": "Succeeded"}})
    api.delete(f"{PODS}/pod-a")

    rows = api.get(PODS, TABLE).json["rows"]

    assert rows[0]["cells"][2] == "Terminating"
    assert "conditions" not in rows[0]
    (completed,) = rows[1]["conditions"]
    assert (completed["type"], completed["status"]) == ("Completed", "True")


def test_a_claims_row_shows_its_state(api: Client) -> None:
    api.post(CLAIMS, claim_document())
    states = [row(api, CLAIMS)["State"]]
    status: Json = {"allocation": allocation_document()}
    for more in ({}, {"reservedFor": [{"resource": "pods", "name": "pod-a", "uid": "u"}]}):
        api.patch(f"{CLAIMS}/claim-a/status", {"status": status | more}, MERGE)
        states.append(row(api, CLAIMS)["State"])
    api.patch(f"{CLAIMS}/claim-a", {"metadata": {"finalizers": ["a.b/c"]}}, MERGE)
    api.delete(f"{CLAIMS}/claim-a")
    states.append(row(api, CLAIMS)["State"])

    assert states == ["pending", "allocated", "allocated,reserved", "deleted,allocated,reserved"]


def test_rows_of_slices_and_nodes_show_their_fields(api: Client) -> None:
    labels = {"node-role.kubernetes.io/gpu": "", "kubernetes.io/role": "worker"}
    status = {
        "conditions": [{"type": "Ready", "status": "False"}],
        "nodeInfo": {"kubeletVersion": "v1.36.2", "kernelVersion": "6.1", "architecture": "amd64"},
        "addresses": [{"type": "InternalIP", "address": "192.0.2.1"}],
    }
    node = {"metadata": {"name": "node-a", "labels": labels}, "spec": {"unschedulable": True}}
    api.post(SLICES, slice_document())
    api.post(NODES, {**node, "status": status})

    of_slice, of_node = row(api, SLICES), row(api, NODES)

    assert (of_slice["Node"], of_slice["Pool"]) == ("node-a", "pool-a/node-a")
    assert of_slice["Driver"] == "tensor-fusion.ai.dra-driver"
    assert of_node["Status"] == "NotReady,SchedulingDisabled"
    assert of_node["Roles"] == "gpu,worker"
    assert (of_node["Internal-IP"], of_node["External-IP"]) == ("192.0.2.1", "<none>")
    assert (of_node["Kernel-Version"], of_node["OS-Image"]) == ("6.1 (amd64)", "<unknown>")


def test_an_events_row_counts_and_names_its_source(api: Client) -> None:
    about = {"kind": "Pod", "name": "pod-a", "namespace": "default", "fieldPath": "spec.a"}
    event = {
        "metadata": {"name": "event-a"},
        "involvedObject": about,
        "reason": "Failed",
        "message": " no card\n",
        "type": "Warning",
        "source": {"component": "kubelet", "host": "node-a"},
        "firstTimestamp": "2001-01-01T00:00:00Z",
        "lastTimestamp": "2011-01-01T00:00:00Z",
        "count": 3,
    }
    api.post(EVENTS, event)

    found = row(api, EVENTS)

    assert found == row(api, EVENTS_V1)
    assert (found["Object"], found["Subobject"]) == ("pod/pod-a", "spec.a")
    assert (found["Source"], found["Count"]) == ("kubelet, node-a", 3)
    assert found["Message"] == "no card"
    assert found["First Seen"] == ages.age(event["firstTimestamp"])
    assert found["Last Seen"] == ages.age(event["lastTimestamp"])


def test_a_row_of_a_custom_resource_has_the_values_at_its_columns_paths() -> None:
    ratio = {"oversubscription": {"tflopsOversellRatio": 500}}
    spec = {"qosConfig": {"defaultQoS": "high"}, "capacityConfig": ratio}
    path = "/apis/tensor-fusion.ai/v1/gpupools"
    marks = {"apiVersion": "tensor-fusion.ai/v1", "kind": "GPUPool"}
    with ApiServer(tensor_fusion=True) as server:
        api = Client(server.url)
        api.post(path, {**marks, "metadata": {"name": "full"}, "spec": spec})
        api.post(path, {**marks, "metadata": {"name": "none"}})
        rows = api.get(path, TABLE).json["rows"]
        api.close()

    assert [found["cells"][:3] for found in rows] == [["full", "high", 500], ["none", None, None]]


@pytest.mark.parametrize(
    ("passed", "shown"),
    [
        ({"seconds": -5}, "<invalid>"),
        ({"seconds": -1}, "0s"),
        ({"seconds": 119}, "119s"),
        ({"minutes": 2}, "2m"),
        ({"minutes": 9, "seconds": 59}, "9m59s"),
        ({"minutes": 179}, "179m"),
        ({"hours": 3, "minutes": 5}, "3h5m"),
        ({"hours": 47}, "47h"),
        ({"days": 2, "hours": 3}, "2d3h"),
        ({"days": 400}, "400d"),
        ({"days": 365 * 3 + 2}, "3y2d"),
        ({"days": 365 * 9}, "9y"),
    ],
)
def test_an_age_has_two_or_three_figures(passed: dict[str, Any], shown: str) -> None:
    assert ages.human(timedelta(**passed)) == shown
