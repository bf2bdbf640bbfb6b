"""The version in pyproject.toml is the same in every other place."""

import re
import tomllib
from pathlib import Path

import yaml

from tensorfusion_dra.app.shared import version

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_checkout_has_the_version_of_its_pyproject_toml() -> None:
    assert version.current() == PYPROJECT["version"]


def test_chart_has_the_packages_version() -> None:
    chart = yaml.safe_load((ROOT / "daemonset/chart/Chart.yaml").read_text())

    assert chart["version"] == chart["appVersion"] == PYPROJECT["version"]


def test_image_tag_is_the_packages_version() -> None:
    folders = (ROOT / "daemonset/base", ROOT / "daemonset/webhook")
    files = [yaml.safe_load((folder / "kustomization.yaml").read_text()) for folder in folders]

    tags = [image["newTag"] for file in files for image in file["images"]]
    assert tags == [PYPROJECT["version"]] * 2
    assert f"ARG VERSION={PYPROJECT['version']}\n" in (ROOT / "Dockerfile").read_text()
    kind_up = (ROOT / "hack/kind-up").read_text()
    assert f" IMAGE=tensorfusion-dra:{PYPROJECT['version']} " in kind_up


def test_the_simulators_distribution_has_the_packages_version() -> None:
    simulator = tomllib.loads((ROOT / "hack/simulator/pyproject.toml").read_text())["project"]

    assert simulator["version"] == PYPROJECT["version"]
    assert simulator["dependencies"] == [f"tensorfusion-dra[cel]=={PYPROJECT['version']}"]
    extra = PYPROJECT["optional-dependencies"]["simulate"]
    assert f"tensorfusion-dra-simulator=={PYPROJECT['version']}" in extra


def test_changelog_starts_with_the_packages_version() -> None:
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)

    assert re.fullmatch(
        rf"{re.escape(PYPROJECT['version'])} \((unreleased|\d{{4}}-\d\d-\d\d)\)", headings[0]
    )
