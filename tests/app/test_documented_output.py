"""The documents show what the commands really print."""

import re
import shlex
from pathlib import Path

import pytest
import yaml

from tests.app.cel.test_cel_explain import two_nodes
from tests.app.test_command import host_folders
from tests.guard import sitecustomize as path_guard
from tests.support import forks, markdown
from tests.support.markdown import ROOT, Command

USE = markdown.text(ROOT / "docs" / "use.md")
EXTEND = markdown.text(ROOT / "docs" / "extend.md")
DEMO = "make demo"
SECONDS = re.compile(r"\b[0-9]+\.[0-9] s\b")


def printed(*arguments: str, folder: Path = ROOT) -> tuple[list[str], list[str]]:
    """Return the lines that the command prints on stdout and on stderr."""
    guarded = path_guard.environment({"PATH": "/usr/bin:/bin"})
    ended = forks.run(*arguments, environment=guarded, folder=folder)
    return ended.stdout.splitlines(), ended.stderr.splitlines()


def masked(lines: list[str] | tuple[str, ...]) -> list[str]:
    """Return the lines with durations masked, which differ in each run."""
    return [SECONDS.sub("N s", line) for line in lines]


def shown(document: str, start: str) -> Command:
    """Return the only command in a document that starts with this text."""
    (found,) = [each for each in markdown.commands(document) if each.line.startswith(start)]
    return found


def is_as_printed(command: Command, lines: list[str]) -> bool:
    """Return True if the lines match a command's documented output, with both masked."""
    return markdown.is_shown(tuple(masked(command.output)), masked(lines))


@pytest.mark.parametrize("file", ["README.md", "README.zh-CN.md"])
def test_the_readme_shows_what_the_demo_prints(file: str) -> None:
    demo = shown(markdown.text(ROOT / file), DEMO)

    stdout, stderr = printed("simulate")

    assert (demo.line, stderr) == (DEMO, [])
    assert masked(demo.output) == masked(stdout)


def test_the_users_page_shows_what_cel_prints(tmp_path: Path) -> None:
    slices = tmp_path / "slices.yaml"
    slices.write_text(yaml.safe_dump_all(two_nodes()), encoding="utf-8")
    translate, explain = (
        shown(USE, f"tensorfusion-dra cel {verb}") for verb in ("translate", "explain")
    )

    translated, _ = printed(*shlex.split(translate.line)[1:])
    explained, _ = printed(*shlex.split(explain.line)[1:], "--slices", str(slices))

    assert is_as_printed(translate, translated)
    assert is_as_printed(explain, explained)


def test_the_example_of_a_profile_of_simulated_gpus_works(tmp_path: Path) -> None:
    (text,) = [each for each in markdown.blocks(EXTEND, "yaml") if each.startswith("gpus:")]
    file = tmp_path / "gpus.yaml"
    file.write_text(text, encoding="utf-8")

    stdout, stderr = printed("inspect", "--simulated-gpus", str(file), *host_folders(tmp_path))

    assert stderr == []
    assert sum("A100" in line for line in stdout) == 3
    assert any("71.2" in line and "My Card" in line for line in stdout)


def test_the_example_of_a_model_table_works(tmp_path: Path) -> None:
    (text,) = [each for each in markdown.blocks(EXTEND, "yaml") if "fp16TFlops" in each]
    file = tmp_path / "models.yaml"
    file.write_text(text, encoding="utf-8")
    cards = ("--simulated-gpus", "1xA100-SXM4-80GB", "--gpu-models", str(file))

    stdout, _ = printed("inspect", *cards, *host_folders(tmp_path))

    assert any("A100" in line and " 300 " in line for line in stdout)
