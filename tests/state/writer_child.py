"""A process that is killed in the middle of a write; arguments: ``FILE CONTENT``."""

import os
import signal
import sys
from pathlib import Path

from tensorfusion_dra.state import atomic


def cut_the_power(_source: str, _target: Path) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    os.rename = cut_the_power  # type: ignore[assignment]
    atomic.write(Path(sys.argv[1]), sys.argv[2].encode(), mode=0o644)
