"""Folders on the host, which are removed with the last claim that uses them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.driver.recover import recover
from tests.support.enforced_node import EnforcedNode
from tests.support.prepared_node import GPU_0, GPU_1


@pytest.fixture
def node(tmp_path: Path) -> Iterator[EnforcedNode]:
    setup = EnforcedNode(tmp_path, "tensor-fusion")
    yield setup
    setup.ledger.close()


@pytest.fixture
def hami(tmp_path: Path) -> Iterator[EnforcedNode]:
    setup = EnforcedNode(tmp_path, "hami-core")
    yield setup
    setup.ledger.close()


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
    with hami.ledger.transaction() as step:
        step.remove(lost.uid)
    for folder in (hami.cdi_folder, hami.limits_folder):
        for path in folder.glob(f"*{lost.uid}*"):
            path.unlink()

    found = recover(hami.ledger, hami.projection, boot_id=hami.boot_id)

    assert found.claims_removed == 1
    assert list(cache_folder(hami, kept).parent.iterdir()) == [cache_folder(hami, kept)]


def test_recovery_removes_the_rest_of_a_large_folder(hami: EnforcedNode) -> None:
    ref = hami.prepare_for_pod("a", "trainer-0")
    for number in range(2500):
        (cache_folder(hami, ref) / f"{number}").touch()

    hami.unprepare(ref)
    assert not cache_folder(hami, ref).exists()
    for _ in range(3):
        recover(hami.ledger, hami.projection, boot_id=hami.boot_id)

    assert list(cache_folder(hami, ref).parent.iterdir()) == []
