"""Folders on the host, which are removed with the last claim that uses them."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.driver.recover import Reconciler, recover
from tensorfusion_dra.state import folders
from tests.support.capabilities import give_to_a_container, without_capabilities
from tests.support.enforced_node import EnforcedNode
from tests.support.prepared_node import GPU_0, GPU_1, error_of, put_claim, share_result


@pytest.fixture
def node(tmp_path: Path) -> EnforcedNode:
    return EnforcedNode(tmp_path, "tensor-fusion")


@pytest.fixture
def hami(tmp_path: Path) -> EnforcedNode:
    return EnforcedNode(tmp_path, "hami-core")


@pytest.mark.parametrize("device", [GPU_0, GPU_1])
def test_pods_shared_memory_is_kept_until_its_last_claim_is_unprepared(
    node: EnforcedNode, device: str
) -> None:
    first, second = (
        node.prepare_for_pod("a", "trainer-0"),
        node.prepare_for_pod("b", "trainer-0", device),
    )
    other = node.prepare_for_pod("c", "trainer-01")
    folder = node.root / "shm" / "default" / "trainer-0"

    node.unprepare(first)
    between = folder.is_dir()
    node.unprepare(second)

    assert between
    assert not folder.exists()
    assert (node.root / "shm" / "default" / "trainer-01").is_dir()
    node.unprepare(other)


def cache_folder(node: EnforcedNode, ref: ClaimRef) -> Path:
    return node.root / "hami-core" / "claims" / ref.uid


def test_claims_folder_is_removed_with_all_files_that_containers_left(hami: EnforcedNode) -> None:
    first, second = hami.prepare_for_pod("a", "trainer-0"), hami.prepare_for_pod("b", "trainer-0")
    (cache_folder(hami, first) / "mine" / "deep").mkdir(parents=True)
    (cache_folder(hami, first) / "core.1234").write_text("left by a tenant")

    hami.unprepare(first)

    assert list(cache_folder(hami, first).parent.iterdir()) == [cache_folder(hami, second)]


def test_recovery_removes_the_folder_of_a_claim_without_a_record(hami: EnforcedNode) -> None:
    lost, kept = hami.prepare_for_pod("a", "trainer-0"), hami.prepare_for_pod("b", "trainer-1")
    with hami.store.transaction() as transaction:
        transaction.remove(lost.uid)
    for folder in (hami.cdi_folder, hami.limits_folder):
        for path in folder.glob(f"*{lost.uid}*"):
            path.unlink()

    found = recover(hami.store, hami.node_files, boot_id=hami.boot_id)

    assert found.claims_removed == 1
    assert list(cache_folder(hami, kept).parent.iterdir()) == [cache_folder(hami, kept)]


@pytest.fixture
def few_deletions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have fifteen files be more than an unprepare deletes."""
    monkeypatch.setattr(folders, "_MAX_AT_ONCE", 10)


@pytest.mark.usefixtures("few_deletions")
def test_recovery_removes_the_rest_of_a_large_folder(hami: EnforcedNode) -> None:
    ref = hami.prepare_for_pod("a", "trainer-0")
    for number in range(25):
        (cache_folder(hami, ref) / f"{number}").touch()

    hami.unprepare(ref)
    assert not cache_folder(hami, ref).exists()
    for _ in range(3):
        recover(hami.store, hami.node_files, boot_id=hami.boot_id)

    assert list(cache_folder(hami, ref).parent.iterdir()) == []


def test_next_pod_of_a_name_finds_nothing_of_the_one_before(node: EnforcedNode) -> None:
    folder = node.root / "shm" / "default" / "trainer-0"
    first = node.prepare_for_pod("a", "trainer-0")
    (folder / "shm").write_text("limits of the first pod")
    (folder / "mine").mkdir()

    node.unprepare(first)
    node.prepare_for_pod("b", "trainer-0")

    assert list(folder.iterdir()) == []
    assert list(folder.parent.iterdir()) == [folder]


def test_pod_that_was_deleted_by_force_keeps_its_folder_from_the_next_one(
    node: EnforcedNode,
) -> None:
    folder = node.root / "shm" / "default" / "trainer-0"
    first = node.prepare_for_pod("a", "trainer-0")
    (folder / "shm").write_text("limits of the first pod")
    second = put_claim(node, "b", share_result(tflops="1", vram="1Gi"))
    reserved = {"resource": "pods", "name": "trainer-0", "uid": "uid-of-the-next"}
    node.claims.stored[str(second)]["status"]["reservedFor"] = [reserved]

    error = error_of(node.prepare(second)[second.uid])
    node.unprepare(first)
    node.prepare(second)

    assert "found claim default/a of an earlier pod of this name still prepared" in error
    assert list(folder.iterdir()) == []


def locked_inside(folder: Path) -> None:
    (folder / "mine").mkdir()
    (folder / "mine" / "file").touch()
    give_to_a_container(folder / "mine", 0o700)


def locked_outside(folder: Path) -> None:
    (folder / "mine").touch()
    give_to_a_container(folder, 0o700)


@pytest.mark.usefixtures("few_deletions")
@pytest.mark.parametrize("enforcer", ["tensor-fusion", "hami-core"])
@pytest.mark.parametrize("lock", [locked_inside, locked_outside])
def test_folder_that_a_container_locked_harms_no_other_claim(
    tmp_path: Path, enforcer: str, lock: Callable[[Path], None]
) -> None:
    node = EnforcedNode(tmp_path, enforcer)
    refs = [node.prepare_for_pod(name, name) for name in ("a", "b", "c")]
    parent = node.root / ("shm/default" if enforcer == "tensor-fusion" else "hami-core/claims")
    first, second, third = sorted(parent.iterdir())
    for folder in (first, third):
        lock(folder)
        (folder / "file").touch()
    for number in range(15):
        (second / f"{number}").touch()

    with without_capabilities(), capture_logs() as logs:
        for ref in refs:
            assert node.unprepare(ref) == {ref.uid: None}
        for _ in range(2):
            Reconciler(node.store, node.node_files, boot_id=node.boot_id, seconds=60).begin()

    assert all(path.name.endswith(".removed") for path in parent.iterdir())
    assert len(list(parent.iterdir())) == 2
    lines = [each for each in logs if each["event"] == "claim_folders_left"]
    assert [each["folders"] for each in lines] == [2, 2]
    shutil.rmtree(parent)


def test_container_that_took_its_folder_does_not_fail_the_claims_next_prepare(
    node: EnforcedNode,
) -> None:
    ref = node.prepare_for_pod("a", "trainer-0")
    give_to_a_container(node.root / "shm" / "default" / "trainer-0", 0o700)

    with without_capabilities():
        again = node.prepare(ref)[ref.uid]

    assert isinstance(again, PreparedClaim)
