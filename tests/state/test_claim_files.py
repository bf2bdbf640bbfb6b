"""The folders of CDI specs and limits: one file per claim, next to files of other programs."""

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tensorfusion_dra.core.claims import cdi, limits_document
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.state import claim_files
from tests.support.builders.allocations import allocation
from tests.support.builders.claims import fitted_claim
from tests.support.builders.gpus import gpu
from tests.support.builders.nodes import ENFORCER, node_offer
from tests.support.disk import read_only

NODE = node_offer(gpu())
(DEVICE,) = NODE.devices
UID = "uid-a"
FILE = "tensor-fusion.ai-vgpu_uid-a.json"


@pytest.fixture
def narrow_umask() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


def spec(number: int = 1) -> dict[str, Any]:
    found = cdi.spec(fitted_claim("a", allocation(DEVICE, number), on=NODE), ENFORCER)
    assert found is not None
    return found


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_spec_is_written_under_the_claims_uid(tmp_path: Path) -> None:
    specs = claim_files.cdi_specs(tmp_path)

    assert specs.ensure(UID, spec())

    assert names(tmp_path) == [FILE]
    assert json.loads((tmp_path / FILE).read_text()) == spec()
    assert specs.claim_uids() == {UID}


def test_claim_uids_are_derived_from_file_names(tmp_path: Path) -> None:
    others = ["nvidia.yaml", FILE.replace("json", "yaml"), f"{FILE}.tmp", f".{FILE}"]
    for name in (FILE, "tensor-fusion.ai-other_uid-1.json", ".json", *others):
        (tmp_path / name).touch()

    assert claim_files.cdi_specs(tmp_path).claim_uids() == {UID}


@pytest.mark.usefixtures("narrow_umask")
def test_limits_are_readable_for_all_and_writable_for_none(tmp_path: Path) -> None:
    document = limits_document.document(fitted_claim("a", allocation(DEVICE, 1), on=NODE))
    assert document is not None
    folder = tmp_path / "limits"
    limits = claim_files.limits(folder)

    assert limits.ensure(UID, document)
    assert not limits.ensure(UID, document)
    assert limits.ensure(UID, {**document, "enforcer": "other"})

    assert names(folder) == ["uid-a.json"]
    assert limits.claim_uids() == {UID}
    assert stat.S_IMODE((folder / "uid-a.json").stat().st_mode) == 0o444
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755
    limits.remove(UID)
    assert limits.claim_uids() == frozenset()


def test_unchanged_spec_is_not_written_again(tmp_path: Path) -> None:
    specs = claim_files.cdi_specs(tmp_path)
    specs.ensure(UID, spec())
    before = (tmp_path / FILE).stat()

    assert not specs.ensure(UID, spec())

    after = (tmp_path / FILE).stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_spec_with_different_content_is_replaced(tmp_path: Path) -> None:
    specs = claim_files.cdi_specs(tmp_path)
    specs.ensure(UID, spec(1))

    assert specs.ensure(UID, spec(2))

    assert names(tmp_path) == [FILE]
    assert json.loads((tmp_path / FILE).read_text()) == spec(2)


@pytest.mark.usefixtures("narrow_umask")
def test_missing_folder_is_created_readable_for_runtimes(tmp_path: Path) -> None:
    folder = tmp_path / "cdi"
    specs = claim_files.cdi_specs(folder)
    assert specs.claim_uids() == frozenset()

    specs.ensure(UID, spec())

    assert stat.S_IMODE(folder.stat().st_mode) == 0o755
    assert stat.S_IMODE((folder / FILE).stat().st_mode) == 0o644


def test_files_of_other_programs_are_neither_counted_nor_touched(tmp_path: Path) -> None:
    foreign = ["nvidia.yaml", "tensor-fusion.ai-other_x.json", ".abc.tmp", "uid-a.json"]
    for name in foreign:
        (tmp_path / name).write_text(name)
    specs = claim_files.cdi_specs(tmp_path)

    specs.ensure(UID, spec())
    assert specs.claim_uids() == {UID}
    specs.remove(UID)

    assert names(tmp_path) == sorted(foreign)
    assert all((tmp_path / name).read_text() == name for name in foreign)


def test_only_our_temporary_files_of_a_crash_are_removed(tmp_path: Path) -> None:
    left = f".{FILE}.x1y2z3a4.tmp"
    others = [FILE, ".nvidia.json.x1y2z3a4.tmp", f".{FILE}.swp", f"{FILE}.tmp", ".tmp"]
    for name in (left, *others):
        (tmp_path / name).touch()

    claim_files.cdi_specs(tmp_path).remove_unfinished()
    claim_files.cdi_specs(tmp_path / "missing").remove_unfinished()

    assert names(tmp_path) == sorted(others)


def test_read_only_folder_fails_until_it_is_writable(reachable: Path) -> None:
    specs = claim_files.cdi_specs(reachable)
    specs.ensure(UID, spec(1))

    with read_only(reachable):
        with pytest.raises(RetryableError, match=f"CDI spec {reachable / FILE}: Permission denied"):
            specs.ensure(UID, spec(2))
        with pytest.raises(RetryableError, match="Permission denied"):
            specs.remove(UID)
        assert not specs.ensure(UID, spec(1))

    assert specs.ensure(UID, spec(2))


def test_file_in_place_of_the_folder_fails_every_call_with_the_path(tmp_path: Path) -> None:
    (tmp_path / "cdi").write_text("")
    specs = claim_files.cdi_specs(tmp_path / "cdi")

    for call in (
        lambda: specs.ensure(UID, spec()),
        lambda: specs.remove(UID),
        specs.claim_uids,
    ):
        with pytest.raises(RetryableError, match=r"CDI spec .*cdi"):
            call()


@pytest.mark.parametrize("kind", ["empty folder", "loop"])
def test_empty_folder_or_link_loop_at_the_path_is_replaced(tmp_path: Path, kind: str) -> None:
    specs = claim_files.cdi_specs(tmp_path)
    specs.ensure("a", {})
    (file,) = tmp_path.iterdir()

    for step in (lambda: specs.ensure("a", {}), lambda: specs.remove("a")):
        file.unlink(missing_ok=True)
        file.mkdir() if kind == "empty folder" else file.symlink_to(file)
        step()
        assert file.is_file() or not list(tmp_path.iterdir())


def test_non_empty_folder_at_the_path_is_an_error_with_the_path(tmp_path: Path) -> None:
    specs = claim_files.cdi_specs(tmp_path)
    specs.ensure("a", {})
    (file,) = tmp_path.iterdir()
    file.unlink()
    (file / "something").mkdir(parents=True)

    with pytest.raises(RetryableError, match=f"CDI spec {file}: Directory not empty"):
        specs.ensure("a", {})
