"""Events on Node and Pods: no repetitions, and failures never disturb the caller."""

from collections.abc import Callable, Mapping

import pytest

from dra_simulator.api.faults import Refuse
from dra_simulator.apiserver import ApiServer
from dra_simulator.rest import EVENTS, NODES, Client, Json, Resource
from tensorfusion_dra.cluster.api import Api
from tensorfusion_dra.cluster.objects import ApiEvents, ApiNodes
from tensorfusion_dra.cluster.pod_events import PodEvents
from tensorfusion_dra.core.claims.claim import PodRef
from tests.support.builders.prepared_claims import POD
from tests.support.logs import capture_logs
from tests.support.threads import running
from tests.support.waiting import eventually

NAMESPACES = Resource(api_version="v1", plural="namespaces", kind="Namespace", namespaced=False)


class Setup:
    """A cluster, and the Events that a node and the webhook write into it.

    Attributes:
        now: The time in seconds.
        events: Those of the node, about itself and its pods.
        pod_events: Those of the webhook.
    """

    def __init__(self, server: ApiServer, api: Api) -> None:
        self.client, self.now = Client(server.url), 0.0
        nodes = ApiNodes(api, node_name="node-01")
        self.events = ApiEvents(api, nodes, node_name="node-01", clock=lambda: self.now)
        self.pod_events = PodEvents(api, clock=lambda: self.now)

    def create_node(self) -> Json:
        document = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-01"}}
        return self.client.create(NODES, document)

    def create_namespaces(self, *names: str) -> None:
        for name in names:
            document = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
            self.client.create(NAMESPACES, document)

    def written(self) -> list[Json]:
        return self.client.list(EVENTS).items

    def said(self) -> list[Json]:
        """Write what waits at the webhook, and return all Events."""
        with running(self.pod_events.run, stop=self.pod_events.stop):
            assert eventually(lambda: not self.pod_events._waiting)
        return self.written()


@pytest.fixture
def setup(server: ApiServer, api: Api) -> Setup:
    return Setup(server, api)


@pytest.mark.parametrize(
    ("write", "kind"), [(ApiEvents.warn, "Warning"), (ApiEvents.note, "Normal")]
)
def test_event_is_written_about_its_node(
    setup: Setup, write: Callable[[ApiEvents, str, str], bool], kind: str
) -> None:
    node = setup.create_node()

    assert write(setup.events, "GPUPoolInvalid", "GPUPool prod: found none of this name")

    (event,) = setup.written()
    about = event["involvedObject"]
    assert (about["name"], about["uid"]) == ("node-01", node["metadata"]["uid"])
    assert event["metadata"]["namespace"] == "default"
    assert (
        event.items()
        >= {
            "type": kind,
            "reason": "GPUPoolInvalid",
            "message": "GPUPool prod: found none of this name",
            "action": "ServeGPUs",
            "reportingComponent": "tensor-fusion.ai.dra-driver",
        }.items()
    )


def test_event_about_a_pod_is_in_its_namespace(setup: Setup) -> None:
    setup.create_namespaces(POD.namespace)

    for _ in range(2):
        assert setup.events.warn("LimitsNotEnforced", "claim a: not found", pod=POD)

    (event,) = setup.written()
    assert event["metadata"]["namespace"] == "team-a"
    assert event["message"] == "claim a: not found"
    assert event["involvedObject"] == {
        "apiVersion": "v1",
        "kind": "Pod",
        "namespace": "team-a",
        "name": "trainer-0",
        "uid": "pod-uid-0",
    }


def test_without_permission_events_about_pods_are_about_the_node(
    server: ApiServer, setup: Setup
) -> None:
    setup.create_node()
    server.faults.add("create", "events", Refuse(403), times=1)

    with capture_logs() as logs:
        assert setup.events.warn("LimitsNotEnforced", "first", pod=POD)
        assert setup.events.note("LimitsEnforced", "second", pod=POD)

    assert [line["event"] for line in logs] == ["pod_events_forbidden"]
    assert {(event["metadata"]["namespace"], event["message"]) for event in setup.written()} == {
        ("default", "pod team-a/trainer-0: first"),
        ("default", "pod team-a/trainer-0: second"),
    }


@pytest.mark.parametrize(
    "fault",
    [Refuse(404), Refuse(403, "unable to create new content because it is being terminated")],
)
def test_event_about_a_pod_of_a_deleted_namespace_is_dropped(
    server: ApiServer, setup: Setup, fault: Refuse
) -> None:
    setup.create_namespaces(POD.namespace)
    server.faults.add("create", "events", fault, times=1)

    assert setup.events.warn("LimitsNotEnforced", "first", pod=POD)
    assert setup.events.warn("LimitsNotEnforced", "second", pod=POD)

    assert [event["message"] for event in setup.written()] == ["second"]


def test_same_event_is_not_repeated_within_ten_minutes(setup: Setup) -> None:
    setup.create_node()
    for now, message, written in ((0, "a", 1), (599, "a", 1), (599, "b", 2), (600, "a", 3)):
        setup.now = now
        setup.events.warn("GPUPoolInvalid", message)
        assert len(setup.written()) == written

    assert sorted(event["message"] for event in setup.written()) == ["a", "a", "b"]


@pytest.mark.parametrize(
    ("message", "written"),
    [("x" + "ä" * 1000, "x" + "ä" * 511), ("pool a\nb \x1b[31m", r"pool a\nb \x1b[31m")],
    ids=["longer than the API's limit", "several lines"],
)
def test_message_is_one_printable_line_within_the_api_limit(
    setup: Setup, message: str, written: str
) -> None:
    setup.create_node()

    setup.events.warn("GPUPoolInvalid", message)

    (event,) = setup.written()
    assert event["message"] == written


def test_failed_write_is_logged_once_and_retried_by_the_next_call(
    server: ApiServer, setup: Setup
) -> None:
    setup.create_node()
    server.faults.add("create", "events", Refuse(403), times=1)

    with capture_logs() as logs:
        assert not setup.events.warn("GPUPoolInvalid", "a")
    assert setup.events.warn("GPUPoolInvalid", "a")
    assert setup.events.warn("GPUPoolInvalid", "a")

    (line,) = logs
    assert line["event"] == "event_write_failed"
    assert "403" in line["error"]
    assert len(setup.written()) == 1


def test_missing_node_object_is_logged_and_nothing_is_raised(setup: Setup) -> None:
    with capture_logs() as logs:
        setup.events.warn("GPUPoolInvalid", "a")

    assert [line["event"] for line in logs] == ["event_write_failed"]
    assert setup.written() == []


def test_retry_after_pauses_all_events(server: ApiServer, setup: Setup) -> None:
    setup.create_node()
    server.faults.add("create", "events", Refuse(429, "slow down", 60), times=1)

    for now, is_written, requests in ((0, False, 1), (59, False, 1), (61, True, 2)):
        setup.now = now
        assert setup.events.warn("GPUUnhealthy", "a") is is_written
        assert server.requests.count("create", "events") == requests
    assert len(setup.written()) == 1


def pod(namespace: str, number: int = 1) -> Mapping[str, str]:
    ref = PodRef(namespace=namespace, name=f"p{number}", uid=f"uid-{namespace}-{number}")
    return ref.as_reference()


def test_a_pod_has_one_event_with_all_its_warnings(setup: Setup) -> None:
    setup.create_namespaces("a")
    setup.pod_events.say(pod("a"), ["no template", "no H100"])
    setup.now = 60
    setup.pod_events.say(pod("a"), ["no template"])

    (event,) = setup.said()
    about = event["involvedObject"]
    assert (about["kind"], about["name"], about["uid"]) == ("Pod", "p1", "uid-a-1")
    assert (
        event.items()
        >= {
            "type": "Warning",
            "reason": "GPURequest",
            "message": "no template; no H100",
        }.items()
    )


def test_a_controller_has_one_event_for_all_its_pods(setup: Setup) -> None:
    setup.create_namespaces("a")
    about = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "namespace": "a", "name": "r"}
    for second, uid in enumerate(("1", "1", "1", "2")):
        setup.now = 2 * second
        setup.pod_events.say({**about, "uid": uid}, ["nothing enables DRA"])

    found = [each["involvedObject"] for each in setup.said()]
    assert sorted((each["kind"], each["name"], each["uid"]) for each in found) == [
        ("ReplicaSet", "r", "1"),
        ("ReplicaSet", "r", "2"),
    ]


def test_two_replicas_of_the_webhook_write_one_event_for_a_controller(
    setup: Setup, api: Api
) -> None:
    setup.create_namespaces("a")
    about = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "namespace": "a", "name": "r"}
    for uid in ("1", "/" * 253):
        setup.now += 2
        setup.pod_events.say({**about, "uid": uid}, ["nothing enables DRA"])
    assert len(setup.said()) == 2

    setup.pod_events = PodEvents(api, clock=lambda: setup.now)
    setup.pod_events.say({**about, "uid": "1"}, ["nothing enables DRA"])
    assert len(setup.said()) == 2


def test_a_namespace_has_one_a_second_and_all_have_five(setup: Setup) -> None:
    setup.create_namespaces(*"abcdefgh")
    for asked in (*(pod("a", number) for number in range(3)), *map(pod, "bcdefgh")):
        setup.pod_events.say(asked, ["x"])
    setup.now = 1.1
    setup.pod_events.say(pod("a", 9), ["x"])

    assert sorted(each["metadata"]["namespace"] for each in setup.said()) == [*"aabcde"]


def test_a_namespace_that_is_gone_ends_nothing(setup: Setup) -> None:
    setup.create_namespaces("a")
    for namespace in ("gone", "a"):
        setup.pod_events.say(pod(namespace), ["x"])

    assert len(setup.said()) >= 1
