"""Enforcers as far as they can be checked on a machine: a node plugin with each, and its daemon."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from gpucheck import node
from gpucheck.machine import MPS_CONTROL, Machine
from gpucheck.node import Node
from gpucheck.steps import CheckError, Deadline, SkipError

HAMI_CORE: Final = "hami-core"
MPS: Final = "mps"
TENSOR_FUSION: Final = "tensor-fusion"

_SHM: Final = Path("/dev/shm")
_KINDS: Final = (socket.SOCK_SEQPACKET, socket.SOCK_STREAM)
_POLL_SECONDS: Final = 0.1
_QUIT_SECONDS: Final = 15.0


class Enforcer:
    """An enforcer with a node plugin that uses it; both run from open() to close()."""

    def __init__(self, name: str, machine: Machine) -> None:
        self.name: Final = name
        self._machine: Final = machine
        self._stack: Final = ExitStack()
        self._node: Node | None = None

    def missing(self) -> str:
        """Return why it cannot be checked on this machine; "" if it can."""
        if self.name == HAMI_CORE and self._machine.hami_core is None:
            return "found no --hami-core-library, expected HAMi-core's libvgpu.so"
        if self.name == MPS and not self._machine.mps_control:
            return f"found no {MPS_CONTROL}, expected it beside the NVIDIA driver"
        return ""

    def open(self, deadline: Deadline) -> Node:
        """Start the node plugin and, for MPS, its daemon.

        Raises:
            CheckError: One of them does not start.
            SkipError: The enforcer is not on this machine.
        """
        if self.missing():
            raise SkipError(self.missing())
        shm = _SHM if self.name == MPS and not self._machine.stand_ins else None
        started = self._stack.enter_context(node.running(self._machine, self.name, shm=shm))
        if self.name == MPS:
            self._stack.enter_context(_daemon(self._machine, started, deadline))
        self._node = started
        return started

    @property
    def node(self) -> Node:
        """The node plugin.

        Raises:
            SkipError: It could not be started.
        """
        if self._node is None:
            raise SkipError(self.missing() or f"see {self.name}:prepare")
        return self._node

    def close(self) -> None:
        """Stop what open() started."""
        self._stack.close()


@contextmanager
def _daemon(machine: Machine, at: Node, deadline: Deadline) -> Iterator[None]:
    """Run an MPS control daemon; compute mode, MIG and clocks stay as they are.

    Raises:
        CheckError: It does not answer in time.
    """
    logs = at.folder / "mps-log"
    logs.mkdir()
    env = {
        **machine.environment(),
        "CUDA_MPS_PIPE_DIRECTORY": str(at.pipes),
        "CUDA_MPS_LOG_DIRECTORY": str(logs),
    }
    if machine.library_folder is not None:
        env["LD_LIBRARY_PATH"] = str(machine.library_folder)
    # A session of its own, so that the servers that it starts can be ended with it.
    process = subprocess.Popen(
        [*machine.mps_control, "-f"],
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        while not _answers(at.pipes / "control"):
            if process.poll() is not None or deadline.left_seconds() <= 0:
                found = "is silent" if process.poll() is None else f"ended with {process.poll()}"
                raise CheckError(f"{MPS_CONTROL} {found}{_log(logs)}")
            time.sleep(_POLL_SECONDS)
        yield
    finally:
        _quit(machine, env, process)


def _quit(machine: Machine, env: dict[str, str], process: "subprocess.Popen[bytes]") -> None:
    with suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(
            machine.mps_control,
            env=env,
            input=b"quit\n",
            capture_output=True,
            timeout=_QUIT_SECONDS,
            check=False,
        )
        process.wait(_QUIT_SECONDS)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _answers(path: Path) -> bool:
    for kind in _KINDS:
        with socket.socket(socket.AF_UNIX, kind) as connection:
            try:
                connection.connect(str(path))
            except OSError:
                continue
            return True
    return False


def _log(folder: Path) -> str:
    lines = [
        line
        for file in sorted(folder.iterdir())
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines()[-4:]
    ]
    return "".join(f"\n  {line[:300]}" for line in lines)
