"""Folders and device metadata of claims: written, rebuilt, and removed with their last claim."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.kubernetes.resource_claims import POD_CLAIM_ANNOTATION
from tensorfusion_dra.driver.publish import CatalogBuilder
from tensorfusion_dra.driver.recover import Reconciler
from tensorfusion_dra.state import folders
from tests.support.builders.devices import NODE
from tests.support.capabilities import give_to_a_container, without_capabilities
from tests.support.enforced_node import EnforcedNode
from tests.support.logs import capture_logs
from tests.support.prepared_node import (
    GPU_0,
    GPU_1,
    Setup,
    error_of,
    put_annotated_claim,
    put_claim,
    share_result,
)
from tests.support.third_party import attribute_providers


@pytest.fixture
def node(tmp_path: Path) -> EnforcedNode:
    return EnforcedNode(tmp_path, "tensor-fusion")


@pytest.fixture
def folder(node: EnforcedNode) -> Path:
    """The folder with the shared memory of pod `trainer-0`."""
    return node.root / "shm" / "default" / "trainer-0"


@pytest.fixture
def hami(tmp_path: Path) -> EnforcedNode:
    return EnforcedNode(tmp_path, "hami-core")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("device", [GPU_0, GPU_1])
def test_pods_shared_memory_is_kept_until_its_last_claim_is_unprepared(
    node: EnforcedNode, folder: Path, device: str
) -> None:
    first = node.prepare_for_pod("a", "trainer-0")
    second = node.prepare_for_pod("b", "trainer-0", device)
    node.prepare_for_pod("c", "trainer-01")
    seen = []
    for ref in (first, second):
        node.unprepare(ref)
        seen.append(names(folder.parent))

    assert seen == [["trainer-0", "trainer-01"], ["trainer-01"]]


def caches(node: EnforcedNode) -> Path:
    """Return the folder with a folder for each claim."""
    return node.root / "hami-core" / "claims"


def test_claims_folder_is_removed_with_all_files_that_containers_left(hami: EnforcedNode) -> None:
    first, second = hami.prepare_for_pod("a", "trainer-0"), hami.prepare_for_pod("b", "trainer-0")
    (caches(hami) / first.uid / "mine" / "deep").mkdir(parents=True)
    (caches(hami) / first.uid / "core.1234").write_text("left by a tenant")

    hami.unprepare(first)

    assert names(caches(hami)) == [second.uid]


def test_recovery_removes_the_folder_of_a_claim_without_a_record(hami: EnforcedNode) -> None:
    lost, kept = hami.prepare_for_pod("a", "trainer-0"), hami.prepare_for_pod("b", "trainer-1")
    with hami.store.transaction() as transaction:
        transaction.remove(lost.uid)
    for files in (hami.cdi_folder, hami.limits_folder):
        (path,) = files.glob(f"*{lost.uid}*")
        path.unlink()

    assert hami.recover().claims_removed == 1
    assert names(caches(hami)) == [kept.uid]


@pytest.fixture
def few_deletions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have fifteen files be more than an unprepare deletes."""
    monkeypatch.setattr(folders, "_MAX_AT_ONCE", 10)


@pytest.mark.usefixtures("few_deletions")
def test_recovery_removes_the_rest_of_a_large_folder(hami: EnforcedNode) -> None:
    ref = hami.prepare_for_pod("a", "trainer-0")
    for number in range(25):
        (caches(hami) / ref.uid / f"{number}").touch()

    hami.unprepare(ref)
    assert ref.uid not in names(caches(hami))
    for _ in range(3):
        hami.recover()

    assert names(caches(hami)) == []


def test_next_pod_of_a_name_finds_nothing_of_the_one_before(
    node: EnforcedNode, folder: Path
) -> None:
    first = node.prepare_for_pod("a", "trainer-0")
    (folder / "shm").write_text("limits of the first pod")
    (folder / "mine").mkdir()

    node.unprepare(first)
    node.prepare_for_pod("b", "trainer-0")

    assert (names(folder), names(folder.parent)) == ([], ["trainer-0"])


def test_pod_that_was_deleted_by_force_keeps_its_folder_from_the_next_one(
    node: EnforcedNode, folder: Path
) -> None:
    first = node.prepare_for_pod("a", "trainer-0")
    (folder / "shm").write_text("limits of the first pod")
    second = put_claim(node, "b", share_result(tflops="1", vram="1Gi"), pods=["trainer-0"])
    (pod,) = node.claims.stored[str(second)]["status"]["reservedFor"]
    pod["uid"] = "uid-of-the-next"

    assert "found claim default/a of an earlier pod of this name still prepared" in node.refused(
        second
    )
    node.unprepare(first)
    node.prepared(second)
    assert names(folder) == []


def locked_inside(folder: Path) -> None:
    (folder / "mine").mkdir()
    (folder / "mine" / "file").touch()
    give_to_a_container(folder / "mine", 0o700)


def locked_outside(folder: Path) -> None:
    (folder / "mine").touch()
    give_to_a_container(folder, 0o700)


@pytest.mark.usefixtures("few_deletions")
@pytest.mark.parametrize(
    ("enforcer", "path"), [("tensor-fusion", "shm/default"), ("hami-core", "hami-core/claims")]
)
@pytest.mark.parametrize("lock", [locked_inside, locked_outside])
def test_folder_that_a_container_locked_harms_no_other_claim(
    tmp_path: Path, enforcer: str, path: str, lock: Callable[[Path], None]
) -> None:
    node = EnforcedNode(tmp_path, enforcer)
    refs = [node.prepare_for_pod(name, name) for name in ("a", "b", "c")]
    first, second, third = sorted((node.root / path).iterdir())
    for folder in (first, third):
        lock(folder)
        (folder / "file").touch()
    for number in range(15):
        (second / f"{number}").touch()

    with without_capabilities(), capture_logs() as logs:
        assert node.unprepare(*refs) == {ref.uid: None for ref in refs}
        for _ in range(2):
            Reconciler(node.store, node.node_files, boot_id=node.boot_id, seconds=60).begin()

    assert [name.endswith(".removed") for name in names(node.root / path)] == [True, True]
    assert [each["folders"] for each in logs if each["event"] == "claim_folders_left"] == [2, 2]
    shutil.rmtree(node.root / path)


def test_container_that_took_its_folder_does_not_fail_the_claims_next_prepare(
    node: EnforcedNode, folder: Path
) -> None:
    ref = node.prepare_for_pod("a", "trainer-0")
    give_to_a_container(folder, 0o700)

    with without_capabilities():
        node.prepared(ref)


# Device metadata


@pytest.fixture
def describing(tmp_path: Path) -> Setup:
    """A node whose claims get files with the metadata of their devices."""
    return Setup(tmp_path, describes_devices=True)


def metadata(node: Setup) -> dict[str, bytes]:
    """Return the content of every file in the folder, hidden ones too."""
    folder = node.metadata_folder
    return {path.name: path.read_bytes() for path in folder.iterdir()} if folder.exists() else {}


def newest(node: Setup, ref: ClaimRef, request: str = "gpu") -> Any:
    """Return the object for the newest version of the API."""
    text = (node.metadata_folder / f"{ref.uid}_{request}.json").read_text()
    return json.loads(text.splitlines()[0])


def mounted(node: Setup, ref: ClaimRef) -> set[str]:
    """Return the names of the files in the folder that the claim's spec mounts."""
    edits = [device["containerEdits"] for device in node.spec_of(ref)["devices"]]
    paths = [Path(mount["hostPath"]) for edit in edits for mount in edit.get("mounts", ())]
    return {path.name for path in paths if path.parent == node.metadata_folder}


def use_attributes(node: Setup, provider: Callable[..., Mapping[str, Any]]) -> None:
    """Have another package's provider give attributes to the node's devices."""
    providers = attribute_providers({"x": provider})
    node.use(cards=CatalogBuilder(node.discovery, NODE, providers=providers))
    node.cards.refresh()


def put_small(node: Setup, *names: str) -> list[ClaimRef]:
    return [put_claim(node, name, share_result(tflops="1", vram="1Gi")) for name in names]


def test_prepared_claim_has_a_file_for_each_request_that_its_spec_mounts(describing: Setup) -> None:
    results = share_result(GPU_0, request="one"), share_result(GPU_1, request="two/small")
    ref = put_claim(describing, "a", *results)

    describing.prepared(ref)

    files = {f"{ref.uid}_one.json", f"{ref.uid}_two.json"}
    assert metadata(describing).keys() == mounted(describing, ref) == files
    (request,) = newest(describing, ref, "two")["requests"]
    assert (request["name"], request["devices"][0]["name"]) == ("two/small", GPU_1)
    assert {path.stat().st_mode & 0o777 for path in describing.metadata_folder.iterdir()} == {0o644}


def test_annotation_that_would_leave_the_folder_fails_only_its_own_claim(describing: Setup) -> None:
    evil = put_annotated_claim(describing, "evil", {POD_CLAIM_ANNOTATION: "../../../../etc"})
    good = put_claim(describing, "good", share_result(GPU_1))

    outcome = describing.prepare(evil, good)

    assert "found '../../../../etc', expected the name" in error_of(outcome[evil.uid])
    assert isinstance(outcome[good.uid], PreparedClaim)
    assert list(metadata(describing)) == [f"{good.uid}_gpu.json"]


def test_nothing_is_left_after_the_claims(describing: Setup) -> None:
    refs = put_small(describing, "a", "b", "c")
    describing.prepare(*refs)
    seen = [metadata(describing).keys()]
    for each in (refs[:1], refs):
        describing.unprepare(*each)
        seen.append(metadata(describing).keys())

    files = [f"{ref.uid}_gpu.json" for ref in refs]
    assert seen == [{*files}, {*files[1:]}, set()]


def test_attributes_that_change_later_change_no_file_until_a_reboot(describing: Setup) -> None:
    temperature = iter(range(100))
    use_attributes(describing, lambda *_: {"example.com/t": next(temperature)})
    (ref,) = put_small(describing, "a")
    describing.prepared(ref)
    before, old = metadata(describing), newest(describing, ref)

    devices = describing.catalog.current()
    describing.cards.refresh()
    assert describing.catalog.current() != devices
    describing.prepared(ref)
    assert (describing.recover().files_written, metadata(describing)) == (0, before)

    describing.boot_id = "boot-2"
    after = describing.restarted()
    use_attributes(after, lambda *_: {"example.com/new": True})
    for _ in range(2):
        after.refresh(ref)

        new = newest(after, ref)
        assert [each["metadata"]["generation"] for each in (old, new)] == [1, 2]
        (device,) = new["requests"][0]["devices"]
        assert device["attributes"]["example.com/new"] == {"bool": True}


def test_recovery_writes_missing_files_and_removes_those_without_a_record(
    describing: Setup,
) -> None:
    (ref,) = put_small(describing, "a")
    describing.prepared(ref)
    before = metadata(describing)
    (describing.metadata_folder / f"{ref.uid}_gpu.json").unlink()
    unfinished = f".{ref.uid}_gpu.json.0a1b2c3d-7-0.tmp"
    # A claim without a UID would have the folder of all claims for its own.
    others = ("_one.json", "not a uid_one.json", "notes.txt")
    for name in ("uid-gone_one.json", "uid-gone_two.json", unfinished, *others):
        (describing.metadata_folder / name).touch()

    found = describing.recover()

    assert (found.files_written, found.claims_removed, found.reasons) == (1, 1, {})
    assert metadata(describing) == before | dict.fromkeys(others, b"")


def test_the_setting_applies_to_claims_prepared_from_then_on(tmp_path: Path) -> None:
    node = Setup(tmp_path)
    before, during, after = put_small(node, "before", "during", "after")
    node.prepared(before)
    assert metadata(node) == {}
    for describes, new in ((True, during), (False, after)):
        node.describes_devices = describes
        node = node.restarted()
        for ref in (before, during, new):
            node.prepared(ref)

        # A container of `during` may start again without the setting, and its spec mounts the file.
        assert metadata(node).keys() == mounted(node, during) == {f"{during.uid}_gpu.json"}
        assert mounted(node, before) == set()

    node.unprepare(during)
    assert metadata(node) == {}
