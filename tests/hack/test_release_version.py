"""A checkout is released only under the tag of its version, and with a date in its changelog."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tensorfusion_dra.app.shared import version
from tests.guard import sitecustomize as path_guard
from tests.support.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
FILES = (
    "hack/release-version",
    "tensorfusion_dra/__init__.py",
    "tensorfusion_dra/app/__init__.py",
    "tensorfusion_dra/app/shared/version.py",
)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout of version 1.2.3, with a date in its changelog."""
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    module = tmp_path / "tensorfusion_dra/app/shared/version.py"
    module.write_text(module.read_text().replace(version.current(), "1.2.3"))
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## 1.2.3 (2026-01-31)\n\n## 1.2.2\n")
    return tmp_path


def release_version(checkout: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    # -S hides installed packages, because the workflows run the script before installing any.
    return subprocess.run(
        [sys.executable, "-S", checkout / "hack" / "release-version", *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
        env=path_guard.environment({"PATH": os.defpath, "PYTHONDONTWRITEBYTECODE": "1"}),
    )


def test_dated_version_is_released_under_its_tag_and_printed_at_any_time(checkout: Path) -> None:
    tagged = release_version(checkout, "--tag", "v1.2.3")
    (checkout / "CHANGELOG.md").unlink()
    printed = release_version(checkout)

    for ended in (tagged, printed):
        assert (ended.returncode, ended.stdout, ended.stderr) == (0, "1.2.3\n", "")


def test_rehearsal_needs_no_date(checkout: Path) -> None:
    (checkout / "CHANGELOG.md").write_text("# Changelog\n\n## 1.2.3 (unreleased)\n")

    ended = release_version(checkout, "--tag", "v1.2.3-rc2")

    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "1.2.3\n", "")


DATED = "## 1.2.3 (2026-01-31)"
NO_DATE = "expected 1.2.3 and a date in brackets"


@pytest.mark.parametrize(
    ("tag", "heading", "error"),
    [
        *(
            (tag, DATED, f"tag: found {tag}, expected v1.2.3")
            for tag in ("1.2.3", "v1.2.4", "v1.2.4-rc1", "v1.2.3-rc", "")
        ),
        *(
            ("v1.2.3", heading, NO_DATE)
            for heading in ("## 1.2.3 (unreleased)", "## 1.2.2 (2026-01-31)", "")
        ),
    ],
)
def test_wrong_tag_and_changelog_without_a_dated_heading_are_rejected(
    checkout: Path, tag: str, heading: str, error: str
) -> None:
    (checkout / "CHANGELOG.md").write_text(f"# Changelog\n\n{heading}\n")

    ended = release_version(checkout, "--tag", tag)

    assert (ended.returncode, ended.stdout) == (1, "")
    assert error in ended.stderr
