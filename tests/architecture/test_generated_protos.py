"""The generated messages in the package match proto/."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support.waiting import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]


def generated(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.glob("*_pb2.py*")}


def test_generated_messages_are_up_to_date(tmp_path: Path) -> None:
    subprocess.run(
        [ROOT / "hack" / "generate-protos", tmp_path],
        env={**os.environ, "PYTHON": sys.executable},
        check=True,
        timeout=PATIENCE_SECONDS,
    )

    assert generated(tmp_path) == generated(ROOT / "tensorfusion_dra" / "kubelet" / "pb")
    assert len(generated(tmp_path)) == 2 * len(list((ROOT / "proto").glob("*.proto")))
