"""Stories: an operation of a node plugin, run once for each fault point and killed there.

A story is arranged once, and its disk saved. A first run is traced to find the fault points. For
each point, the disk is restored, the operation runs again and is killed at the point. Then the
plugin is restarted and the invariants are checked.
"""

import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims.claim import ClaimRef
from tests.faults import fault_points, invariants
from tests.faults.fault_points import FaultPoints, Point
from tests.faults.node import CARDS, Answer, Node, device, published, running
from tests.support.forks import Starter
from tests.support.tally import EFFORT
from tests.support.waiting import eventually

_TRIES: Final = 5
_MISSED_SECONDS: Final = 10.0
"""A process that has not passed a point so long after its operation never passes it."""
BY_THE_CLOCK: Final = ("/events", "limits.json", f"{names.DRIVER}/.temporary")
"""What the watch on limits writes: when it looks, which may be during an operation or not.

The last is the temporary file of limits.json, and of cards.json beside it.
"""
EVERY_DEVICE: Final = sorted(device(card) for card in range(CARDS))


@dataclass(frozen=True, slots=True)
class Lane:
    """A sequence of node plugins, one at a time; several lanes run side by side."""

    points: FaultPoints
    starter: Starter


@dataclass(kw_only=True)
class Story:
    """One operation on one node, which can be repeated from the same initial state.

    Attributes:
        refs: All claims of the story.
        before: Brings the node to the initial state, while the plugin runs; given the story.
        disturb: Changes the disk afterwards, while no plugin runs.
        reset: Changes the API server before each run.
        act: The operation, given the story. None for a start of the plugin.
        by_the_clock: Parts of the names of points that a run may pass or not.
        acknowledged: Answers to the kubelet for claims that it regards as prepared.
        gone: UIDs of claims whose unprepare call succeeded.
    """

    node: Node
    points: FaultPoints
    refs: Sequence[ClaimRef] = ()
    before: Callable[["Story"], None] = field(default=lambda _: None)
    disturb: Callable[[], None] = field(default=lambda: None)
    reset: Callable[[], None] = field(default=lambda: None)
    act: Callable[["Story"], None] | None = None
    by_the_clock: Sequence[str] = BY_THE_CLOCK
    acknowledged: Answer = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)

    def prepare(self, *refs: ClaimRef) -> None:
        """Call NodePrepareResources; prepared claims in the answer count as acknowledged."""
        answer = self.node.prepare(*refs) or {}
        self.acknowledged |= {uid: got for uid, got in answer.items() if not isinstance(got, str)}

    def unprepare(self, *refs: ClaimRef) -> None:
        """Call NodeUnprepareResources; these claims are no longer acknowledged."""
        for ref in refs:
            self.acknowledged.pop(ref.uid, None)
        answer = self.node.unprepare(*refs) or {}
        self.gone |= {uid for uid, error in answer.items() if not error}

    def arrange(self) -> None:
        """Create the initial state and save the disk; call it once."""
        with running(self.node):
            self._settle()
            self.before(self)
        self.disturb()
        self.node.take_snapshot()
        self._initially_acknowledged = dict(self.acknowledged)

    def every_point(self) -> list[Point]:
        """Return the points of the operation at which a kill makes a difference.

        The point after a step and the point before the next one are the same state, so the first
        of the two is left out.
        """
        found = self.steps()
        return [
            point
            for point, following in zip_longest(found, found[1:])
            if point.is_before or following is None or not following.is_before
        ]

    def steps(self) -> list[Point]:
        """Run the operation twice without a kill; return the points of both runs, in their order.

        A point of one run only is the step of a thread that a clock woke up.
        """
        again = set(self._traced())
        return [point for point in self._traced() if point in again]

    def _traced(self) -> list[Point]:
        self._begin()
        with self.points.traced() as found:
            if self.act is None:
                self.node.start()
                self._settle()
            else:
                self.act(self)
        self.node.kill()
        return [point for point in found if not self._is_by_the_clock(point)]

    def _is_by_the_clock(self, point: Point) -> bool:
        # Each of these files is written after a mkdir of its folder, which a start makes itself.
        is_folder = self.act is not None and point.name.endswith(names.DRIVER)
        return is_folder or any(part in point.name for part in self.by_the_clock)

    def killed_at(self, point: Point) -> Sequence[str]:
        """Kill the operation at this point and restart; return the violations, () if none."""
        code: int | None = None
        # Repeated, because the order of steps in two threads may differ from run to run.
        for _ in range(_TRIES):
            self._begin()
            self.points.kill_at(point)
            if self.act is None:
                self.node.launch()
                assert eventually(self._has_ended_or_started), self.node.log()
            else:
                self.act(self)
            code = self.node.wait(seconds=_MISSED_SECONDS)
            self.points.disarm()
            if code == -signal.SIGKILL:
                with running(self.node):
                    self._settle()
                    return tuple(self._broken())
        return (f"ended with {code}, expected a kill: {self.node.log()}",)

    def _begin(self) -> None:
        self.node.restore_snapshot()
        self.reset()
        self.acknowledged = dict(self._initially_acknowledged)
        self.gone = set()
        if self.act is not None:
            self.node.start()
            self._settle()

    def _settle(self) -> None:
        """Wait until this plugin has published, so that later steps are only the operation's."""
        assert eventually(self._is_published), self.node.log()

    def _has_ended_or_started(self) -> bool:
        return not self.node.is_alive() or (self.node.is_served() and self._is_published())

    def _is_published(self) -> bool:
        taken = any(self.node.data_folder.glob("publisher-*.lock"))
        return taken and published(self.node.slices()) == EVERY_DEVICE

    def _broken(self) -> Iterator[str]:
        node, held = self.node, invariants.records(self.node.data_folder)
        yield from invariants.violations(node)
        yield from (f"{uid}: acknowledged, not recorded" for uid in self.acknowledged.keys() - held)
        yield from (f"{uid}: recorded after it was unprepared" for uid in self.gone & held.keys())
        again = node.prepare(*self.refs) or {}
        for ref in self.refs:
            answer = again.get(ref.uid, "no answer")
            if isinstance(answer, str):
                yield f"{ref}: {answer}"
            elif answer != self.acknowledged.get(ref.uid, answer):
                yield f"{ref}: answered {answer}, before {self.acknowledged[ref.uid]}"
        yield from invariants.violations(node)
        if node.unprepare(*self.refs) != {ref.uid: "" for ref in self.refs}:
            yield "not all claims could be unprepared"
        yield from invariants.leftovers(node)


StoryOf = Callable[[Node, FaultPoints], Story]
"""Builds a story on a node."""


@contextmanager
def arranged(lane: Lane, nvml: Path, story_of: StoryOf) -> Iterator[Story]:
    """Yield a story in its initial state, on a node of its own."""
    with node_on(lane, nvml) as node:
        story = story_of(node, lane.points)
        story.arrange()
        yield story


def killed(lanes: Sequence[Lane], nvml: Path, story_of: StoryOf) -> Mapping[Point, Sequence[str]]:
    """Kill a story at all points, or a sample of them; return the violations by point."""
    with ExitStack() as until, ThreadPoolExecutor(len(lanes)) as side_by_side:
        stories = [until.enter_context(arranged(lane, nvml, story_of)) for lane in lanes]
        chosen = fault_points.sample(stories[0].every_point(), share=EFFORT)

        def run(number: int) -> dict[Point, Sequence[str]]:
            points = chosen[number :: len(stories)]
            return {point: stories[number].killed_at(point) for point in points}

        parts = side_by_side.map(run, range(len(stories)))
        return {point: broken for part in parts for point, broken in part.items()}


@contextmanager
def node_on(lane: Lane, nvml: Path) -> Iterator[Node]:
    """Yield a node without a running plugin."""
    with tempfile.TemporaryDirectory(prefix="tff-") as folder:
        node = Node(Path(folder), lane.starter, nvml)
        lane.points.watch(node.root)
        try:
            yield node
        finally:
            lane.points.disarm()
            node.close()
