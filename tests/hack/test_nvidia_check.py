"""The check of limits by the NVIDIA driver, typed as on the page."""

import os
import shutil
import subprocess

import pytest

from tests.support.compiler import compiler
from tests.support.markdown import ROOT

pytestmark = pytest.mark.sweep

PAGE = (ROOT / "docs" / "limits.md").read_text(encoding="utf-8")
COMMAND = "hack/nvidia-check"


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("runc"), reason="needs root and runc")
def test_every_cgroup_gets_its_limit_with_real_containers() -> None:
    compiler("hack/nvidia-check")
    assert f"$ sudo {COMMAND}\n" in PAGE

    # Without the guard over paths: the image of the containers has libraries of this machine.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ended = subprocess.run(
        [ROOT / COMMAND], capture_output=True, text=True, env=env, timeout=280, check=False
    )

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count("\n") == ended.stdout.count("holds  ") == 17
