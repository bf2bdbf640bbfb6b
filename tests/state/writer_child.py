"""A process that is killed in the middle of a write; arguments: ``FILE CONTENT``."""

import os
import signal
import sys
from pathlib import Path

from tensorfusion_dra.state import atomic


def cut_the_power(_self: Path, _target: Path) -> Path:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


if __name__ == "__main__":
    Path.rename = cut_the_power  # type: ignore[method-assign,assignment]
    atomic.write(Path(sys.argv[1]), sys.argv[2].encode(), mode=0o644)
