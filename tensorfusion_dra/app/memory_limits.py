"""The verb `memory-limits`: set memory limits of cgroups for the node plugin and for hooks.

It needs what the node plugin does not have: all capabilities, and write access to the host's
cgroups. So it is a container of its own, serves only root, and takes the UID of a pod rather than a
path: it finds the cgroup below kubepods itself.

The node plugin asks over a socket (enforcers/nvidia/enforcer.py). The hooks of containers, which
are shell scripts, write a line into a pipe and wait for a file (enforcers/nvidia/enforcer.py).
"""

import argparse
import json
import os
import select
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import structlog

from tensorfusion_dra.app.shared import logging, node_settings, setting_sources
from tensorfusion_dra.core import names
from tensorfusion_dra.core.errors import FatalError, RetryableError
from tensorfusion_dra.discovery.nvml.memory_limits import CgroupLimits
from tensorfusion_dra.enforcers.nvidia.enforcer import FOLDER, REQUESTS, SOCKET, Nvidia
from tensorfusion_dra.runtime.supervisor import Supervisor
from tensorfusion_dra.state import atomic

log = structlog.get_logger()

_POLL_SECONDS: Final = 0.5
_CLIENT_SECONDS: Final = 2.0
_MAX_REQUEST_BYTES: Final = 1 << 20
"""A pod and 250 others, the most that a node usually has, on 16 cards take 250 KB."""
_PIPE_BYTES: Final = 1 << 16


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `memory-limits` and the node plugin's settings."""
    parser.add_argument(
        "--every-container",
        action="store_true",
        help="limit a container's cgroup also where it has no dmem.max; two containers of one "
        "claim may then use its memory twice",
    )
    setting_sources.add_flags(parser, node_settings.Settings, is_hidden=True)


def run(flags: argparse.Namespace) -> int:
    """Serve until stopped; return the exit code.

    Raises:
        InputError: A setting cannot be used.
    """
    settings = node_settings.from_flags(flags, os.environ)
    logging.configure(level=settings.log_level, form=settings.log_format)
    os.umask(0o077)
    limits = CgroupLimits(
        Path(settings.nvml_library) if settings.nvml_library else None,
        Path(settings.driver_root),
        every_container=flags.every_container,
        replacement_marker=Path(settings.tensor_fusion_root) / names.DRIVER_REPLACEMENT_MARKER_FILE,
    )
    folder = Path(settings.tensor_fusion_root) / Nvidia.name / FOLDER
    supervisor = Supervisor()
    supervisor.stop_on_signals()
    with supervisor:
        server = LimitsServer(limits, folder)
        log.info("serving", path=str(folder))
        supervisor.run("memory-limits", lambda: server.run(supervisor))
        cause = supervisor.wait()
    log.info("stopped", error=str(cause) if cause else None)
    return 1 if cause else 0


class LimitsServer:
    """Server of a socket and a pipe, in one thread."""

    def __init__(self, limits: CgroupLimits, folder: Path) -> None:
        """Bind the socket in place of that of an earlier process, and open the pipe.

        Raises:
            OSError: A file cannot be created.
        """
        self._limits = limits
        self._folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._listener = socket.socket(socket.AF_UNIX)
        bound = folder / f".{SOCKET}.{os.getpid()}"
        bound.unlink(missing_ok=True)
        self._listener.bind(str(bound))
        bound.chmod(0o600)
        self._listener.listen()
        bound.replace(folder / SOCKET)  # an instance that still runs keeps its own socket
        with suppress(FileExistsError):
            os.mkfifo(folder / REQUESTS, 0o600)
        # For writing too: otherwise the pipe would be at its end between two hooks.
        self._pipe = os.open(folder / REQUESTS, os.O_RDWR | os.O_NONBLOCK)

    def run(self, supervisor: Supervisor) -> None:
        """Answer until stopped.

        Raises:
            FatalError: The NVIDIA driver was replaced, or will be; only a new process can load
                its library.
        """
        with self._listener, os.fdopen(self._pipe):
            while not supervisor.stopping.is_set():
                with suppress(RetryableError):
                    self._limits.check_driver()
                listener = self._listener.fileno()
                ready, _, _ = select.select([listener, self._pipe], [], [], _POLL_SECONDS)
                if listener in ready:
                    connection, _ = self._listener.accept()
                    with connection, suppress(OSError):
                        self._serve(connection)
                if self._pipe in ready:
                    # Lines are whole: the kernel does not split a write of less than a page.
                    for line in os.read(self._pipe, _PIPE_BYTES).decode().splitlines():
                        self._serve_hook(line)

    def _serve(self, connection: socket.socket) -> None:
        connection.settimeout(_CLIENT_SECONDS)
        with connection.makefile("rw", encoding="utf-8") as stream:
            line = stream.readline(_MAX_REQUEST_BYTES)
            if not line:
                return  # the node plugin only tried whether a process listens
            answer: dict[str, Any] = {}
            try:
                answer["found"] = self._answer(json.loads(line))
            except (RetryableError, FatalError, ValueError, KeyError, OSError) as error:
                answer["error"] = str(error)
                if isinstance(error, FatalError):
                    raise
            finally:
                stream.write(json.dumps(answer) + "\n")

    def _answer(self, request: dict[str, Any]) -> Any:
        if request["verb"] == "set":
            return self._limits.set(request["pod"], request["limits"], request["beside"])
        if request["verb"] == "get":
            return self._limits.get(request["pod"], request["gpus"])
        return self._limits.check()

    def _serve_hook(self, line: str) -> None:
        pid, pod_uid, wanted, cgroup = line.split(maxsplit=3)
        pairs = (pair.partition("=") for pair in wanted.split(","))
        limits = {uuid: int(amount) for uuid, _, amount in pairs}
        text = "ok"
        try:
            self._limits.set_container(pod_uid, cgroup, limits)
        except (RetryableError, FatalError, OSError) as error:
            text = str(error)
            if isinstance(error, FatalError):
                raise
        finally:
            log.info("container_limited", path=cgroup, error=None if text == "ok" else text)
            # With the cgroup: a later container may have got the PID of one that did not wait.
            atomic.write(
                self._folder / f"{int(pid)}.answer",
                f"{cgroup} {text}".encode(),
                mode=0o600,
                durable=False,
            )
