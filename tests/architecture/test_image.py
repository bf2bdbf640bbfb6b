"""The image's build gets the files that it reads."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
SENT = (ROOT / ".dockerignore").read_text().splitlines()
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
RUN = ROOT / "hack/requirements/run.txt"


def test_every_list_of_packages_that_is_installed_reaches_the_build() -> None:
    installed = re.findall(r"--requirement (\S+)", (ROOT / "Dockerfile").read_text())

    assert installed == ["hack/requirements/build.txt", "hack/requirements/run.txt"]
    for name in installed:
        assert (ROOT / name).is_file()
        assert f"!{name}" in SENT


def test_list_has_every_package_that_the_image_needs() -> None:
    run = set(re.findall(r"^([a-z0-9-]+)==", RUN.read_text(), re.MULTILINE))

    assert required(PYPROJECT["dependencies"]) <= run
    assert required(PYPROJECT["optional-dependencies"]["cel"]) <= run


def required(requirements: list[str]) -> set[str]:
    return {re.split("[><=]", each)[0].lower() for each in requirements}
