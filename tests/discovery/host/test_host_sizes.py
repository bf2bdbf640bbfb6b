"""Sizes of the host's memory and data disk."""

import os
from pathlib import Path

import pytest

from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.discovery.host.sizes import HostSizes


def test_memory_is_the_machines_total_in_bytes(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal:       16 kB\nMemFree:        8 kB\n")

    assert HostSizes(tmp_path, proc=tmp_path).memory_bytes() == 16 * 1024


def test_memory_that_is_not_told_names_its_file(tmp_path: Path) -> None:
    with pytest.raises(RetryableError, match=f"{tmp_path}/meminfo: No such file"):
        HostSizes(tmp_path, proc=tmp_path).memory_bytes()


def test_disk_is_the_whole_file_system_of_the_folder(tmp_path: Path) -> None:
    disk = os.statvfs(tmp_path)

    assert HostSizes(tmp_path).disk_bytes() == disk.f_frsize * disk.f_blocks


def test_a_missing_disk_folder_is_named_with_its_setting(tmp_path: Path) -> None:
    missing = tmp_path / "none"

    with pytest.raises(RetryableError, match=f"data disk: {missing}: No such.*data-dir"):
        HostSizes(missing).disk_bytes()
