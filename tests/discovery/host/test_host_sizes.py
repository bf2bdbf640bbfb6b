"""Sizes of the host's memory and data disk."""

import os
from pathlib import Path

import pytest

from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.discovery.host.sizes import HostSizes


def test_memory_is_memtotal_in_bytes(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal:       16 kB\nMemFree:        8 kB\n")

    assert HostSizes(tmp_path, proc=tmp_path).memory_bytes() == 16 * 1024


def test_missing_meminfo_is_an_error_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(RetryableError, match=f"{tmp_path}/meminfo: No such file"):
        HostSizes(tmp_path, proc=tmp_path).memory_bytes()


def test_disk_size_is_that_of_the_whole_file_system(tmp_path: Path) -> None:
    disk = os.statvfs(tmp_path)

    assert HostSizes(tmp_path).disk_bytes() == disk.f_frsize * disk.f_blocks


def test_missing_disk_folder_is_an_error_that_names_the_setting(tmp_path: Path) -> None:
    missing = tmp_path / "none"

    with pytest.raises(RetryableError, match=f"data disk: {missing}: No such.*data-dir"):
        HostSizes(missing).disk_bytes()
