"""The driver and the simulator are two distributions: of all files, each is in exactly one."""

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.guard import sitecustomize as path_guard
from tests.support.waiting import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]
SIMULATOR = ROOT / "hack" / "simulator"
LINE = (
    "tensorfusion-dra: simulate needs the extra 'simulate' "
    "(pip install 'tensorfusion-dra[simulate]')\n"
)


def loaded(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))


def wheel(folder: Path) -> dict[str, Any]:
    """The wheel that a pyproject.toml describes."""
    found: dict[str, Any] = loaded(folder)["tool"]["hatch"]["build"]["targets"]["wheel"]
    return found


def files_below(folder: Path) -> set[str]:
    return {
        str(path.relative_to(ROOT))
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def base_files() -> set[str]:
    """Return the files of the base distribution's wheel."""
    config = wheel(ROOT)
    files = set().union(*(files_below(ROOT / package) for package in config["packages"]))
    left_out = tuple(f"{pattern.removeprefix('/')}/" for pattern in config["exclude"])
    return {name for name in files if not name.startswith(left_out)}


def simulator_files() -> set[str]:
    """Return the files of the simulator's wheel."""
    sources = wheel(SIMULATOR)["force-include"]
    return set().union(*(files_below((SIMULATOR / source).resolve()) for source in sources))


def test_each_file_of_the_package_is_in_one_wheel() -> None:
    base, simulator = base_files(), simulator_files()

    assert base & simulator == set()
    every = files_below(ROOT / "tensorfusion_dra") | files_below(ROOT / "dra_simulator")
    assert base | simulator == every


def test_the_simulators_files_keep_their_places() -> None:
    placed = wheel(SIMULATOR)["force-include"]

    found = {(SIMULATOR / source).resolve(): ROOT / place for source, place in placed.items()}
    assert all(source == place for source, place in found.items())
    assert sorted(placed.values()) == ["dra_simulator", "tensorfusion_dra/app/simulate"]
    assert wheel(ROOT)["exclude"] == ["/tensorfusion_dra/app/simulate"]


def test_the_extra_simulate_is_the_simulator_and_what_a_checkout_needs() -> None:
    base = loaded(ROOT)
    simulator = loaded(SIMULATOR)["project"]

    group = base["dependency-groups"]["simulate"]
    extra = base["project"]["optional-dependencies"]["simulate"]
    assert extra == [f"{simulator['name']}=={simulator['version']}", *group]


def test_both_distributions_have_the_same_license_and_pythons() -> None:
    base, simulator = loaded(ROOT)["project"], loaded(SIMULATOR)["project"]

    for field in ("license", "license-files", "requires-python"):
        assert simulator[field] == base[field]
    for name in simulator["license-files"]:
        assert (SIMULATOR / name).read_text() == (ROOT / name).read_text()


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of the base distribution's wheel."""
    folder = tmp_path_factory.mktemp("base")
    for name in base_files():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    return folder


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command with the package in a folder."""
    environment = path_guard.environment({"PATH": "/usr/bin:/bin", "PYTHONPATH": str(folder)})
    return subprocess.run(
        [sys.executable, "-m", "tensorfusion_dra", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


@pytest.mark.parametrize("arguments", [(), ("--help",), ("--pods", "1")])
def test_simulate_without_the_simulator_names_its_extra(
    base: Path, arguments: tuple[str, ...]
) -> None:
    ended = command(base, "simulate", *arguments)

    assert (ended.returncode, ended.stdout, ended.stderr) == (2, "", LINE)


@pytest.mark.parametrize("verb", ["node-plugin", "webhook", "inspect", "cel", "convert", "doctor"])
def test_every_other_verb_works_without_the_simulator(base: Path, verb: str) -> None:
    ended = command(base, verb, "--help")

    assert (ended.returncode, ended.stderr) == (0, "")
