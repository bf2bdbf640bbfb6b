"""Events on pods, as `kubectl describe pod` shows them."""

from typing import Final

import pytest

from dra_simulator.apiserver import ApiServer
from dra_simulator.loop import Recorder
from dra_simulator.rest import EVENTS, NODES, PODS, Client
from dra_simulator.scheduler import Scheduler
from tests.dra_simulator.kubelets import NodeUnderTest
from tests.dra_simulator.waiting import eventually
from tests.support import objects
from tests.support.objects import NODE, Json

PATH: Final = "spec.containers{main}"


def events(client: Client, reason: str) -> list[Json]:
    return [event for event in client.list(EVENTS).items if event["reason"] == reason]


def test_repeated_event_is_written_once_and_different_message_is_new_event(client: Client) -> None:
    pod = client.create(PODS, objects.pod())
    recorder = Recorder(client, "kubelet", NODE)

    for message in ("busy", "gone", "busy", "busy"):
        recorder.record(pod, "Failed", message)

    assert sorted(event["message"] for event in client.list(EVENTS).items) == ["busy", "gone"]


def test_event_that_cannot_be_written_is_dropped(api: ApiServer, client: Client) -> None:
    pod = client.create(PODS, objects.pod())
    nowhere = {**pod, "metadata": {**pod["metadata"], "namespace": "gone"}}
    recorder = Recorder(client, "kubelet", NODE)

    recorder.record(nowhere, "Failed", "busy")
    api.stop()
    recorder.record(pod, "Failed", "busy")

    api.start()
    assert client.list(EVENTS).items == []


def test_scheduler_events_match_those_of_kube_scheduler(api: ApiServer, client: Client) -> None:
    client.create(NODES, objects.node())
    pod = client.create(PODS, objects.pod("a"))
    client.create(PODS, objects.pod("b", claim_name="missing"))

    with Scheduler(api.url):
        (scheduled,) = eventually(lambda: events(client, "Scheduled"))
        (failed,) = eventually(lambda: events(client, "FailedScheduling"))

    assert scheduled["message"] == f"Successfully assigned default/a to {NODE}"
    assert scheduled["involvedObject"]["uid"] == pod["metadata"]["uid"]
    assert (scheduled["type"], failed["type"]) == ("Normal", "Warning")
    assert failed["message"] == 'resourceclaim "missing" not found'
    assert scheduled["reportingComponent"] == failed["reportingComponent"] == "default-scheduler"


@pytest.mark.usefixtures("plugin")
def test_kubelet_writes_events_for_start_and_stop_of_each_container(
    node: NodeUnderTest,
) -> None:
    node.pod(claim=node.claim())
    eventually(lambda: node.phase() == "Running")
    node.delete()
    eventually(lambda: node.phase() == "")

    found = [events(node.client, reason) for reason in ("Created", "Started", "Killing")]

    assert [len(of_reason) for of_reason in found] == [1, 1, 1]
    messages = []
    for (event,) in found:
        messages.append(event["message"])
        assert event["involvedObject"]["fieldPath"] == PATH
        assert event["source"] == {"component": "kubelet", "host": NODE}
        assert (event["type"], event["count"]) == ("Normal", 1)
    assert messages == ["Container created", "Container started", "Stopping container main"]
