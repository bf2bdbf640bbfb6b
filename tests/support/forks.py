"""Processes of the command that start in milliseconds, as forks of one with all modules imported.

See ``forks_child`` for the forking process. A test of the start itself, or of the cost of a
process, uses ``subprocess`` instead.
"""

import atexit
import functools
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from tensorfusion_dra.app.simulate.plugin_process import Process
from tests.guard import processes
from tests.guard import sitecustomize as path_guard
from tests.support.waiting import PATIENCE_SECONDS

ROOT: Final = Path(__file__).parents[2]
SOCKET_VARIABLE: Final = "TEST_FORKS_SOCKET"
Ended = subprocess.CompletedProcess[str]
DRIVER: Final = "tensorfusion_dra"
"""The command's module."""
_PYTHON: Final = (sys.executable, "-m")


class Starter(Protocol):
    """A way to start processes of the command."""

    def start(
        self, arguments: Sequence[str], log_file: Path, environment: Mapping[str, str]
    ) -> Process:
        """Start a process that appends stderr to the file and gets additional variables."""
        ...


class Commands:
    """Starter that runs the command line, as a pod does."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Store the variables to add to the environment of each process."""
        self._environment: Final = environment

    def start(
        self, arguments: Sequence[str], log_file: Path, environment: Mapping[str, str]
    ) -> Process:
        with log_file.open("ab") as log:
            return subprocess.Popen(
                [*_PYTHON, DRIVER, *arguments],
                env={**os.environ, **self._environment, **environment},
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stderr=log,
            )


class Forks:
    """Starter that forks a process which has been started with its own environment.

    That environment is what LD_PRELOAD needs, since it takes effect only at the start of a process.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        """Start the process that forks, with additional variables."""
        self._folder: Final = Path(tempfile.mkdtemp(prefix="forks-"))
        self.socket: Final = self._folder / "socket"
        self._process: Final = subprocess.Popen(
            [sys.executable, "-m", "tests.support.forks_child", str(self.socket)],
            env={**os.environ, **(environment or {})},
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline(), "the process that forks has ended"

    def start(
        self, arguments: Sequence[str], log_file: Path, environment: Mapping[str, str]
    ) -> Process:
        return _logging(self.socket, (DRIVER, *arguments), log_file, {**os.environ, **environment})

    def close(self) -> None:
        """End the process that forks. Its forks must have ended before."""
        self._process.communicate(timeout=PATIENCE_SECONDS)
        shutil.rmtree(self._folder)


class Forked:
    """A forked process; implements plugin_process.Process."""

    def __init__(self, server: Path, pid: int) -> None:
        """Store the process ID and the socket of the process that forked it."""
        self._server: Final = server
        self.pid: Final = pid
        self._code: int | None = None

    def poll(self) -> int | None:
        if self._code is None:
            self._code = _ask(self._server, "ended", self.pid)
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        if self.poll() is None:
            ended = select.poll()
            file = os.pidfd_open(self.pid)
            ended.register(file, select.POLLIN)
            ended.poll(None if timeout is None else timeout * 1000)
            os.close(file)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
        return code

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


def spawn(command: Sequence[str], log_file: Path) -> Forked:
    """Start this command line of the driver; its stderr is appended to the file."""
    python, arguments = tuple(command[:2]), command[2:]
    assert python == _PYTHON
    return _logging(_socket(), arguments, log_file, os.environ)


def run(
    *arguments: str,
    module: str = DRIVER,
    stdin: bytes = b"",
    environment: Mapping[str, str] | None = None,
    folder: Path = ROOT,
) -> Ended:
    """Run ``python -m MODULE ARGUMENTS`` to its end.

    Args:
        environment: The complete environment; None for this process's own.
        folder: The working directory.
    """
    with tempfile.TemporaryDirectory(prefix="run-") as name:
        given, out, err = (Path(name) / stream for stream in ("stdin", "stdout", "stderr"))
        given.write_bytes(stdin)
        process = _forked(
            _socket(),
            (module, *arguments),
            (str(given), str(out), str(err)),
            os.environ if environment is None else environment,
            folder,
        )
        code = process.wait(PATIENCE_SECONDS)
        printed = (file.read_bytes().decode() for file in (out, err))
        return Ended(arguments, code, *printed)


def command(*arguments: str, **environment: str) -> Ended:
    """Run the command in a process of its own."""
    guarded = path_guard.environment({"PATH": "/usr/bin:/bin", **environment})
    return run(*arguments, environment=guarded)


def _logging(
    server: Path, arguments: Sequence[str], log_file: Path, environment: Mapping[str, str]
) -> Forked:
    return _forked(server, arguments, (os.devnull, os.devnull, str(log_file)), environment, ROOT)


def _socket() -> Path:
    """Return the socket of the process that forked this one, or else of one started for it."""
    inherited = os.environ.get(SOCKET_VARIABLE)
    return Path(inherited) if inherited else _server().socket


@functools.cache
def _server() -> Forks:
    server = Forks()
    atexit.register(server.close)
    return server


def _forked(
    server: Path,
    arguments: Sequence[str],
    streams: tuple[str, str, str],
    environment: Mapping[str, str],
    folder: Path,
) -> Forked:
    sys.audit(processes.FORKED, "", arguments)
    environment = {**environment, SOCKET_VARIABLE: str(server)}
    pid = _ask(server, "start", list(arguments), streams, environment, str(folder))
    return Forked(server, pid)


def _ask(server: Path, *question: Any) -> Any:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(server))
        with connection.makefile("rw", encoding="utf-8") as stream:
            stream.write(json.dumps(question) + "\n")
            stream.flush()
            return json.loads(stream.readline())
