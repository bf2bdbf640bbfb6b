"""What is built from a checkout: two distributions and an image, of one version and license."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

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
DOCKERFILE = (ROOT / "Dockerfile").read_text()
SENT = (ROOT / ".dockerignore").read_text().splitlines()
CHART = ROOT / "daemonset/chart"
BASE, OF_SIMULATOR = (
    tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
    for folder in (ROOT, SIMULATOR)
)
PROJECT = BASE["project"]
WHEEL, SIMULATORS_WHEEL = (
    each["tool"]["hatch"]["build"]["targets"]["wheel"] for each in (BASE, OF_SIMULATOR)
)


def files_below(folder: Path) -> set[str]:
    return {
        str(path.relative_to(ROOT))
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def base_files() -> set[str]:
    """Return the files of the base distribution's wheel."""
    left_out = tuple(f"{pattern.removeprefix('/')}/" for pattern in WHEEL["exclude"])
    files = set().union(*(files_below(ROOT / package) for package in WHEEL["packages"]))
    return {name for name in files if not name.startswith(left_out)}


def test_each_file_of_the_package_is_in_one_wheel_at_its_place() -> None:
    placed = SIMULATORS_WHEEL["force-include"]
    base = base_files()
    simulator = set().union(*(files_below((SIMULATOR / source).resolve()) for source in placed))

    assert base & simulator == set()
    every = files_below(ROOT / "tensorfusion_dra") | files_below(ROOT / "dra_simulator")
    assert base | simulator == every
    assert {(SIMULATOR / source).resolve(): ROOT / place for source, place in placed.items()} == {
        folder: folder
        for folder in (ROOT / "dra_simulator", ROOT / "tensorfusion_dra/app/simulate")
    }


def test_the_extra_simulate_is_the_simulator_and_what_a_checkout_needs() -> None:
    simulator = OF_SIMULATOR["project"]

    group = BASE["dependency-groups"]["simulate"]
    # No other verb needs an extra.
    assert PROJECT["optional-dependencies"] == {
        "simulate": [f"{simulator['name']}=={simulator['version']}", *group]
    }


def test_both_distributions_image_and_chart_have_the_same_license_and_version() -> None:
    simulator = OF_SIMULATOR["project"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())

    assert chart["annotations"]["artifacthub.io/license"] == PROJECT["license"] == "Apache-2.0"
    assert f'org.opencontainers.image.licenses="{PROJECT["license"]}"' in DOCKERFILE
    assert version.current() == chart["version"] == chart["appVersion"] == PROJECT["version"]
    assert simulator["dependencies"] == [f"tensorfusion-dra=={PROJECT['version']}"]
    for field in ("license", "license-files", "requires-python", "version"):
        assert simulator[field] == PROJECT[field]
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
    for verb in ("node-plugin", "webhook", "inspect", "cel", "convert", "doctor"):
        ended = python(base, "-m", "tensorfusion_dra", verb, "--help")

        assert (ended.returncode, ended.stderr) == (0, "")
        assert f"usage: tensorfusion-dra {verb}" in ended.stdout


def test_every_list_of_packages_and_each_license_reaches_the_build() -> None:
    installed = re.findall(r"--requirement (\S+)", DOCKERFILE)
    copied = re.findall(r"^COPY (.+) \./$", DOCKERFILE, re.MULTILINE)[0].split()

    assert installed == ["hack/requirements/build.txt", "hack/requirements/run.txt"]
    assert set(PROJECT["license-files"]) <= set(copied)
    for name in (*installed, *PROJECT["license-files"]):
        assert (ROOT / name).is_file()
        assert f"!{name}" in SENT


def test_list_has_every_package_that_a_pod_needs_and_none_that_reads_kubeconfigs() -> None:
    listed = (ROOT / "hack/requirements/run.txt").read_text()
    run = set(re.findall(r"^([a-z0-9-]+)==", listed, re.MULTILINE))
    required = {re.split("[><=]", each)[0].lower() for each in PROJECT["dependencies"]}

    assert required - run == {"kubernetes"}
    assert not {"kubernetes", "urllib3", "requests", "aiohttp", "pydantic"} & run


@pytest.mark.process
def test_every_place_names_the_image_of_make_image() -> None:
    image = f"tensorfusion-dra:{PROJECT['version']}"
    manifests = installation.documents(*installation.NAMES)
    values = yaml.safe_load((CHART / "values.yaml").read_text())["image"]
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
    assert f"ARG VERSION={PROJECT['version']}\n" in DOCKERFILE


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
