"""A process that a test kills; arguments: the name of a function below, and its arguments."""

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tensorfusion_dra.state import atomic
from tensorfusion_dra.state.publisher_lease import PublisherLease
from tests.support.stores import opened, put, recorded_claim

ROOT: Final = Path(__file__).parents[2]


@contextmanager
def running_child(function: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Run a function of this module in a process, and kill it at the end of the block."""
    command = [sys.executable, "-m", "tests.state.child", function, *map(str, arguments)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def line(process: subprocess.Popen[str]) -> str:
    """Return the next line that the process prints."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def write_and_die(file: str, text: str) -> None:
    """Replace a file, and be killed in the middle of it."""
    os.rename = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    atomic.write(Path(file), text.encode(), mode=0o644)


def record_claims(folder: str, name: str) -> None:
    """Record claims in this store, and print the UID of each once it is recorded."""
    with opened(Path(folder)) as store:
        for number in itertools.count():
            claim = recorded_claim(f"{name}-{number}", number=number)
            put(store, claim)
            print(claim.ref.uid, flush=True)  # noqa: T201


def take_lease(folder: str) -> None:
    """Take the lease to publish, print a line, and keep it."""
    lease = PublisherLease(Path(folder))
    lease.take()
    print("taken", flush=True)  # noqa: T201
    sys.stdin.read()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
