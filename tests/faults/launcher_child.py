"""Starts node plugins by forking: ``python -m tests.faults.launcher_child``.

What a node plugin imports takes it most of its start; here it is imported once. No thread has
started and no library holds a connection when it forks, so that what runs in the fork is what
would run in a process of its own.

It answers each line on stdin, a JSON list, with a line:

    ["start", log file, environment, arguments]   the process ID
    ["ended", process ID]                         Popen.returncode, or empty while it runs
"""

import gc
import json
import os
import sys
import traceback

import kubernetes.client
import kubernetes.config  # noqa: F401 - for the forks

from tensorfusion_dra import cli
from tensorfusion_dra.app import logging, node_plugin, settings  # noqa: F401 - for the forks


def main() -> None:
    # What is here stays here, and the collector of a fork does not copy its pages.
    gc.freeze()
    for line in sys.stdin:
        verb, *rest = json.loads(line)
        answer = start(*rest) if verb == "start" else ended(*rest)
        sys.stdout.write(f"{answer}\n")
        sys.stdout.flush()


def start(log_file: str, environment: dict[str, str], arguments: list[str]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        log = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        nothing = os.open(os.devnull, os.O_RDWR)
        for number, file in enumerate((nothing, nothing, log)):
            os.dup2(file, number)
        os.environ.update(environment)
        code = cli.main(arguments)
    except BaseException:  # noqa: BLE001 - a fork never comes back to main()
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def ended(pid: int) -> int | str:
    found, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if found else ""


if __name__ == "__main__":
    main()
