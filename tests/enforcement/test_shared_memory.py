"""The hypervisor's shared memory, as upstream's types lay it out."""

import os
from pathlib import Path

import pytest

from tensorfusion_dra.core.claims.evidence import SharedMemory
from tensorfusion_dra.enforcement.hypervisor import shared_memory
from tests.support import enforcer_files
from tests.support.builders.prepared_claims import limit

LIMITS = {"ABCD-01": limit(25, 20), "GPU-abcd-02": limit(50, 40)}


def test_limits_heartbeat_and_processes_are_read(tmp_path: Path) -> None:
    path = tmp_path / "shm"
    path.write_bytes(enforcer_files.shared_memory(LIMITS, heartbeat=1_700_000_000, processes=3))

    assert shared_memory.read(str(path)) == SharedMemory(
        path=str(path), heartbeat=1_700_000_000, limits=LIMITS, processes=3
    )


def test_structure_has_the_size_that_the_reader_expects() -> None:
    assert len(enforcer_files.shared_memory({}, heartbeat=0)) == shared_memory.SIZE


def test_missing_file_is_not_found(tmp_path: Path) -> None:
    assert shared_memory.read(str(tmp_path / "shm")) == SharedMemory(
        path=str(tmp_path / "shm"), found=False
    )


@pytest.mark.parametrize(
    ("content", "trouble"),
    [
        (b"", "found 0 bytes, expected 35504"),
        (bytes(35_496), "found 35496 bytes, expected 35504"),
        (
            enforcer_files.shared_memory(LIMITS, heartbeat=1, discriminant=0),
            "found version 1, expected 2",
        ),
    ],
    ids=["empty", "before the version field", "version 1"],
)
def test_other_layout_is_named(tmp_path: Path, content: bytes, trouble: str) -> None:
    path = tmp_path / "shm"
    path.write_bytes(content)

    assert shared_memory.read(str(path)).trouble == trouble


def test_link_of_a_tenant_is_not_followed(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.write_bytes(enforcer_files.shared_memory(LIMITS, heartbeat=1))
    (tmp_path / "shm").symlink_to(real)

    found = shared_memory.read(str(tmp_path / "shm"))

    assert (found.limits, bool(found.trouble)) == ({}, True)


def test_pipe_of_a_tenant_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "shm")

    found = shared_memory.read(str(tmp_path / "shm"))

    assert found.trouble == "found something else, expected a regular file"


def test_bytes_that_are_no_text_are_no_error(tmp_path: Path) -> None:
    path = tmp_path / "shm"
    content = bytearray(enforcer_files.shared_memory(LIMITS, heartbeat=1, processes=2**40))
    content[8:12] = b"\xff\xfe\xff\xfe"
    path.write_bytes(content)

    found = shared_memory.read(str(path))

    assert (len(found.limits), found.processes, found.trouble) == (2, 2048, "")
