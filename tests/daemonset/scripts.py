"""Running the shell scripts of the manifests, with small stand-ins for NVIDIA's programs."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

from tests.daemonset.test_manifests import VARIANTS
from tests.support import helm
from tests.support.waiting import PATIENCE_SECONDS

Container: TypeAlias = subprocess.Popen[bytes]
"""The main process of a running container."""

Started: TypeAlias = AbstractContextManager[Container]
"""A running container: ended, with all that it started, when the block ends."""


def container(variant: str, name: str) -> dict[str, Any]:
    """Return a container of the chart with the values of a variant."""
    (one,) = (
        each for each in helm.containers(helm.render(VARIANTS[variant])) if each["name"] == name
    )
    return one


def variables(of: Mapping[str, Any]) -> dict[str, str]:
    """Return the container's environment."""
    return {entry["name"]: entry["value"] for entry in of["env"]}


def command(of: Mapping[str, Any]) -> list[str]:
    """Return the container's command line."""
    return [*of["command"], *of.get("args", [])]


def put_program(folder: Path, name: str, text: str) -> None:
    """Write a program that the scripts find on their PATH."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


def stand_in_program(file: str) -> str:
    """Return a program that runs a Python file with its arguments."""
    return f'#!/bin/sh\nexec "{sys.executable}" -S -I "{file}" "$@"\n'


def path_with(folder: Path) -> str:
    return f"{folder}:{os.environ['PATH']}"


def run(line: list[str], env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a container's command line to its end."""
    return subprocess.run(
        line,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


@contextmanager
def started(line: list[str], env: Mapping[str, str], output: Path) -> Iterator[Container]:
    """Start a container's command line; end it, and what it started, after the block."""
    with output.open("wb") as file:
        process = subprocess.Popen(
            line,
            env={**os.environ, **env},
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        # Also what the script left running, as a container runtime does.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(PATIENCE_SECONDS)
