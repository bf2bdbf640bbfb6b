"""Scheduling of pods: nodes, devices, order, and retries after changes."""

from collections.abc import Iterator
from itertools import islice

import pytest

from dra_simulator.apiserver import ApiServer
from dra_simulator.podclaims import FINALIZER
from dra_simulator.rest import (
    CLAIMS,
    CLASSES,
    EVENTS,
    NODES,
    PODS,
    SLICES,
    Client,
)
from dra_simulator.scheduler import Scheduler
from tests.dra_simulator.waiting import always, eventually
from tests.support import objects
from tests.support.objects import DRIVER, NODE, Json


@pytest.fixture
def scheduler(api: ApiServer) -> Iterator[Scheduler]:
    with Scheduler(api.url) as running:
        yield running


@pytest.fixture
def gpu(client: Client, scheduler: Scheduler) -> Json:
    """The slice of a node with one GPU, in a cluster with a scheduler."""
    client.create(NODES, objects.node())
    return client.create(SLICES, objects.resource_slice(objects.shared("gpu-0")))


def add_claim_and_pod(client: Client, name: str, *requests: Json) -> Json:
    """Create a pod with a claim of the same name."""
    client.create(CLAIMS, objects.claim(*requests, name=name))
    return client.create(PODS, objects.pod(name, claim_name=name))


def node_of(client: Client, pod: str) -> str:
    """Return the node of the pod; "" if it has none yet."""
    return str(client.get(PODS, pod, "default")["spec"].get("nodeName", ""))


def reason_of(client: Client, pod: str) -> tuple[str, ...]:
    """Return reason and message of the PodScheduled condition; empty unless it is False."""
    conditions = client.get(PODS, pod, "default")["status"].get("conditions", [])
    for condition in conditions:
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return condition["reason"], condition["message"]
    return ()


@pytest.mark.usefixtures("gpu")
def test_pod_gets_devices_and_a_node(client: Client) -> None:
    half = objects.exactly(capacity={"tflops": "50", "vram": "20Gi"})

    pod = add_claim_and_pod(client, "a", half)

    eventually(lambda: node_of(client, "a") == NODE)
    claim = client.get(CLAIMS, "a", "default")
    assert claim["metadata"]["finalizers"] == [FINALIZER]
    (result,) = claim["status"]["allocation"]["devices"]["results"]
    assert result["consumedCapacity"] == {"tflops": "50", "vram": "20Gi"}
    assert claim["status"]["reservedFor"] == [
        {"resource": "pods", "name": "a", "uid": pod["metadata"]["uid"]}
    ]


@pytest.mark.usefixtures("gpu")
def test_catch_up_returns_after_every_pod_was_tried(scheduler: Scheduler, client: Client) -> None:
    whole = objects.exactly()

    add_claim_and_pod(client, "a", whole)
    add_claim_and_pod(client, "b", whole)

    assert scheduler.catch_up(seconds=60)
    assert node_of(client, "a") == NODE
    assert reason_of(client, "b")[0] == "Unschedulable"


def test_catch_up_of_a_stopped_scheduler_times_out(api: ApiServer) -> None:
    assert not Scheduler(api.url).catch_up(seconds=0)


def test_pending_pods_are_scheduled_in_the_order_of_their_creation(
    api: ApiServer, client: Client
) -> None:
    client.create(NODES, objects.node())
    for name in ("z", "y", "x"):
        add_claim_and_pod(client, name)

    with Scheduler(api.url):
        eventually(lambda: reason_of(client, "x"))
        two = [objects.device(name) for name in ("gpu-0", "gpu-1")]
        client.create(SLICES, objects.resource_slice(*two))

        # One of them may have to be tried again, if its pod changed meanwhile.
        eventually(lambda: node_of(client, "y") == node_of(client, "z") == NODE)
        always(lambda: node_of(client, "x") == "")


def test_pods_are_scheduled_after_bookmarks() -> None:
    with ApiServer(bookmark_seconds=0.02) as server, Scheduler(server.url) as scheduler:
        client = Client(server.url)
        client.create(CLASSES, objects.device_class())
        client.create(NODES, objects.node())
        client.create(SLICES, objects.resource_slice(objects.shared("gpu-0")))
        client.create(CLAIMS, objects.claim(name="a"))
        assert scheduler.catch_up(seconds=60)
        watch = client.watch(PODS, client.list(PODS).resource_version)
        bookmarks = [event["type"] for event in islice(watch, 5)]
        watch.release()

        client.create(PODS, objects.pod("a", claim_name="a"))

        assert bookmarks == ["BOOKMARK"] * 5
        eventually(lambda: node_of(client, "a") == NODE)


@pytest.mark.usefixtures("gpu")
def test_unschedulable_pod_gives_the_reason_and_is_scheduled_once_capacity_is_free(
    client: Client,
) -> None:
    add_claim_and_pod(client, "a")
    eventually(lambda: node_of(client, "a"))

    add_claim_and_pod(client, "b")

    reason, message = eventually(lambda: reason_of(client, "b"))
    assert reason == "Unschedulable"
    assert message == (
        "0/1 nodes are available: 1 cannot allocate all claims. "
        f"({DRIVER}/{NODE}/gpu-0: tflops 100 of 100 taken, 100 more do not fit)"
    )
    assert eventually(lambda: events(client, "b"))[-1] == ("FailedScheduling", message)

    first = client.get(CLAIMS, "a", "default")
    client.replace_status(CLAIMS, {**first, "status": {}})

    eventually(lambda: node_of(client, "b") == NODE)


def events(client: Client, pod: str) -> list[tuple[str, str]]:
    """Return reason and message of each Event of a pod."""
    return [
        (event["reason"], event["message"])
        for event in client.list(EVENTS).items
        if event["involvedObject"]["name"] == pod
    ]


@pytest.mark.usefixtures("gpu")
def test_pods_go_to_the_node_with_the_devices_or_of_the_allocated_claim(client: Client) -> None:
    for name in ("node-0", "node-z"):
        client.create(NODES, objects.node(name))

    add_claim_and_pod(client, "a")
    eventually(lambda: node_of(client, "a") == NODE)
    client.create(PODS, objects.pod("b", claim_name="a"))

    eventually(lambda: node_of(client, "b") == NODE)
    status = client.get(CLAIMS, "a", "default")["status"]
    assert {consumer["name"] for consumer in status["reservedFor"]} == {"a", "b"}


@pytest.mark.usefixtures("scheduler")
def test_message_counts_unfit_nodes_by_reason(client: Client) -> None:
    closed = objects.node("node-b")
    closed["spec"] = {"unschedulable": True}
    client.create(NODES, closed)
    client.create(NODES, objects.node())
    pod = objects.pod("a")
    pod["spec"]["nodeSelector"] = {"zone": "east"}

    client.create(PODS, pod)

    _, message = eventually(lambda: reason_of(client, "a"))
    assert message == (
        "0/2 nodes are available: 1 node(s) didn't match Pod's node affinity/selector,"
        " 1 node(s) were unschedulable."
    )


@pytest.mark.usefixtures("gpu")
def test_pod_waits_for_its_claim(client: Client) -> None:
    client.create(PODS, objects.pod("a", claim_name="a"))
    expected = ("Unschedulable", 'resourceclaim "a" not found')
    eventually(lambda: reason_of(client, "a") == expected)

    client.create(CLAIMS, objects.claim(name="a"))

    eventually(lambda: node_of(client, "a") == NODE)


@pytest.mark.usefixtures("scheduler")
def test_pod_whose_generated_claim_is_missing_is_not_queued(client: Client) -> None:
    client.create(NODES, objects.node())

    client.create(PODS, objects.pod("a", template_name="none"))

    always(lambda: reason_of(client, "a") == () and node_of(client, "a") == "")


def test_pod_with_failing_selector_waits_until_the_device_changes(
    client: Client, gpu: Json
) -> None:
    model = objects.expressions(f'device.attributes["{DRIVER}"].model == "A100"')
    add_claim_and_pod(client, "a", objects.exactly(selectors=model))
    expected = 'running "DynamicResources" filter plugin: claim default/a: selector #0 on device'
    reason, message = eventually(lambda: reason_of(client, "a"))
    assert reason == "SchedulerError"
    assert message.startswith(expected)

    gpu["spec"]["devices"] = [objects.device("gpu-0", model="A100")]
    client.replace(SLICES, gpu)

    eventually(lambda: node_of(client, "a") == NODE)


@pytest.mark.usefixtures("gpu")
def test_pod_with_missing_device_class_waits_until_it_exists(client: Client) -> None:
    add_claim_and_pod(client, "a", objects.exactly(deviceClassName="other"))
    _, message = eventually(lambda: reason_of(client, "a"))
    assert message.endswith("request gpu: device class other does not exist")

    client.create(CLASSES, objects.device_class("other"))

    eventually(lambda: node_of(client, "a") == NODE)


@pytest.mark.usefixtures("scheduler")
def test_pod_being_deleted_is_not_scheduled(client: Client) -> None:
    pod = objects.pod("a")
    pod["metadata"]["finalizers"] = ["example.com/keep"]
    client.create(PODS, pod)
    eventually(lambda: reason_of(client, "a"))
    client.delete(PODS, "a", "default", grace_seconds=0)

    client.create(NODES, objects.node())

    always(lambda: node_of(client, "a") == "")
