"""The version in pyproject.toml is the same in every other place."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from tensorfusion_dra.app.shared import version
from tests.support import helm, installation

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_checkout_has_the_version_of_its_pyproject_toml() -> None:
    assert version.current() == PYPROJECT["version"]


def test_chart_has_the_packages_version() -> None:
    chart = yaml.safe_load((ROOT / "daemonset/chart/Chart.yaml").read_text())

    assert chart["version"] == chart["appVersion"] == PYPROJECT["version"]


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


def test_the_simulators_distribution_has_the_packages_version() -> None:
    simulator = tomllib.loads((ROOT / "hack/simulator/pyproject.toml").read_text())["project"]

    assert simulator["version"] == PYPROJECT["version"]
    assert simulator["dependencies"] == [f"tensorfusion-dra[cel]=={PYPROJECT['version']}"]
    extra = PYPROJECT["optional-dependencies"]["simulate"]
    assert f"tensorfusion-dra-simulator=={PYPROJECT['version']}" in extra


@pytest.mark.parametrize("file", ["README.md", "README.zh-CN.md"])
def test_readme_has_the_status_of_the_classifiers(file: str) -> None:
    simulator = tomllib.loads((ROOT / "hack/simulator/pyproject.toml").read_text())["project"]
    (status,) = re.findall(r"^(Alpha|Beta|Stable)\b", (ROOT / file).read_text(), re.MULTILINE)

    for project in (PYPROJECT, simulator):
        (found,) = (each for each in project["classifiers"] if each.startswith("Development"))
        assert found.endswith(f" - {status}")
