"""Completion of the command in shells, and of the kubectl plugin."""

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tensorfusion_dra import cli
from tests.support.markdown import ROOT
from tests.support.waiting import PATIENCE_SECONDS

Capture = pytest.CaptureFixture[str]


def script(capsys: Capture, shell: str) -> str:
    """Return the script for a shell."""
    assert cli.main(["completion", shell]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts_have_every_verb_and_its_flags(capsys: Capture, shell: str) -> None:
    found = script(capsys, shell)

    assert [verb.name for verb in cli.VERBS if verb.name not in found] == []
    for flag in ("kubeconfig", "namespace", "node-name"):
        assert flag in found


def test_bash_completes_verbs_and_flags(capsys: Capture, tmp_path: Path) -> None:
    file = tmp_path / "completion.bash"
    file.write_text(script(capsys, "bash"))
    bash = shutil.which("bash")
    assert bash is not None
    program = f"""
        source {file}
        function_name=$(complete -p tensorfusion-dra | sed 's/.*-F \\([^ ]*\\).*/\\1/')
        ask() {{
            COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
            "$function_name"
            echo "${{COMPREPLY[@]}}"
        }}
        ask tensorfusion-dra wh
        ask tensorfusion-dra top --wa
    """

    ended = subprocess.run(
        [bash, "-c", program],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=True,
    )

    assert ended.stdout.split() == ["why", "--watch"]


def test_unknown_shell_is_bad_input(capsys: Capture) -> None:
    assert cli.main(["completion", "sh"]) == 2
    assert "invalid choice: 'sh'" in capsys.readouterr().err


def test_without_the_extra_the_error_names_it(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)

    assert cli.main(["completion", "bash"]) == 2
    assert "completion needs the extra 'completion'" in capsys.readouterr().err


def test_plugin_is_on_path_under_the_name_that_kubectl_looks_for() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]

    assert scripts["kubectl-tensorfusion"] == "tensorfusion_dra.cli:main"


def test_plugin_shows_its_own_name(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/local/bin/kubectl-tensorfusion"])

    with pytest.raises(SystemExit):
        cli.main(["why", "--help"])

    assert capsys.readouterr().out.startswith("usage: kubectl tensorfusion why")
