"""A recipe of docs/develop.md, followed literally in a copy of the project, adds what it says."""

import re
import shlex
import shutil
import textwrap
from pathlib import Path
from typing import Final

import pytest

from tests.support import markdown, wheels
from tests.support.markdown import ROOT

RECIPE: Final = markdown.marked(markdown.text(ROOT / "docs" / "develop.md"), "recipe")
STEP: Final = re.compile(
    r"in `(?P<file>[\w/]+\.(?:py|md))`.*?```diff\n(?P<diff>.*?)^ *```$", re.MULTILINE | re.DOTALL
)
PUBLISHED: Final = """
from tests.support.builders.devices import published_devices
from tests.support.builders.gpus import gpu
(device,) = published_devices(gpu(brand="NVIDIA RTX"))
print(device.attributes_as_api()["brand"])
"""


def follow(step: re.Match[str], copy: Path) -> None:
    """Make the change of a step, whose lines are there exactly once."""
    lines = textwrap.dedent(step["diff"]).splitlines(keepends=True)
    old, new = ("".join(line[1:] for line in lines if line[0] in kept) for kept in (" -", " +"))
    file = copy / step["file"]
    before = file.read_text(encoding="utf-8")
    assert before.count(old) == 1, f"{step['file']}: found {before.count(old)} of {old!r}"
    file.write_text(before.replace(old, new), encoding="utf-8")


@pytest.mark.process
def test_an_attribute_is_published_and_its_tests_pass_after_the_steps_and_not_before_the_last(
    tmp_path: Path,
) -> None:
    copy = tmp_path / "project"
    ignored = shutil.ignore_patterns(".?*", "__pycache__", "dist", "build", "recordings")
    shutil.copytree(ROOT, copy, symlinks=True, ignore=ignored)
    (command,) = markdown.commands(textwrap.dedent(RECIPE))
    program, *arguments = shlex.split(command.line)
    assert program == ".venv/bin/python"
    *steps, last = STEP.finditer(RECIPE)
    assert len(steps) == len(re.findall(r"^\d\. ", RECIPE, re.MULTILINE)) - 1

    for step in steps:
        follow(step, copy)
    with pytest.raises(AssertionError, match="documented_room"):
        wheels.python(*arguments, home=tmp_path, folder=copy, path=str(copy))
    follow(last, copy)
    ended = wheels.python("-c", PUBLISHED, home=tmp_path, folder=copy, path=str(copy))
    wheels.python(*arguments, home=tmp_path, folder=copy, path=str(copy))

    assert ended.stdout == "{'string': 'NVIDIA RTX'}\n"
