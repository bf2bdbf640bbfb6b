"""Files that containers write, as the types of HAMi-core and of the hypervisor lay them out."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tensorfusion_dra.core.claims.evidence import Cache, SharedMemory
from tensorfusion_dra.enforcement import hami_cache
from tensorfusion_dra.enforcement.hypervisor import shared_memory
from tests.support import enforcer_files
from tests.support.builders.prepared_claims import limit

LIMITS: Final = (limit(25, 20), limit(50, 40))
BY_GPU: Final = dict(zip(("ABCD-01", "GPU-abcd-02"), LIMITS, strict=True))
Read = Callable[[str], Cache | SharedMemory]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file"


def test_limits_and_processes_of_hami_core_are_read(path: Path) -> None:
    path.write_bytes(enforcer_files.hami_cache(LIMITS, processes=2))

    found = hami_cache.read(str(path))

    assert (found.limits[:2], found.processes, found.trouble) == (LIMITS, 2, "")
    assert found.limits[2:] == (limit(0, 0),) * 14


def test_limits_heartbeat_and_processes_of_the_hypervisor_are_read(path: Path) -> None:
    path.write_bytes(enforcer_files.shared_memory(BY_GPU, heartbeat=1_700_000_000, processes=3))

    assert shared_memory.read(str(path)) == SharedMemory(
        path=str(path), heartbeat=1_700_000_000, limits=BY_GPU, processes=3
    )


def test_bytes_that_are_no_text_are_no_error(path: Path) -> None:
    content = bytearray(enforcer_files.shared_memory(BY_GPU, heartbeat=1, processes=2**40))
    content[8:12] = b"\xff\xfe\xff\xfe"
    path.write_bytes(content)

    found = shared_memory.read(str(path))

    assert (len(found.limits), found.processes, found.trouble) == (2, 2048, "")


@pytest.mark.parametrize(
    ("read", "content", "trouble"),
    [
        # A file that no process of HAMi-core has initialized yet has no limits.
        (hami_cache.read, b"", ""),
        (hami_cache.read, bytes(2_008_953), ""),
        (hami_cache.read, enforcer_files.hami_cache(LIMITS, flag=0), ""),
        (
            hami_cache.read,
            enforcer_files.hami_cache(LIMITS, version=(1, 1)),
            "found version 1.1, expected 1.2",
        ),
        (shared_memory.read, b"", "found 0 bytes, expected 35504"),
        (shared_memory.read, bytes(35_496), "found 35496 bytes, expected 35504"),
        (
            shared_memory.read,
            enforcer_files.shared_memory(BY_GPU, heartbeat=1, discriminant=0),
            "found version 1, expected 2",
        ),
    ],
)
def test_file_of_another_layout_has_no_limits(
    path: Path, read: Read, content: bytes, trouble: str
) -> None:
    path.write_bytes(content)

    found = read(str(path))

    assert (found.found, tuple(found.limits), found.processes) == (True, (), 0)
    assert found.trouble == trouble


@pytest.mark.parametrize("read", [hami_cache.read, shared_memory.read])
def test_links_and_pipes_of_a_tenant_are_not_followed(path: Path, read: Read) -> None:
    assert not read(str(path)).found

    real = path.with_name("real")
    real.write_bytes(
        enforcer_files.hami_cache(LIMITS)
        if read is hami_cache.read
        else enforcer_files.shared_memory(BY_GPU, heartbeat=1)
    )
    path.symlink_to(real)
    assert (tuple(read(str(path)).limits), bool(read(str(path)).trouble)) == ((), True)

    path.unlink()
    os.mkfifo(path)
    assert read(str(path)).trouble == "found something else, expected a regular file"
