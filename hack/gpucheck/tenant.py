"""A process with what a CDI spec adds to a container, without a container runtime."""

import json
import queue
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from dra_simulator import runtime
from dra_simulator.runtime import Mount
from gpucheck.machine import Machine
from gpucheck.steps import CheckError, Deadline
from tensorfusion_dra.core import names

Environment = Mapping[str, str]

_LOAD: Final = Path(__file__).with_name("load.py")
_PRELOAD_FILE: Final = "/etc/ld.so.preload"
_LIBRARY_FOLDERS: Final = ("/usr/lib", "/usr/bin")
"""Folders in a container that get the NVIDIA driver's own files."""
_END_SECONDS: Final = 5.0
_ERROR_LINES: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Edits:
    """Edits of CDI devices, merged as a container runtime does.

    Attributes:
        device_nodes: Paths on the host. No container hides the others from a tenant of the check.
    """

    env: Mapping[str, str]
    mounts: Sequence[Mount]
    device_nodes: Sequence[str]


def edits_of(ids: Sequence[str], folder: Path) -> Edits:
    """Return the edits of the devices with these qualified names.

    Raises:
        CheckError: The folder has no spec with one of them.
    """
    found = runtime.cdi_devices([folder])
    missing = [each for each in ids if each not in found.devices]
    if missing:
        raise CheckError(f"CDI devices: found no {', '.join(missing)} in the specs, expected them")
    devices = [found.devices[each] for each in ids]
    parts = [devices[0].spec_edits, *(device.edits for device in devices)]
    return Edits(
        env=dict(entry.split("=", 1) for part in parts for entry in part.get("env") or ()),
        mounts=[
            Mount(host_path=entry["hostPath"], container_path=entry["containerPath"])
            for part in parts
            for entry in part.get("mounts") or ()
        ],
        device_nodes=[
            entry.get("hostPath") or entry["path"]
            for part in parts
            for entry in part.get("deviceNodes") or ()
        ],
    )


def bare(machine: Machine, links: Path) -> Environment:
    """Return the environment of a process without limits.

    Args:
        links: Folder for links to the driver's libraries.
    """
    return {**machine.environment(), **_loader(machine.library_folder, links, ())}


def of_edits(edits: Edits, machine: Machine, links: Path) -> Environment:
    """Return the environment of a process with the edits of a CDI spec.

    The driver's libraries are found through a folder of links to the spec's mounts. Paths of the
    other mounts are replaced by those on the host, and a preload file by the variable LD_PRELOAD.

    Args:
        links: Folder for links to the driver's libraries.
    """
    ours = [each for each in edits.mounts if not _is_driver(each)]
    env = dict(edits.env)
    for mount in ours:
        if mount.container_path == _PRELOAD_FILE:
            libraries = Path(mount.host_path).read_text(encoding="utf-8").split()
            env[names.ENV_LD_PRELOAD] = ":".join(_on_host(each, ours) for each in libraries)
    drivers = [each for each in edits.mounts if _is_driver(each)]
    return {
        **machine.environment(),
        **_loader(machine.library_folder, links, drivers),
        **{name: _on_host(value, ours) for name, value in env.items()},
    }


def _is_driver(mount: Mount) -> bool:
    return mount.container_path.startswith(_LIBRARY_FOLDERS)


def _loader(found: Path | None, links: Path, mounts: Sequence[Mount]) -> dict[str, str]:
    """Return the variable by which the loader finds the driver's libraries."""
    links.mkdir(exist_ok=True)
    for mount in mounts:
        link = links / Path(mount.container_path).name
        if not link.is_symlink():
            link.symlink_to(mount.host_path)
    folders = [str(links)] if mounts else []
    return {"LD_LIBRARY_PATH": ":".join([*folders, *([str(found)] if found else [])])}


def _on_host(value: str, mounts: Sequence[Mount]) -> str:
    for mount in mounts:
        if value == mount.container_path or value.startswith(f"{mount.container_path}/"):
            return mount.host_path + value.removeprefix(mount.container_path)
    return value


class Tenant(AbstractContextManager["Tenant"]):
    """A process that uses the card; see load.py for its commands.

    Attributes:
        facts: What the card says of itself.
    """

    def __init__(self, name: str, env: Environment, deadline: Deadline) -> None:
        """Start the process and wait until it has opened the card.

        Raises:
            CheckError: It cannot use the card, or not in time.
        """
        self._name = name
        self._deadline = deadline
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._process = subprocess.Popen(
            [sys.executable, str(_LOAD)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(env),
            text=True,
        )
        streams = (self._process.stdin, self._process.stdout, self._process.stderr)
        stdin, stdout, stderr = (each for each in streams if each is not None)
        self._stdin, self._stdout, self._stderr = stdin, stdout, stderr
        self._errors: list[str] = []
        self._threads = [
            threading.Thread(target=self._read_answers),
            threading.Thread(target=self._read_errors),
        ]
        for thread in self._threads:
            thread.start()
        try:
            self.facts: dict[str, Any] = self._answer()["facts"]
        except BaseException:
            self.close()
            raise

    def start(self, do: str, **arguments: object) -> None:
        """Send a command; finish() returns its answer.

        Raises:
            CheckError: The process has ended.
        """
        try:
            self._stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            self._stdin.flush()
        except OSError as error:
            raise CheckError(f"{self._name}: {do}: {error.strerror}{self._tail()}") from error

    def finish(self) -> dict[str, Any]:
        """Return the answer to the last command.

        Raises:
            CheckError: It is an error, or there is none in time.
        """
        return self._answer()

    def ask(self, do: str, **arguments: object) -> dict[str, Any]:
        """Send a command and return its answer.

        Raises:
            CheckError: It is an error, or there is none in time.
        """
        self.start(do, **arguments)
        return self.finish()

    def close(self) -> None:
        """End the process and its threads."""
        for act in (self._stdin.close, self._wait):
            try:
                act()
            except (OSError, subprocess.TimeoutExpired):
                self._process.kill()
        self._process.wait()
        for thread in self._threads:
            thread.join()
        self._stdout.close()
        self._stderr.close()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _wait(self) -> None:
        self._process.wait(_END_SECONDS)

    def _answer(self) -> dict[str, Any]:
        try:
            line = self._answers.get(timeout=max(0.1, self._deadline.left_seconds()))
        except queue.Empty:
            raise CheckError(f"{self._name}: found no answer in time{self._tail()}") from None
        if not line:
            raise CheckError(
                f"{self._name}: the process ended with {self._process.wait()}{self._tail()}"
            )
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise CheckError(f"{self._name}: {answer['error']}{self._tail()}")
        return answer

    def _read_answers(self) -> None:
        # A limiter may print lines of its own.
        for line in self._stdout:
            if line.startswith("{"):
                self._answers.put(line)
        self._answers.put("")

    def _read_errors(self) -> None:
        for line in self._stderr:
            self._errors = [*self._errors[1 - _ERROR_LINES :], line.strip()[:300]]

    def _tail(self) -> str:
        return "".join(f"\n  {line}" for line in self._errors)
