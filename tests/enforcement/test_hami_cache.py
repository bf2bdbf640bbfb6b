"""The file in which processes count under HAMi-core, as upstream's types lay it out."""

from pathlib import Path

import pytest

from tensorfusion_dra.core.claims.evidence import Cache
from tensorfusion_dra.enforcement import hami_cache
from tests.support import enforcer_files
from tests.support.builders.prepared_claims import limit

LIMITS = (limit(25, 20), limit(50, 40))


def test_limits_and_processes_are_read(tmp_path: Path) -> None:
    path = tmp_path / "gpu.cache"
    path.write_bytes(enforcer_files.hami_cache(LIMITS, processes=2))

    found = hami_cache.read(str(path))

    assert (found.limits[:2], found.processes, found.trouble) == (LIMITS, 2, "")
    assert found.limits[2:] == (limit(0, 0),) * 14


@pytest.mark.parametrize(
    "content",
    [b"", bytes(2_008_953), enforcer_files.hami_cache(LIMITS, flag=0)],
    ids=["empty", "zeros", "not initialized"],
)
def test_file_that_no_process_has_initialized_has_no_limits(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "gpu.cache"
    path.write_bytes(content)

    assert hami_cache.read(str(path)) == Cache(path=str(path))


def test_missing_file_is_not_found(tmp_path: Path) -> None:
    assert not hami_cache.read(str(tmp_path / "gpu.cache")).found


def test_other_version_is_named(tmp_path: Path) -> None:
    path = tmp_path / "gpu.cache"
    path.write_bytes(enforcer_files.hami_cache(LIMITS, version=(1, 1)))

    assert hami_cache.read(str(path)).trouble == "found version 1.1, expected 1.2"


def test_link_of_a_tenant_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(enforcer_files.hami_cache(LIMITS))
    (tmp_path / "gpu.cache").symlink_to(tmp_path / "real")

    assert hami_cache.read(str(tmp_path / "gpu.cache")).trouble
