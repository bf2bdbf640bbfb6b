"""Events on pods with what the webhook warned of, and readings for callers that do not wait."""

from threading import Thread

import pytest

from dra_simulator.apiserver import ApiServer
from dra_simulator.rest import EVENTS, Client, Json
from tensorfusion_dra.cluster.api import Api
from tensorfusion_dra.cluster.lately import Lately
from tensorfusion_dra.cluster.pod_events import PodEvents
from tensorfusion_dra.core.claims.claim import PodRef
from tests.cluster.test_events import NAMESPACES
from tests.support.waiting import eventually


def pod(namespace: str, number: int) -> PodRef:
    return PodRef(namespace=namespace, name=f"p{number}", uid=f"uid-{namespace}-{number}")


class Setup:
    def __init__(self, server: ApiServer, api: Api) -> None:
        self.client = Client(server.url)
        self.now = 0.0
        self.events = PodEvents(api, clock=lambda: self.now)
        for name in "abcdefgh":
            document = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
            self.client.create(NAMESPACES, document)

    def written(self) -> list[Json]:
        """Write what waits, and return all Events."""
        thread = Thread(target=self.events.run)
        thread.start()
        assert eventually(lambda: not self.events._waiting)
        self.events.stop()
        thread.join()
        return self.client.list(EVENTS).items


@pytest.fixture
def setup(server: ApiServer, api: Api) -> Setup:
    return Setup(server, api)


def test_a_pod_has_one_event_with_all_its_warnings(setup: Setup) -> None:
    setup.events.say(pod("a", 1), ["no template", "no H100"])
    setup.now = 60
    setup.events.say(pod("a", 1), ["no template"])

    (event,) = setup.written()
    assert (event["type"], event["reason"]) == ("Warning", "GPURequest")
    assert event["message"] == "no template; no H100"
    about = event["involvedObject"]
    assert (about["kind"], about["name"], about["uid"]) == ("Pod", "p1", "uid-a-1")


def test_a_namespace_has_one_a_second_and_all_have_five(setup: Setup) -> None:
    for number in range(3):
        setup.events.say(pod("a", number), ["x"])
    for namespace in "bcdefgh":
        setup.events.say(pod(namespace, 0), ["x"])
    setup.now = 1.1
    setup.events.say(pod("a", 9), ["x"])

    names = sorted(each["metadata"]["namespace"] for each in setup.written())
    assert names == [*"aabcde"]


def test_a_namespace_that_is_gone_ends_nothing(setup: Setup) -> None:
    setup.events.say(pod("gone", 1), ["x"])
    setup.events.say(pod("a", 1), ["x"])

    assert len(setup.written()) >= 1


def test_a_reading_is_kept_for_some_seconds_and_forgotten_after_half_a_minute() -> None:
    clock = [0.0]

    def read() -> int:
        lately.stop()
        return 1

    lately = Lately(read, clock=lambda: clock[0])
    assert lately.seen() is None
    lately.run()
    for now, expected in ((10.0, 1), (30.0, 1), (30.1, None)):
        clock[0] = now
        assert lately.seen() == expected


def test_nothing_at_all_is_read_again() -> None:
    nodes: list[str] = []
    lately = Lately(lambda: [*nodes])
    thread = Thread(target=lately.run)
    thread.start()
    assert eventually(lambda: lately.seen() == [])

    nodes.append("one")

    assert eventually(lambda: lately.seen() == ["one"])
    lately.stop()
    thread.join()


def test_who_asks_after_a_pause_gets_what_is_there_now() -> None:
    now, there = 0.0, "one node"
    lately = Lately(lambda: there, clock=lambda: now)
    thread = Thread(target=lately.run)
    thread.start()
    assert eventually(lambda: lately.seen() == "one node")

    there, now = "two nodes", 100.0

    assert eventually(lambda: lately.seen() == "two nodes")
    lately.stop()
    thread.join()
