"""Skipping of the NVML tests on machines without a C compiler."""

from pathlib import Path

import pytest

from tests.discovery.nvml.nvml_machine import build


def test_nvml_tests_are_skipped_without_a_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CI", raising=False)

    with pytest.raises(pytest.skip.Exception, match="found no C compiler cc"):
        build(tmp_path / "library")


def test_nvml_tests_fail_without_a_compiler_on_ci(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CI", "true")

    with pytest.raises(pytest.fail.Exception, match="found no C compiler cc"):
        build(tmp_path / "library")
