"""What is built from a checkout: two distributions and an image, of one version and license."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tensorfusion_dra.app.shared import version
from tests.guard import sitecustomize as path_guard
from tests.support import helm, installation
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
    assert [*base["project"]["optional-dependencies"]] == ["simulate"], "no other verb needs one"


def test_both_distributions_image_and_chart_have_the_same_license_and_version() -> None:
    base, simulator = loaded(ROOT)["project"], loaded(SIMULATOR)["project"]
    chart = yaml.safe_load((ROOT / "daemonset/chart/Chart.yaml").read_text())

    assert chart["annotations"]["artifacthub.io/license"] == base["license"] == "Apache-2.0"
    assert f'org.opencontainers.image.licenses="{base["license"]}"' in DOCKERFILE
    assert version.current() == chart["version"] == chart["appVersion"] == base["version"]
    assert simulator["dependencies"] == [f"tensorfusion-dra=={base['version']}"]
    for field in ("license", "license-files", "requires-python", "version"):
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


HELP = """
import sys
from tensorfusion_dra import cli
for verb in sys.argv[1:]:
    try:
        cli.main([verb, "--help"])
    except SystemExit as ended:
        assert ended.code == 0, verb
"""


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the package in a folder."""
    environment = path_guard.environment({"PATH": "/usr/bin:/bin", "PYTHONPATH": str(folder)})
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


@pytest.mark.process
@pytest.mark.parametrize("arguments", [("--help",), ("--pods", "1")])
def test_simulate_without_the_simulator_names_its_extra(
    base: Path, arguments: tuple[str, ...]
) -> None:
    ended = python(base, "-m", "tensorfusion_dra", "simulate", *arguments)

    assert (ended.returncode, ended.stdout, ended.stderr) == (2, "", LINE)


@pytest.mark.process
def test_every_other_verb_works_without_the_simulator(base: Path) -> None:
    verbs = ("node-plugin", "webhook", "inspect", "cel", "convert", "doctor")

    ended = python(base, "-c", HELP, *verbs)

    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.count("usage: tensorfusion-dra") == len(verbs)


SENT = (ROOT / ".dockerignore").read_text().splitlines()
RUN = ROOT / "hack/requirements/run.txt"


def test_every_list_of_packages_that_is_installed_reaches_the_build() -> None:
    installed = re.findall(r"--requirement (\S+)", (ROOT / "Dockerfile").read_text())

    assert installed == ["hack/requirements/build.txt", "hack/requirements/run.txt"]
    for name in installed:
        assert (ROOT / name).is_file()
        assert f"!{name}" in SENT


def test_list_has_every_package_that_a_pod_needs_and_none_that_reads_kubeconfigs() -> None:
    run = set(re.findall(r"^([a-z0-9-]+)==", RUN.read_text(), re.MULTILINE))

    assert required(PYPROJECT["dependencies"]) - run == {"kubernetes"}
    assert not {"kubernetes", "urllib3", "requests", "aiohttp", "pydantic"} & run


def required(requirements: list[str]) -> set[str]:
    return {re.split("[><=]", each)[0].lower() for each in requirements}


PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DOCKERFILE = (ROOT / "Dockerfile").read_text()


def test_license_files_reach_the_wheel_that_the_image_installs() -> None:
    copied = re.findall(r"^COPY (.+) \./$", DOCKERFILE, re.MULTILINE)

    for name in PYPROJECT["license-files"]:
        assert (ROOT / name).is_file()
        assert name in copied[0].split()
        assert f"!{name}" in SENT


@pytest.mark.process
def test_every_place_names_the_image_of_make_image() -> None:
    image = f"tensorfusion-dra:{PYPROJECT['version']}"
    manifests = installation.documents(*installation.NAMES)
    values = yaml.safe_load((ROOT / "daemonset/chart/values.yaml").read_text())["image"]
    archive = subprocess.run(
        ["bash", "-c", "source <(grep ^NAME= hack/image); echo $NAME"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    page = (ROOT / "docs/install.md").read_text()

    assert archive.stdout.strip() == image
    assert (values["repository"], values["tag"]) == ("tensorfusion-dra", "")
    assert {container["image"] for container in helm.containers(manifests)} == {image}
    assert set(re.findall(r"\btensorfusion-dra:[\w.]+", page)) == {image}
    assert f"ARG VERSION={PYPROJECT['version']}\n" in (ROOT / "Dockerfile").read_text()


def generated(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.glob("*_pb2.py*")}


@pytest.mark.process
def test_generated_messages_are_up_to_date(tmp_path: Path) -> None:
    subprocess.run(
        [ROOT / "hack" / "generate-protos", tmp_path],
        env={**os.environ, "PYTHON": sys.executable},
        check=True,
        timeout=PATIENCE_SECONDS,
    )

    assert generated(tmp_path) == generated(ROOT / "tensorfusion_dra" / "kubelet" / "pb")
    assert len(generated(tmp_path)) == 2 * len(list((ROOT / "proto").glob("*.proto")))
