"""kill -9 of the node plugin at every durable step, one run for each step.

After the restart, every acknowledged claim is recorded, every record has exactly its files, no
other files exist, no card is over-committed, the slices are published, and repeated calls of the
kubelet get the same answers as before.
"""

import os
import re
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims.claim import ClaimRef
from tests.faults.fault_points import FaultPoints
from tests.faults.node import Node
from tests.faults.stories import BY_THE_CLOCK, Lane, Story, StoryOf, arranged, killed
from tests.support.forks import Commands
from tests.support.tally import POINTS_KILLED, Tally

CHANGE = re.compile(r"after (rename to|unlink) (\S*/plugins/\S*/claims/\S*\.(?:new|json))")
PROJECTED = re.compile(r"after sync (/cdi|/tf/claims)(/.*)?")
SLICE = "tensor-fusion-resource-slice-node-01"


def first_start(node: Node, points: FaultPoints) -> Story:
    """Start without records, sockets and slices."""

    def disturb() -> None:
        for folder in (node.kubelet_root, node.limits_folder):
            shutil.rmtree(folder, ignore_errors=True)

    return Story(node=node, points=points, disturb=disturb, reset=lambda: node.put_slices({}))


def two_claims(node: Node) -> tuple[ClaimRef, ClaimRef]:
    """Create a claim to which memory is lent, and one whose request takes it back."""
    return (
        node.claim("a", 0, vram="16Gi", vram_limit="60Gi"),
        node.claim("b", 0, vram="30Gi"),
    )


def start_that_recovers(node: Node, points: FaultPoints) -> Story:
    """Start with files, records and slices that do not match, as after a reboot and a crash."""
    a, b = two_claims(node)

    def spec(uid: str) -> Path:
        return node.cdi_folder / f"{names.CDI_FILE_PREFIX}{uid}.json"

    def disturb() -> None:
        spec(a.uid).unlink()
        spec(b.uid).write_bytes(spec(b.uid).read_bytes()[:100])
        spec("gone").touch()
        (node.cdi_folder / f".{spec('gone').name}.x1y2z3a4.tmp").touch()
        (node.limits_folder / "gone.json").touch()
        (node.metadata_folder / "gone_gpu.json").touch()
        (node.metadata_folder / f"{a.uid}_gpu.json").unlink()
        (node.metadata_folder / f"{b.uid}_gpu.json").write_text("{")
        (node.limits_folder / f"{b.uid}.json").unlink()
        (node.tensor_fusion_root / "shm" / "default" / a.uid).rmdir()

    def reset() -> None:
        """Store an old slice with one of the cards, and a slice that is no longer needed."""
        (old,) = (item["spec"] for item in node.slices() if item["metadata"]["name"] == SLICE)
        old["pool"] |= {"generation": 3, "resourceSliceCount": 2}
        old["devices"] = old["devices"][:1]
        node.put_slices({SLICE: old, f"{SLICE}-1": old})

    return Story(
        node=node,
        points=points,
        refs=(a, b),
        before=lambda story: story.prepare(a, b),
        disturb=disturb,
        reset=reset,
    )


def prepare(node: Node, points: FaultPoints) -> Story:
    """Prepare a second claim, whose request takes back memory lent to the first one."""
    a, b = two_claims(node)
    return Story(
        node=node,
        points=points,
        refs=(a, b),
        before=lambda story: story.prepare(a),
        act=lambda story: story.prepare(b),
    )


def prepare_again(node: Node, points: FaultPoints) -> Story:
    """Prepare a claim again whose files were deleted while the plugin ran."""
    a = node.claim("a", 0, vram="16Gi")

    def act(story: Story) -> None:
        for folder in (node.cdi_folder, node.limits_folder, node.metadata_folder):
            for path in folder.iterdir():
                path.unlink()
        story.prepare(a)

    return Story(
        node=node, points=points, refs=(a,), before=lambda story: story.prepare(a), act=act
    )


def unprepare(node: Node, points: FaultPoints) -> Story:
    """Unprepare the second claim, whose memory is lent to the first one again."""
    a, b = two_claims(node)
    return Story(
        node=node,
        points=points,
        refs=(a, b),
        before=lambda story: story.prepare(a, b),
        act=lambda story: story.unprepare(b),
        # The status of its prepare is written in the first idle moment, perhaps before.
        by_the_clock=(*BY_THE_CLOCK, "/b/status"),
    )


def stop(node: Node, points: FaultPoints) -> Story:
    """Stop the plugin with SIGTERM; it is killed during its shutdown."""
    a = node.claim("a", 0, vram="16Gi")
    return Story(
        node=node,
        points=points,
        refs=(a,),
        before=lambda story: story.prepare(a),
        act=lambda _: os.kill(node.pid, signal.SIGTERM),
        # The claim's status is written in the first idle moment: before the signal or after it.
        by_the_clock=(*BY_THE_CLOCK, "/status"),
    )


@pytest.mark.sweep
@pytest.mark.parametrize(
    "story_of",
    [first_start, start_that_recovers, prepare, prepare_again, unprepare, stop],
    ids=lambda story_of: str(story_of.__name__),
)
def test_kill_at_any_step_loses_nothing_and_leaves_nothing_behind(
    story_of: StoryOf, lanes: Sequence[Lane], nvml: Path, tally: Tally
) -> None:
    found = killed(lanes, nvml, story_of)

    assert {str(point): broken for point, broken in found.items() if broken} == {}
    tally[POINTS_KILLED] += len(found)


@pytest.mark.process
def test_plugin_started_by_its_command_line_takes_the_same_steps_and_recovers(
    lanes: Sequence[Lane], nvml: Path, tally: Tally
) -> None:
    forking = lanes[0]
    with arranged(forking, nvml, start_that_recovers) as story:
        expected = story.steps()
    commands = Lane(forking.points, Commands(forking.points.environment))
    with arranged(commands, nvml, start_that_recovers) as story:
        assert sorted(story.steps()) == sorted(expected)
        for name in ("before rename to /cdi/", "after request PUT "):
            point = next(point for point in expected if point.name.startswith(name))
            assert story.killed_at(point) == ()
            tally[POINTS_KILLED] += 1


@pytest.mark.sweep
@pytest.mark.parametrize(
    "story_of", [prepare, unprepare], ids=lambda story_of: str(story_of.__name__)
)
def test_acknowledged_changes_would_survive_a_power_cut(
    story_of: StoryOf, lanes: Sequence[Lane], nvml: Path
) -> None:
    with arranged(lanes[0], nvml, story_of) as story:
        # Without requests: another thread reports to the API server at the same time.
        names = [point.name for point in story.steps() if " request " not in point.name]

    changes = [
        (index, found) for index, name in enumerate(names) if (found := CHANGE.fullmatch(name))
    ]
    assert changes
    for index, found in changes:
        step, path = found.groups()
        # A sync of the file makes its content durable, a sync of the folder its name. That a record
        # has its last name need not be durable (state/claim_store.py).
        if step == "rename to" and path.endswith(".json"):
            assert f"after sync {path.removesuffix('.json')}.new" in names[:index]
            continue
        synced = {str(Path(path).parent), *([path] if step == "rename to" else [])}
        assert {f"after sync {each}" for each in synced} <= {*names[index:]}, names[index]
    # The claims' files follow from the records, so no call waits for them (docs/adr/0055).
    assert not any(map(PROJECTED.fullmatch, names))
