"""What the containers of a worker may do to its shared memory, with the rights that are shipped."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tests.support.capabilities import give_to_a_container, without_capabilities
from tests.support.prepared_node import share_result
from tests.support.worker_node import WorkerNode, worker_node


@pytest.fixture
def node(tmp_path: Path) -> Iterator[WorkerNode]:
    with worker_node(tmp_path) as found:
        yield found


def replaced_by_a_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()
    (file / "inner").write_text("")


def replaced_by_a_locked_folder(file: Path) -> None:
    replaced_by_a_folder(file)
    give_to_a_container(file, 0)


def taken_with_its_folder(file: Path) -> None:
    give_to_a_container(file.parent, 0o500)


def locked_with_its_folder(file: Path) -> None:
    give_to_a_container(file.parent, 0)


@pytest.mark.parametrize(
    ("spoil", "is_left"),
    [
        (replaced_by_a_folder, False),
        (replaced_by_a_locked_folder, True),
        (taken_with_its_folder, True),
        (locked_with_its_folder, True),
    ],
)
def test_no_file_of_a_container_keeps_its_share_or_its_name(
    node: WorkerNode, spoil: Callable[[Path], None], is_left: bool
) -> None:
    pod = node.pods.put("train")
    ref = node.put("train", share_result(vram="60Gi"))
    node.prepare(ref)
    namespace = node.hypervisor.file(pod).parents[1]
    spoil(node.hypervisor.file(pod))

    with without_capabilities():
        assert node.setup.unprepare(ref) == {ref.uid: None}
        assert not node.setup.ledger.claims()
        left = list(namespace.iterdir())

        again = node.put("train", share_result(vram="60Gi"), uid="uid-of-the-second-claim")
        assert isinstance(node.prepare(again), PreparedClaim)

    assert bool(left) is is_left
    for folder in left:
        shutil.rmtree(folder)
