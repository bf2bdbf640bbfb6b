"""The image's build gets the files that it reads."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SENT = (ROOT / ".dockerignore").read_text().splitlines()
NAMED_BY = ("Dockerfile", "hack/image", "docs/troubleshoot.md")
"""Files that name the lists of packages an image can be built with."""


def test_every_list_of_packages_that_is_offered_reaches_the_build() -> None:
    text = "\n".join((ROOT / name).read_text() for name in NAMED_BY)
    offered = set(re.findall(r"\bREQUIREMENTS=(\w+)", text))

    assert offered == {"run", "otel"}
    for name in ("build", *offered):
        assert (ROOT / f"hack/requirements/{name}.txt").is_file()
        assert f"!hack/requirements/{name}.txt" in SENT
