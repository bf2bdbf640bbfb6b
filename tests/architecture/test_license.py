"""The license is in the repository and in everything built from it."""

import re
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
LICENSE = "Apache-2.0"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DOCKERFILE = (ROOT / "Dockerfile").read_text()


def test_package_image_and_chart_name_the_license() -> None:
    chart = yaml.safe_load((ROOT / "daemonset/chart/Chart.yaml").read_text())

    assert PYPROJECT["license"] == LICENSE
    assert chart["annotations"]["artifacthub.io/license"] == LICENSE
    assert f'org.opencontainers.image.licenses="{LICENSE}"' in DOCKERFILE


def test_license_files_reach_the_wheel_that_the_image_installs() -> None:
    copied = re.findall(r"^COPY (.+) \./$", DOCKERFILE, re.MULTILINE)
    sent = (ROOT / ".dockerignore").read_text().splitlines()

    for name in PYPROJECT["license-files"]:
        assert (ROOT / name).is_file()
        assert name in copied[0].split()
        assert f"!{name}" in sent
