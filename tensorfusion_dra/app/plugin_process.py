"""One node plugin as a process of its own, as a container runtime starts and ends it."""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import tensorfusion_dra

_STOP_SECONDS: Final = 10.0


class PluginProcess:
    """Runs from its construction until stop() or kill(), or until it ends by itself.

    Attributes:
        log_file: What it says on stderr; further starts append to it.
        told_to_end: Whether its end is no surprise.
    """

    def __init__(self, command: Sequence[str], log_file: Path) -> None:
        """Starts it."""
        self.log_file: Final = log_file
        self.told_to_end = False
        package_parent = Path(tensorfusion_dra.__file__).parent.parent
        with log_file.open("ab") as log:
            self._process: Final = subprocess.Popen(
                command, stderr=log, stdin=subprocess.DEVNULL, cwd=package_parent
            )

    @property
    def pid(self) -> int:
        """Its process ID."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def terminate(self) -> None:
        """Sends SIGTERM and returns at once."""
        self.told_to_end = True
        self._process.terminate()

    def stop(self) -> int:
        """Ends it as a pod's end does, by SIGKILL if SIGTERM is not enough; its exit code."""
        self.terminate()
        try:
            return self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            return self.kill()

    def kill(self) -> int:
        """Ends it without a word, as the kernel does for want of memory; its exit code."""
        self.told_to_end = True
        self._process.kill()
        return self._process.wait()

    def last_line(self) -> str:
        """What it said last."""
        text = self.log_file.read_text(encoding="utf-8", errors="replace").strip()
        return text.rpartition("\n")[2] or "it said nothing"
