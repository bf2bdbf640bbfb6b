"""Version of the running code: a checkout, an installed package, a bare copy of the folder."""

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.app.test_command import command
from tests.support.waiting import PATIENCE_SECONDS

ROOT = Path(__file__).parents[3]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]

FOREIGN = '[project]\nname = "another"\nversion = "7.7.7"\n'
INSTALLED = "Metadata-Version: 2.4\nName: tensorfusion-dra\nVersion: 9.8.7\n"


def test_version_flag_prints_name_and_version() -> None:
    ended = command("--version")

    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == f"tensorfusion-dra {VERSION}\n"


@pytest.mark.parametrize(
    ("beside", "shown"),
    [
        ({"tensorfusion_dra-9.8.7.dist-info/METADATA": INSTALLED}, "9.8.7"),
        (
            {
                "tensorfusion_dra-9.8.7.dist-info/METADATA": INSTALLED,
                "pyproject.toml": FOREIGN,
            },
            "9.8.7",
        ),
        (
            {
                "tensorfusion_dra-9.8.7.dist-info/METADATA": INSTALLED,
                "pyproject.toml": '[project]\nname = "tensorfusion-dra"\nversion = "1.2.3"\n',
            },
            "1.2.3",
        ),
        ({}, "unknown"),
    ],
    ids=["installed", "installed-beside-another-project", "checkout", "bare-copy"],
)
def test_version_is_that_of_the_code_that_runs(
    tmp_path: Path, beside: dict[str, str], shown: str
) -> None:
    package = tmp_path / "tensorfusion_dra"
    (package / "app" / "shared").mkdir(parents=True)
    folders = ("", "app/", "app/shared/")
    for name in (*(f"{folder}__init__.py" for folder in folders), "app/shared/version.py"):
        shutil.copy(ROOT / "tensorfusion_dra" / name, package / name)
    for name, text in beside.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)

    # -I leaves out every folder that the environment names; -S this environment's packages.
    print_version = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); "
        "from tensorfusion_dra.app.shared import version; print(version.current())"
    )
    printed = subprocess.run(
        [sys.executable, "-I", "-S", "-c", print_version],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=True,
    )

    assert printed.stdout == f"{shown}\n"
