"""Scheduling of pods: nodes, devices, order, and retries after changes."""

from collections.abc import Iterator
from itertools import islice

import pytest

from dra_simulator import podclaims
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
    Resource,
)
from dra_simulator.scheduler import Scheduler
from tests.support import objects
from tests.support.objects import DRIVER, NODE, Json
from tests.support.waiting import PATIENCE_SECONDS, awaited


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
    unmet = [c for c in conditions if (c["type"], c["status"]) == ("PodScheduled", "False")]
    return (unmet[0]["reason"], unmet[0]["message"]) if unmet else ()


@pytest.mark.usefixtures("gpu")
def test_pod_gets_devices_and_a_node(client: Client) -> None:
    half = objects.exactly(capacity={"tflops": "50", "vram": "20Gi"})

    pod = add_claim_and_pod(client, "a", half)

    awaited(lambda: node_of(client, "a") == NODE)
    claim = client.get(CLAIMS, "a", "default")
    assert claim["metadata"]["finalizers"] == [FINALIZER]
    (result,) = claim["status"]["allocation"]["devices"]["results"]
    assert result["consumedCapacity"] == {"tflops": "50", "vram": "20Gi"}
    assert claim["status"]["reservedFor"] == [objects.consumer(pod)]
    text = f"Successfully assigned default/a to {NODE}"
    awaited(lambda: events(client) == [("a", "Normal", "Scheduled", text, "default-scheduler")])


@pytest.mark.usefixtures("scheduler")
def test_pod_is_bound_once_its_devices_meet_their_conditions(client: Client) -> None:
    client.create(NODES, objects.node())
    conditions = {"bindingConditions": ["up"], "bindingFailureConditions": ["down"]}
    client.create(SLICES, objects.resource_slice({**objects.device("nic-0"), **conditions}))
    add_claim_and_pod(client, "a")
    text = f"waiting for binding conditions for device on node {NODE}"
    event = ("a", "Normal", "BindingConditionsPending", text, "default-scheduler")
    awaited(lambda: events(client) == [event])
    assert not node_of(client, "a")

    claim = client.get(CLAIMS, "a", "default")
    (result,) = claim["status"]["allocation"]["devices"]["results"]
    met = {**podclaims.condition("up", status=True, reason="Up", message="")}
    of_device = {key: result[key] for key in ("driver", "pool", "device")}
    claim["status"]["devices"] = [{**of_device, "conditions": [met]}]
    client.replace_status(CLAIMS, claim)

    awaited(lambda: node_of(client, "a") == NODE)


@pytest.mark.usefixtures("gpu")
def test_catch_up_returns_after_every_pod_was_tried(scheduler: Scheduler, client: Client) -> None:
    for name in ("a", "b"):
        add_claim_and_pod(client, name)

    assert scheduler.catch_up(seconds=PATIENCE_SECONDS)
    assert node_of(client, "a") == NODE
    assert reason_of(client, "b")[0] == "Unschedulable"


def test_catch_up_of_a_stopped_scheduler_times_out(api: ApiServer) -> None:
    assert not Scheduler(api.url).catch_up(seconds=0)


@pytest.mark.usefixtures("scheduler")
def test_pending_pods_are_scheduled_in_the_order_of_their_creation(client: Client) -> None:
    client.create(NODES, objects.node())
    for name in ("z", "y", "x"):
        add_claim_and_pod(client, name)
    awaited(lambda: reason_of(client, "x"))

    two = [objects.device(name) for name in ("gpu-0", "gpu-1")]
    client.create(SLICES, objects.resource_slice(*two))

    # One of them may have to be tried again, if its pod changed meanwhile.
    awaited(lambda: node_of(client, "y") == node_of(client, "z") == NODE)
    assert node_of(client, "x") == ""


def test_pods_are_scheduled_after_bookmarks() -> None:
    with ApiServer(bookmark_seconds=0.02) as server, Scheduler(server.url) as scheduler:
        client = Client(server.url)
        client.create(NODES, objects.node())
        assert scheduler.catch_up(seconds=PATIENCE_SECONDS)
        watch = client.watch(PODS, client.list(PODS).resource_version)
        assert {event["type"] for event in islice(watch, 5)} == {"BOOKMARK"}
        watch.release()

        client.create(PODS, objects.pod("a"))

        awaited(lambda: node_of(client, "a") == NODE)


@pytest.mark.usefixtures("gpu")
def test_unschedulable_pod_gives_the_reason_and_is_scheduled_once_capacity_is_free(
    client: Client,
) -> None:
    add_claim_and_pod(client, "a")
    awaited(lambda: node_of(client, "a"))

    add_claim_and_pod(client, "b")

    text = (
        "0/1 nodes are available: 1 cannot allocate all claims. "
        f"({DRIVER}/{NODE}/gpu-0: tflops 100 of 100 taken, 100 more do not fit)"
    )
    awaited(lambda: reason_of(client, "b") == ("Unschedulable", text))
    event = ("b", "Warning", "FailedScheduling", text, "default-scheduler")
    awaited(lambda: event in events(client))

    first = client.get(CLAIMS, "a", "default")
    client.replace_status(CLAIMS, {**first, "status": {}})

    awaited(lambda: node_of(client, "b") == NODE)


def events(client: Client) -> list[tuple[str, str, str, str, str]]:
    """Return pod, type, reason, message and reporter of each Event."""
    fields = ("type", "reason", "message", "reportingComponent")
    return [
        (event["involvedObject"]["name"], *(event[field] for field in fields))
        for event in client.list(EVENTS).items
    ]


@pytest.mark.usefixtures("gpu")
def test_pods_go_to_the_node_with_the_devices_or_of_the_allocated_claim(client: Client) -> None:
    for name in ("node-0", "node-z"):
        client.create(NODES, objects.node(name))

    add_claim_and_pod(client, "a")
    awaited(lambda: node_of(client, "a") == NODE)
    client.create(PODS, objects.pod("b", claim_name="a"))

    awaited(lambda: node_of(client, "b") == NODE)
    status = client.get(CLAIMS, "a", "default")["status"]
    assert {consumer["name"] for consumer in status["reservedFor"]} == {"a", "b"}


@pytest.mark.usefixtures("scheduler")
def test_message_counts_unfit_nodes_by_reason(client: Client) -> None:
    client.create(NODES, {**objects.node("node-b"), "spec": {"unschedulable": True}})
    client.create(NODES, objects.node())
    pod = objects.pod("a")
    pod["spec"]["nodeSelector"] = {"zone": "east"}

    client.create(PODS, pod)

    assert awaited(lambda: reason_of(client, "a"))[1] == (
        "0/2 nodes are available: 1 node(s) didn't match Pod's node affinity/selector,"
        " 1 node(s) were unschedulable."
    )


ERROR = 'running "DynamicResources" filter plugin: '


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("claims", "reason", "missing"),
    [
        ([], ("Unschedulable", 'resourceclaim "a" not found'), (CLAIMS, objects.claim(name="a"))),
        (
            [objects.claim(objects.exactly(deviceClassName="other"), name="a")],
            ("SchedulerError", f"{ERROR}request gpu: device class other does not exist"),
            (CLASSES, objects.device_class("other")),
        ),
    ],
    ids=["claim", "device class"],
)
def test_pod_waits_for_what_is_missing(
    client: Client, claims: list[Json], reason: tuple[str, str], missing: tuple[Resource, Json]
) -> None:
    for claim in claims:
        client.create(CLAIMS, claim)
    client.create(PODS, objects.pod("a", claim_name="a"))
    awaited(lambda: reason_of(client, "a") == reason)

    client.create(*missing)

    awaited(lambda: node_of(client, "a") == NODE)


def test_pod_whose_generated_claim_is_missing_is_not_queued(
    client: Client, scheduler: Scheduler
) -> None:
    client.create(NODES, objects.node())

    client.create(PODS, objects.pod("a", template_name="none"))

    assert scheduler.catch_up(seconds=PATIENCE_SECONDS)
    assert (reason_of(client, "a"), node_of(client, "a")) == ((), "")


def test_pod_with_failing_selector_waits_until_the_device_changes(
    client: Client, gpu: Json
) -> None:
    model = objects.expressions(f'device.attributes["{DRIVER}"].model == "A100"')
    add_claim_and_pod(client, "a", objects.exactly(selectors=model))
    reason, message = awaited(lambda: reason_of(client, "a"))
    assert reason == "SchedulerError"
    assert message.startswith(f"{ERROR}claim default/a: selector #0 on device")

    gpu["spec"]["devices"] = [objects.device("gpu-0", model="A100")]
    client.replace(SLICES, gpu)

    awaited(lambda: node_of(client, "a") == NODE)


def test_pod_being_deleted_is_not_scheduled(client: Client, scheduler: Scheduler) -> None:
    pod = objects.pod("a")
    pod["metadata"]["finalizers"] = ["example.com/keep"]
    client.create(PODS, pod)
    client.delete(PODS, "a", "default", grace_seconds=0)

    client.create(NODES, objects.node())

    assert scheduler.catch_up(seconds=PATIENCE_SECONDS)
    assert node_of(client, "a") == ""
