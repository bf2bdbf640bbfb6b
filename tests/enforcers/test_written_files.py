"""Files that containers can write: how much is left, and who wrote them."""

import os
import subprocess
from pathlib import Path

import pytest

from tensorfusion_dra.enforcers import written_files


def test_free_part_is_that_of_space_or_files_whichever_is_less(tmp_path: Path) -> None:
    found = os.statvfs(tmp_path)

    ratio = written_files.free_ratio(str(tmp_path))

    space = found.f_bavail / found.f_blocks
    files = found.f_favail / found.f_files if found.f_files else 1.0
    assert ratio == pytest.approx(min(space, files), abs=0.02)
    assert written_files.free_ratio(str(tmp_path / "missing")) is None


def test_files_and_pages_are_counted_by_claim_or_pod(tmp_path: Path) -> None:
    for folder in ("uid-a/x/y", "team-a/pod-a", "team-a/pod-b/x", "uid-of-nobody"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "uid-a/x/y/file").write_bytes(bytes(40 * 4096))
    (tmp_path / "uid-a/link").symlink_to(tmp_path)  # not followed
    for folder in ("team-a/pod-a", "uid-of-nobody"):
        for number in range(50):
            (tmp_path / folder / str(number)).touch()

    counts = written_files.by_writer(tmp_path, {"uid-a": "claim default/a"})

    assert counts["claim default/a"] >= 43
    assert counts["team-a/pod-a"] == counts["uid-of-nobody"] == 50
    assert counts["team-a/pod-b"] in {1, 2}


@pytest.mark.process
def test_deep_folders_are_counted_as_far_as_a_path_goes(tmp_path: Path) -> None:
    at = os.open(tmp_path, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=at)
        below = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)

    try:
        counts = written_files.by_writer(tmp_path, {})
    finally:
        subprocess.run(["rm", "-rf", tmp_path / "d"], check=True)  # too deep for pytest

    assert sum(counts.values()) > 1000
