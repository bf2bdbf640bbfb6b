"""The image's build gets the files that it reads."""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
SENT = (ROOT / ".dockerignore").read_text().splitlines()
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NAMED_BY = ("Dockerfile", "hack/image", "docs/troubleshoot.md")
"""Files that name the lists of packages an image can be built with."""


def test_every_list_of_packages_that_is_offered_reaches_the_build() -> None:
    text = "\n".join((ROOT / name).read_text() for name in NAMED_BY)
    offered = set(re.findall(r"\bREQUIREMENTS=(\w+)", text))

    assert offered == {"run", "otel"}
    for name in ("build", *offered):
        assert (ROOT / f"hack/requirements/{name}.txt").is_file()
        assert f"!hack/requirements/{name}.txt" in SENT


def test_lists_have_every_package_that_the_image_needs() -> None:
    run, otel = pinned("run"), pinned("otel")

    assert required(PYPROJECT["dependencies"]) <= run.keys()
    assert required(PYPROJECT["optional-dependencies"]["cel"]) <= run.keys()
    assert run.items() <= otel.items()
    assert required(PYPROJECT["optional-dependencies"]["otel"]) <= otel.keys() - run.keys()


def pinned(name: str) -> Mapping[str, str]:
    """Return each package of a list with its version and hashes."""
    text = (ROOT / f"hack/requirements/{name}.txt").read_text()
    return dict(re.findall(r"^([a-z0-9-]+)==(.+\n(?: .+\n)*)", text, re.MULTILINE))


def required(requirements: list[str]) -> set[str]:
    return {re.split("[><=]", each)[0].lower() for each in requirements}
