"""Files of YAML that a user gives to a verb: a bomb costs neither time nor memory."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.yaml_bombs import BOMBS

ROOT = Path(__file__).parents[2]
VERBS = {
    "why": ("why", "-n", "default", "-f"),
    "convert": ("convert", "-f"),
    "simulate": ("simulate", "--from"),
    "cel": ("cel", "explain", "true", "--slices"),
    "settings": ("inspect", "--config"),
    "models": ("inspect", "--simulated-gpus", "1xT4", "--gpu-models"),
    "profile": ("inspect", "--simulated-gpus"),
}
MAX_CPU_SECONDS = 30
MAX_MEMORY_BYTES = 2**31


def limited() -> None:
    """Let the kernel end this process once it takes more than a refusal may cost."""
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_SECONDS, MAX_CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))


@pytest.mark.process
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("bomb", ["repeated", "merged", "brackets"])
def test_bomb_is_refused_with_file_and_line(verb: str, bomb: str, tmp_path: Path) -> None:
    text, reason = BOMBS[bomb]
    file = tmp_path / "bomb.yaml"
    file.write_text(text)

    ended = subprocess.run(
        [sys.executable, "-m", "tensorfusion_dra", *VERBS[verb], str(file)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=limited,
    )

    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1)
    assert reason in ended.stderr
    assert verb == "convert" or str(file) in ended.stderr
