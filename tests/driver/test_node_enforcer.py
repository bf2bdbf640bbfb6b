"""Watch over the node's enforcer: a missing one is told before any claim is prepared."""

from typing import Final

from structlog.testing import capture_logs

from tensorfusion_dra.core.claims.enforcement import presence
from tensorfusion_dra.core.claims.enforcement.signs import FileSign, NodeSigns, Places, Signs
from tensorfusion_dra.driver.enforcement_watch import NODE_LOOK_SECONDS, NodeEnforcer
from tests.driver.watched_node import START
from tests.support.ports import EventsInMemory

NO_LIMITER: Final = NodeSigns(
    read_at=0.0,
    files=(FileSign(path="/libcuda_limiter.so", trouble="not found"),),
)
NO_HYPERVISOR: Final = NodeSigns(read_at=0.0, asked=("device plugin: not found",))
ALIVE: Final = NodeSigns(read_at=0.0, hypervisor="device plugin answers")


class SignsOfNode:
    """Signs that a test sets; counts how often they were read."""

    def __init__(self) -> None:
        self.now = NO_LIMITER
        self.looks = 0

    def of_claim(self, places: Places) -> Signs:
        raise AssertionError(places)

    def of_node(self) -> NodeSigns:
        self.looks += 1
        return self.now


class Watched:
    """A node's enforcer with a clock that a test moves."""

    def __init__(self, *, is_required: bool = False) -> None:
        self.seconds = 0.0
        self.signs = SignsOfNode()
        self.events = EventsInMemory()
        self.enforcer = NodeEnforcer(
            self.signs,
            enforcer="tensor-fusion",
            is_required=is_required,
            now=lambda: START,
            clock=lambda: self.seconds,
        )

    def look(self, signs: NodeSigns, after_seconds: float = NODE_LOOK_SECONDS) -> None:
        self.seconds += after_seconds
        self.signs.now = signs
        self.enforcer.look(self.events)


def test_missing_enforcer_has_one_event_with_consequence_and_cures() -> None:
    node = Watched()

    with capture_logs() as logs:
        for _ in range(3):
            node.look(NO_LIMITER)

    ((reason, text),) = node.events.written
    assert reason == "EnforcerMissing"
    assert text == (
        "enforcer tensor-fusion: /libcuda_limiter.so: not found: every claim for a part of a GPU "
        f"waits; {presence.cure('tensor-fusion')}"
    )
    assert len(text.encode()) < 1024  # of an Event's note
    assert node.events.pods == [None]
    assert [(line["event"], line["reason"]) for line in logs] == [
        ("enforcer_not_seen", "LimiterMissing")
    ]
    standing = node.enforcer.standing()
    assert standing is not None
    assert (standing.verdict.state, standing.since) == ("NotEnforced", START)


def test_consequence_of_a_missing_hypervisor_depends_on_require_enforcement() -> None:
    found = []
    for is_required in (False, True):
        node = Watched(is_required=is_required)
        node.look(NO_HYPERVISOR)
        found.append(node.events.written[0][1])

    assert "claims are prepared, but nothing keeps them within their limits" in found[0]
    assert "every claim for a part of a GPU waits" in found[1]


def test_enforcer_that_came_and_went_again_has_another_event() -> None:
    node = Watched()

    with capture_logs() as logs:
        for signs in (NO_HYPERVISOR, ALIVE, NO_HYPERVISOR):
            node.look(signs)

    assert len(node.events.written) == 2
    assert [line["event"] for line in logs] == [
        *("enforcer_not_seen", "enforcer_seen", "enforcer_not_seen")
    ]


def test_live_enforcer_is_not_mentioned() -> None:
    node = Watched()

    with capture_logs() as logs:
        node.look(ALIVE)

    assert (logs, node.events.written) == ([], [])


def test_event_is_written_once_the_api_server_answers_and_signs_are_read_once_a_minute() -> None:
    node = Watched()
    node.events.away = True
    node.look(NO_LIMITER)
    node.look(NO_LIMITER, after_seconds=1)
    node.events.away = False

    node.look(NO_LIMITER, after_seconds=1)

    assert (len(node.events.written), node.signs.looks) == (1, 1)
