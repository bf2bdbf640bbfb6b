"""Folders on the host go with the last claim that uses them, and not before."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.enforcers.hami_core import HamiCore
from tensorfusion_dra.core.claims.enforcers.tensor_fusion import TensorFusion
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.driver.projection import Projection
from tensorfusion_dra.driver.recover import recover
from tensorfusion_dra.state import claim_files
from tensorfusion_dra.state.host_files import HostFiles
from tests.support.prepared_node import GPU_0, GPU_1, Setup, on_real_cards, put, share


class Node(Setup):
    """A node whose host's folders are real ones."""

    def __init__(self, folder: Path, enforcer: str) -> None:
        super().__init__(folder)
        self.root = folder / "run"
        for file in ("libcuda_limiter.so", "libvgpu.so.1", "ld.so.preload"):
            self.root.mkdir(exist_ok=True)
            (self.root / file).touch()
        self.enforcers["tensor-fusion"] = TensorFusion(root=str(self.root))
        self.enforcers["hami-core"] = HamiCore(
            library=str(self.root / "libvgpu.so.1"),
            preload=str(self.root / "ld.so.preload"),
            root=str(self.root / "hami-core"),
        )
        self.enforcer = self.enforcers[enforcer]
        self.projection = Projection(
            claim_files.cdi_specs(self.cdi_folder),
            claim_files.limits(self.limits_folder),
            HostFiles(),
            self.enforcers,
        )
        on_real_cards(self)
        self.preparer = self.with_claims(self.claims)

    def of_pod(self, name: str, pod: str, device: str = GPU_0) -> ClaimRef:
        ref = put(self, name, share(device, tflops="1", vram="1Gi"))
        reserved = [{"resource": "pods", "name": pod, "uid": f"uid-of-{pod}"}]
        self.claims.stored[str(ref)]["status"]["reservedFor"] = reserved
        assert isinstance(self.prepare(ref)[ref.uid], PreparedClaim)
        return ref


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    setup = Node(tmp_path, "tensor-fusion")
    yield setup
    setup.ledger.close()


@pytest.fixture
def hami(tmp_path: Path) -> Iterator[Node]:
    setup = Node(tmp_path, "hami-core")
    yield setup
    setup.ledger.close()


@pytest.mark.parametrize("device", [GPU_0, GPU_1])
def test_a_pods_shared_memory_stays_until_its_last_claim_is_unprepared(
    node: Node, device: str
) -> None:
    first, second = node.of_pod("a", "trainer-0"), node.of_pod("b", "trainer-0", device)
    other = node.of_pod("c", "trainer-01")
    folder = node.root / "shm" / "default" / "trainer-0"

    node.unprepare(first)
    between = folder.is_dir()
    node.unprepare(second)

    assert between
    assert not folder.exists()
    assert (node.root / "shm" / "default" / "trainer-01").is_dir()
    node.unprepare(other)


def caches(node: Node, ref: ClaimRef) -> Path:
    return node.root / "hami-core" / "claims" / ref.uid


def test_a_claims_own_folder_goes_with_everything_that_containers_left_in_it(hami: Node) -> None:
    first, second = hami.of_pod("a", "trainer-0"), hami.of_pod("b", "trainer-0")
    (caches(hami, first) / "mine" / "deep").mkdir(parents=True)
    (caches(hami, first) / "core.1234").write_text("left by a tenant")

    hami.unprepare(first)

    assert list(caches(hami, first).parent.iterdir()) == [caches(hami, second)]


def test_a_folder_whose_claim_has_no_record_any_more_goes_with_the_next_look(hami: Node) -> None:
    lost, held = hami.of_pod("a", "trainer-0"), hami.of_pod("b", "trainer-1")
    with hami.ledger.transaction() as step:
        step.remove(lost.uid)
    for folder in (hami.cdi_folder, hami.limits_folder):
        for path in folder.glob(f"*{lost.uid}*"):
            path.unlink()

    found = recover(hami.ledger, hami.projection, boot_id=hami.boot_id)

    assert found.claims_removed == 1
    assert list(caches(hami, held).parent.iterdir()) == [caches(hami, held)]


def test_what_is_left_of_a_large_folder_goes_with_later_looks(hami: Node) -> None:
    ref = hami.of_pod("a", "trainer-0")
    for number in range(2500):
        (caches(hami, ref) / f"{number}").touch()

    hami.unprepare(ref)
    assert not caches(hami, ref).exists()
    for _ in range(3):
        recover(hami.ledger, hami.projection, boot_id=hami.boot_id)

    assert list(caches(hami, ref).parent.iterdir()) == []
