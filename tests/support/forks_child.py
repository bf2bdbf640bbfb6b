"""Server that forks processes of the command: ``python -m tests.support.forks_child SOCKET``.

Imports take most of the command's start, so this process does them once. At the time of a fork, it
has no other threads, and no library has an open connection. Therefore the fork behaves like a
process of its own. Processes that a fork starts itself, such as the node plugin of `simulate`, are
forked here too.

The server prints a line when it is ready and ends when its stdin is closed. Each connection sends
one line, a JSON list, and gets JSON back:

    ["start", arguments, [stdin, stdout, stderr], environment, folder]   the process ID
    ["ended", process ID]                  Popen.returncode, or null while it runs

The arguments are those of ``python -m``, beginning with the module.
"""

import gc
import importlib
import json
import os
import random
import runpy
import select
import socket
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import kubernetes.client
import kubernetes.config  # noqa: F401 - for the forks

from tensorfusion_dra import cli
from tensorfusion_dra.app.simulate import plugin_process
from tensorfusion_dra.discovery import models
from tensorfusion_dra.discovery.nvml import nvml_discovery  # noqa: F401 - for the forks
from tensorfusion_dra.discovery.simulated import simulated_discovery  # noqa: F401 - for the forks
from tests.support import forks

_APPEND: Final = os.O_WRONLY | os.O_CREAT | os.O_APPEND
_STREAMS: Final = (os.O_RDONLY, _APPEND, _APPEND)


def main() -> None:
    threads = len(list(Path("/proc/self/task").iterdir()))
    assert threads == 1, f"{threads} threads, expected 1: a fork would lack the others"
    plugin_process.spawn = forks.spawn
    for verb in cli.VERBS:
        importlib.import_module(f"tensorfusion_dra.app.{verb.module}")
    models.load()
    # The garbage collector of a fork then leaves these objects alone and does not copy their pages.
    gc.freeze()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(sys.argv[1])
        listening.listen(64)
        sys.stdout.write("serving\n")
        sys.stdout.flush()
        while True:
            ready, _, _ = select.select([listening, sys.stdin], [], [])
            if sys.stdin in ready:
                return
            connection, _ = listening.accept()
            with connection, connection.makefile("rw", encoding="utf-8") as stream:
                line = stream.readline()
                if line:
                    verb, *rest = json.loads(line)
                    inherited = (listening, connection)
                    answer = start(inherited, *rest) if verb == "start" else ended(*rest)
                    stream.write(json.dumps(answer) + "\n")


def start(
    inherited: Sequence[socket.socket],
    arguments: list[str],
    streams: list[str],
    environment: dict[str, str],
    folder: str,
) -> int:
    files = [os.open(name, flags, 0o600) for name, flags in zip(streams, _STREAMS, strict=True)]
    pid = os.fork()
    if pid:
        for file in files:
            os.close(file)
        return pid
    code: Any = 1
    try:
        for number, file in enumerate(files):
            os.dup2(file, number)
        for unwanted in (*files, *(each.fileno() for each in inherited)):
            os.close(unwanted)
        run(arguments, environment, folder)
        code = 0
    except SystemExit as ending:
        code = ending.code or 0
    except BaseException:  # noqa: BLE001 - a fork never comes back to main()
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def run(arguments: list[str], environment: dict[str, str], folder: str) -> None:
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    random.seed()
    module, *sys.argv[1:] = arguments
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def ended(pid: int) -> int | None:
    found, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if found else None


if __name__ == "__main__":
    main()
