"""Files with the metadata of devices: written with a claim, rebuilt, and removed with it."""

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.kubernetes.resource_claims import POD_CLAIM_ANNOTATION
from tensorfusion_dra.driver.publish import DeviceCatalog
from tensorfusion_dra.driver.recover import recover
from tests.support.builders.devices import NODE
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
from tests.support.waiting import PATIENCE_SECONDS


@pytest.fixture
def node(tmp_path: Path) -> Setup:
    return Setup(tmp_path, describes_devices=True)


def files(node: Setup) -> dict[str, bytes]:
    """Return the content of every file in the folder, hidden ones too."""
    if not node.metadata_folder.exists():
        return {}
    return {path.name: path.read_bytes() for path in sorted(node.metadata_folder.iterdir())}


def objects(node: Setup, ref: ClaimRef, request: str = "gpu") -> list[Any]:
    text = (node.metadata_folder / f"{ref.uid}_{request}.json").read_text()
    return [json.loads(line) for line in text.splitlines()]


def mount_sources(node: Setup, ref: ClaimRef) -> list[str]:
    """Return the host paths that the claim's spec mounts from the folder."""
    spec = node.spec_of(ref)
    edits = [device["containerEdits"] for device in spec["devices"]]
    mounts = [mount["hostPath"] for edit in edits for mount in edit.get("mounts", ())]
    return [path for path in mounts if path.startswith(str(node.metadata_folder))]


def use_attributes(node: Setup, provider: Callable[..., Mapping[str, Any]]) -> None:
    """Have another package's provider give attributes to the node's devices."""
    providers = attribute_providers({"x": provider})
    node.use(catalog=DeviceCatalog(node.discovery, NODE, providers=providers))
    node.catalog.refresh()


def test_a_prepared_claim_has_a_file_for_each_request_that_its_spec_mounts(node: Setup) -> None:
    ref = put_claim(
        node, "a", share_result(GPU_0, request="one"), share_result(GPU_1, request="two/small")
    )

    node.prepared(ref)

    assert sorted(files(node)) == [f"{ref.uid}_one.json", f"{ref.uid}_two.json"]
    assert sorted(mount_sources(node, ref)) == [str(node.metadata_folder / n) for n in files(node)]
    (request,) = objects(node, ref, "two")[0]["requests"]
    assert request["name"] == "two/small"
    assert request["devices"][0]["name"] == GPU_1
    assert [(node.metadata_folder / name).stat().st_mode & 0o777 for name in files(node)] == [
        0o644,
        0o644,
    ]


def test_an_annotation_that_would_leave_the_folder_fails_only_its_own_claim(node: Setup) -> None:
    evil = put_annotated_claim(node, "evil", {POD_CLAIM_ANNOTATION: "../../../../etc"})
    good = put_claim(node, "good", share_result(GPU_1))

    outcome = node.prepare(evil, good)

    assert "found '../../../../etc', expected the name" in error_of(outcome[evil.uid])
    assert isinstance(outcome[good.uid], PreparedClaim)
    assert sorted(files(node)) == [f"{good.uid}_gpu.json"]


def test_nothing_is_left_after_the_claims(node: Setup) -> None:
    refs = [put_claim(node, name, share_result(tflops="1", vram="1Gi")) for name in "abc"]
    node.prepare(*refs)
    assert len(files(node)) == 3

    node.unprepare(*refs[:1])
    assert sorted(files(node)) == sorted(f"{ref.uid}_gpu.json" for ref in refs[1:])
    node.unprepare(*refs)

    assert files(node) == {}


def test_attributes_that_change_later_change_no_file(node: Setup) -> None:
    temperature = iter(range(100))
    use_attributes(node, lambda *_: {"example.com/t": next(temperature)})
    ref = put_claim(node, "a", share_result())
    node.prepared(ref)
    before = files(node)

    devices = node.catalog.current()
    node.catalog.refresh()
    assert node.catalog.current() != devices
    node.prepared(ref)

    assert recover(node.store, node.node_files, boot_id=node.boot_id).files_written == 0
    assert files(node) == before


def test_after_a_reboot_a_file_has_the_attributes_of_that_day(node: Setup) -> None:
    ref = put_claim(node, "a", share_result())
    node.prepared(ref)
    old = objects(node, ref)[0]
    node.boot_id = "boot-2"
    after = node.restarted()
    use_attributes(after, lambda *_: {"example.com/new": True})

    after.preparer.refresh(ref, deadline=time.monotonic() + PATIENCE_SECONDS)

    new = objects(after, ref)[0]
    assert (old["metadata"]["generation"], new["metadata"]["generation"]) == (1, 2)
    (device,) = new["requests"][0]["devices"]
    assert device["attributes"]["example.com/new"] == {"bool": True}
    after.preparer.refresh(ref, deadline=time.monotonic() + PATIENCE_SECONDS)
    assert objects(after, ref)[0] == new


def test_recovery_writes_missing_files_and_removes_those_without_a_record(node: Setup) -> None:
    ref = put_claim(node, "a", share_result())
    node.prepared(ref)
    before = files(node)
    for path in node.metadata_folder.iterdir():
        path.unlink()
    unfinished = f".{ref.uid}_gpu.json.0a1b2c3d-7-0.tmp"
    # A claim without a UID would have the folder of all claims for its own.
    others = ("_one.json", "not a uid_one.json", "notes.txt")
    for name in ("uid-gone_one.json", "uid-gone_two.json", unfinished, *others):
        (node.metadata_folder / name).touch()

    found = recover(node.store, node.node_files, boot_id=node.boot_id)

    assert (found.files_written, found.claims_removed, found.reasons) == (1, 1, {})
    assert files(node) == before | dict.fromkeys(others, b"")


def test_the_setting_applies_to_claims_prepared_from_then_on(tmp_path: Path) -> None:
    off = Setup(tmp_path)
    before = put_claim(off, "before", share_result(tflops="1", vram="1Gi"))
    off.prepared(before)
    assert files(off) == {}
    off.describes_devices = True
    on = off.restarted()
    during = put_claim(on, "during", share_result(tflops="1", vram="1Gi"))

    on.prepared(before)
    on.prepared(during)

    assert list(files(on)) == [f"{during.uid}_gpu.json"]
    assert mount_sources(on, before) == []

    on.describes_devices = False
    off_again = on.restarted()
    after = put_claim(off_again, "after", share_result(tflops="1", vram="1Gi"))
    off_again.prepared(during)
    off_again.prepared(after)

    # A container of the claim may start again, and its spec mounts the file.
    assert list(files(off_again)) == [f"{during.uid}_gpu.json"]
    assert len(mount_sources(off_again, during)) == 1
    off_again.unprepare(during)
    assert files(off_again) == {}
