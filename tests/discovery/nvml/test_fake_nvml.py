"""When the tests against the fake library may be passed over."""

from pathlib import Path

import pytest

from tests.discovery.nvml.nvml_machine import build


def test_without_a_compiler_they_are_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CI", raising=False)

    with pytest.raises(pytest.skip.Exception, match="found no C compiler cc"):
        build(tmp_path / "library")


def test_without_a_compiler_they_fail_on_ci(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CI", "true")

    with pytest.raises(pytest.fail.Exception, match="found no C compiler cc"):
        build(tmp_path / "library")
