"""Full and read-only disks under the records, the CDI specs and the limits.

The disk errors are injected below the C library, which any user can do.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.faults import invariants
from tests.faults.fault_points import FaultPoints
from tests.faults.node import Node, running

pytestmark = pytest.mark.sweep

REASONS = ("No space left on device", "Read-only file system")

START_BYTES = 8 * 4096

Break = Callable[[Path], AbstractContextManager[None]]


def folder_of(node: Node, what: str) -> Path:
    return {
        "claim store": node.data_folder,
        "CDI spec": node.cdi_folder,
        "limits": node.limits_folder,
        "device metadata": node.metadata_folder,
    }[what]


@pytest.fixture(params=["full", "read_only"])
def injected(request: pytest.FixtureRequest, points: FaultPoints) -> Break:
    """Return a context manager that makes a folder's disk full or read-only."""
    return points.full if request.param == "full" else points.read_only


@pytest.mark.parametrize("what", ["claim store", "CDI spec", "limits", "device metadata"])
def test_claims_fail_one_by_one_until_a_disk_error_ends_and_nothing_is_lost(
    node: Node, what: str, injected: Break
) -> None:
    folder = folder_of(node, what)
    a = node.claim("a", 0, vram="16Gi", vram_limit="60Gi")
    others = [node.claim(name, 0, vram="10Gi") for name in "bc"]
    with running(node):
        first = node.prepare(a)
        with injected(folder):
            refused = node.prepare(*others)
            again = node.prepare(a)

        assert refused is not None
        assert refused.keys() == {ref.uid for ref in others}
        for error in refused.values():
            assert isinstance(error, str), f"acknowledged: {error}"
            assert f"{what} {folder}" in error
            assert any(reason in error for reason in REASONS), error
        assert again == first
        admitted = node.prepare(a, *others)
        assert admitted is not None
        assert not any(isinstance(answer, str) for answer in admitted.values()), admitted
        assert invariants.violations(node) == []
        with injected(folder):
            while_broken = node.unprepare(*others)
        assert while_broken is not None
        assert node.unprepare(a, *others) == dict.fromkeys([a.uid, *(o.uid for o in others)], "")
        assert invariants.leftovers(node) == []


def test_claims_are_freed_on_a_full_disk_and_across_a_restart(
    node: Node, points: FaultPoints
) -> None:
    refs = [node.claim(name, 0, vram="8Gi", vram_limit="60Gi") for name in "abcdef"]
    with running(node):
        assert node.prepare(*refs) is not None
        with points.full(node.data_folder):
            for ref in refs[:3]:
                assert node.unprepare(ref) == {ref.uid: ""}
    # Room for the sockets, on disks where they take any, and the cards; the store needs none.
    with points.full(node.data_folder, room=START_BYTES), running(node):
        served = node.prepare(*refs[3:])
        assert served is not None
        assert not any(isinstance(answer, str) for answer in served.values()), served
        for ref in refs[3:]:
            assert node.unprepare(ref) == {ref.uid: ""}
    assert invariants.leftovers(node) == []


def test_start_fails_with_the_reason_if_the_store_cannot_be_opened(
    node: Node, points: FaultPoints
) -> None:
    with running(node):
        pass

    with points.read_only(node.data_folder):
        node.launch()
        code = node.wait()

    assert code == 1
    assert "start_failed" in node.log()
    assert f"claim store {node.data_folder}" in node.log()
    with running(node):
        assert invariants.violations(node) == []


@pytest.mark.parametrize("what", ["CDI spec", "limits", "device metadata"])
def test_start_without_room_for_files_serves_and_writes_them_at_the_next_prepare(
    node: Node, what: str, injected: Break
) -> None:
    a = node.claim("a", 0, vram="16Gi")
    with running(node):
        first = node.prepare(a)
    for path in folder_of(node, what).iterdir():
        path.unlink()

    with injected(folder_of(node, what)):
        node.start()
        refused = node.prepare(a)
    with_room = node.prepare(a)

    assert refused is not None
    assert f"{what} {folder_of(node, what)}" in refused[a.uid]
    assert with_room == first
    assert invariants.violations(node) == []
    assert node.end() == 0
