"""An operation of a node plugin, told once for each step at which it can be killed."""

import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Final

from tensorfusion_dra.core.claims.claim import ClaimRef
from tests.faults import fault_points, invariants
from tests.faults.fault_points import FaultPoints, Point
from tests.faults.node import CARDS, Answer, Node, device, published, running
from tests.support.forks import Starter
from tests.support.tally import EFFORT
from tests.support.waiting import eventually

_TRIES: Final = 5
_MISSED_SECONDS: Final = 10.0
"""A process that has not come to a point so long after its operation will not come to it."""
EVERY_DEVICE: Final = sorted(device(card) for card in range(CARDS))


@dataclass(frozen=True, slots=True)
class Lane:
    """Node plugins one after the other; several lanes run side by side."""

    points: FaultPoints
    starter: Starter


@dataclass(kw_only=True)
class Story:
    """One operation on one node, from the same beginning as often as wanted.

    Attributes:
        refs: All claims of the story.
        before: Brings the node to where the operation begins; the plugin runs meanwhile.
        disturb: Changes the disk afterwards, while nothing runs.
        reset: Changes the API server before each telling.
        act: The operation, with prepare() and unprepare() or beside them; None for a start.
        acknowledged: What the kubelet was answered for claims that it holds prepared.
        gone: Claims that it was told to be unprepared.
    """

    node: Node
    points: FaultPoints
    refs: Sequence[ClaimRef] = ()
    before: Callable[[], None] = field(default=lambda: None)
    disturb: Callable[[], None] = field(default=lambda: None)
    reset: Callable[[], None] = field(default=lambda: None)
    act: Callable[[], None] | None = None
    acknowledged: Answer = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)

    def prepare(self, *refs: ClaimRef) -> None:
        """The kubelet's call; what is answered is acknowledged."""
        answer = self.node.prepare(*refs) or {}
        self.acknowledged |= {uid: got for uid, got in answer.items() if not isinstance(got, str)}

    def unprepare(self, *refs: ClaimRef) -> None:
        """The kubelet's call; from now on nothing is expected of these claims."""
        for ref in refs:
            self.acknowledged.pop(ref.uid, None)
        answer = self.node.unprepare(*refs) or {}
        self.gone |= {uid for uid, error in answer.items() if not error}

    def arrange(self) -> None:
        """Does once what each telling begins with."""
        with running(self.node):
            self._settle()
            self.before()
        self.disturb()
        self.node.keep()
        self._beginning = dict(self.acknowledged)

    def every_point(self) -> list[Point]:
        """The points of the operation.

        What lies after a step and right before the next one is one and the same state, so the
        first of the two is left out.
        """
        found = self.steps()
        return [
            point
            for point, following in zip_longest(found, found[1:])
            if point.is_before or following is None or not following.is_before
        ]

    def steps(self) -> list[Point]:
        """What the operation passes, in its order, when nobody disturbs it."""
        self._begin()
        with self.points.traced() as found:
            if self.act is None:
                self.node.start()
                self._settle()
            else:
                self.act()
        if self.node.runs:
            self.node.end(signal.SIGKILL)
        return found

    def killed_at(self, point: Point) -> Sequence[str]:
        """What does not hold after a kill at this point and a restart; () if all does."""
        code: int | None = None
        # Which of two threads comes first to a step may differ from run to run.
        for _ in range(_TRIES):
            self._begin()
            self.points.kill_at(point)
            if self.act is None:
                self.node.launch()
                assert eventually(self._has_ended_or_started), self.node.log()
            else:
                self.act()
            code = self.node.wait(seconds=_MISSED_SECONDS)
            self.points.off()
            if code == -signal.SIGKILL:
                with running(self.node):
                    self._settle()
                    return tuple(self._broken())
        return (f"ended with {code}, expected a kill: {self.node.log()}",)

    def _begin(self) -> None:
        self.node.bring_back()
        self.reset()
        self.acknowledged = dict(self._beginning)
        self.gone = set()
        if self.act is not None:
            self.node.start()
            self._settle()

    def _settle(self) -> None:
        """Returns once this plugin has published: what follows is the operation's alone."""
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
            yield "not all could be unprepared"
        yield from invariants.leftovers(node)


def killed(
    lanes: Sequence[Lane], nvml: Path, tell: Callable[[Node, FaultPoints], Story]
) -> Mapping[Point, Sequence[str]]:
    """Return what does not hold after a kill, by point of the story or of a sample of them."""
    with ExitStack() as until:
        stories = [tell(node_on(lane, nvml, until), lane.points) for lane in lanes]
        with ThreadPoolExecutor(len(stories)) as side_by_side:
            list(side_by_side.map(Story.arrange, stories))
            chosen = fault_points.sample(stories[0].every_point(), share=EFFORT)
            parts = [chosen[number :: len(stories)] for number in range(len(stories))]
            found = side_by_side.map(_told, stories, parts)
            return {point: broken for part in found for point, broken in part.items()}


def _told(story: Story, points: Sequence[Point]) -> Mapping[Point, Sequence[str]]:
    return {point: story.killed_at(point) for point in points}


def node_on(lane: Lane, nvml: Path, until: ExitStack) -> Node:
    """A node on which nothing runs yet; it is gone when the stack is left."""
    folder = until.enter_context(tempfile.TemporaryDirectory(prefix="tff-"))
    node = Node(Path(folder), lane.starter, nvml)
    lane.points.watch(node.root)
    until.callback(node.close)
    until.callback(lane.points.off)
    return node
