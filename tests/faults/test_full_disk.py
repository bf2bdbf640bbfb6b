"""Full and read-only disks under the records, the CDI specs and the limits.

The disk errors are injected below the C library, which any user can do.
"""

import errno
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from tests.faults import invariants
from tests.faults.fault_points import FaultPoints
from tests.faults.node import Node, running

pytestmark = pytest.mark.sweep

START_BYTES = 8 * 4096

Break = Callable[[Path], AbstractContextManager[None]]

FOLDERS: Final[dict[str, Callable[[Node], Path]]] = {
    "claim store": lambda node: node.data_folder,
    "CDI spec": lambda node: node.cdi_folder,
    "limits": lambda node: node.limits_folder,
    "device metadata": lambda node: node.metadata_folder,
}


@pytest.fixture(params=[errno.ENOSPC, errno.EROFS], ids=["full", "read-only"])
def injected(request: pytest.FixtureRequest, points: FaultPoints) -> Break:
    """Return a context manager that makes a folder's disk full or read-only."""
    return partial(points.disk, error=request.param)


@pytest.mark.parametrize("what", FOLDERS)
def test_claims_fail_one_by_one_until_a_disk_error_ends_and_nothing_is_lost(
    node: Node, what: str, injected: Break
) -> None:
    folder = FOLDERS[what](node)
    a = node.claim("a", 0, vram="16Gi", vram_limit="60Gi")
    others = [node.claim(name, 0, vram="10Gi") for name in "bc"]
    error = f"{what} {folder}.*(No space left on device|Read-only file system)"
    with running(node):
        first = node.prepare(a)
        with injected(folder):
            refused = node.prepare(*others) or {}
            assert refused.keys() == {ref.uid for ref in others}
            assert all(re.search(error, str(answer)) for answer in refused.values()), refused
            assert node.prepare(a) == first

        admitted = node.prepare(a, *others) or {}
        assert [type(answer) for answer in admitted.values()] == [list] * 3, admitted
        assert invariants.violations(node) == []
        with injected(folder):
            assert node.unprepare(*others) is not None
        assert node.unprepare(a, *others) == dict.fromkeys((ref.uid for ref in (a, *others)), "")
        assert invariants.leftovers(node) == []


def test_claims_are_freed_on_a_full_disk_and_across_a_restart(
    node: Node, points: FaultPoints
) -> None:
    refs = [node.claim(name, 0, vram="8Gi", vram_limit="60Gi") for name in "abcdef"]
    with running(node):
        assert node.prepare(*refs) is not None
        with points.disk(node.data_folder, errno.ENOSPC):
            for ref in refs[:3]:
                assert node.unprepare(ref) == {ref.uid: ""}
    # Room for the sockets, on disks where they take any, and the cards; the store needs none.
    with points.disk(node.data_folder, errno.ENOSPC, room=START_BYTES), running(node):
        served = node.prepare(*refs[3:]) or {}
        assert [type(answer) for answer in served.values()] == [list] * 3, served
        for ref in refs[3:]:
            assert node.unprepare(ref) == {ref.uid: ""}
    assert invariants.leftovers(node) == []


def test_start_fails_with_the_reason_if_the_store_cannot_be_opened(
    node: Node, points: FaultPoints
) -> None:
    with running(node):
        pass

    with points.disk(node.data_folder, errno.EROFS):
        node.launch()
        assert node.wait() == 1

    assert re.search(f"claim store {node.data_folder}.*start_failed", node.log())
    with running(node):
        assert invariants.violations(node) == []


@pytest.mark.parametrize("what", [*FOLDERS][1:])
def test_start_without_room_for_files_serves_and_writes_them_at_the_next_prepare(
    node: Node, what: str, injected: Break
) -> None:
    a, folder = node.claim("a", 0, vram="16Gi"), FOLDERS[what](node)
    with running(node):
        first = node.prepare(a)
    for path in folder.iterdir():
        path.unlink()

    with injected(folder):
        node.start()
        refused = node.prepare(a) or {}

    assert f"{what} {folder}" in refused[a.uid]
    assert node.prepare(a) == first
    assert invariants.violations(node) == []
    assert node.end() == 0
