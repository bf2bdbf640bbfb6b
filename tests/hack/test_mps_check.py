"""hack/mps-check, with the stand-in for NVIDIA's daemon."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.daemonset import mps_stand_in, scripts
from tests.support import helm
from tests.support.waiting import PATIENCE_SECONDS

SCRIPT = Path(__file__).parents[2] / "hack" / "mps-check"


@pytest.mark.parametrize(("fails", "status", "wrong"), [("", 0, 0), ("1", 1, 4)])
def test_table_tells_a_daemon_that_works_from_one_that_does_not(
    tmp_path: Path, fails: str, status: int, wrong: int
) -> None:
    stand_in = scripts.stand_in_program(mps_stand_in.__file__)
    scripts.put_program(tmp_path / "bin", "nvidia-cuda-mps-control", stand_in)
    own = {
        "HELM": helm.program(),
        "MPS_STAND_IN_LOG": str(tmp_path / "commands"),
        "MPS_STAND_IN_FAILS": fails,
    }

    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path / "bin")],
        env={**os.environ, **own},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )

    assert (done.returncode, done.stdout.count("WRONG")) == (status, wrong), done.stderr
    assert len(done.stdout.splitlines()) == 5
