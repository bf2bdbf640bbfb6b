"""Containers of runc with exactly the edits of a CDI spec, for programs that use stand-in GPUs.

The image is a folder with a shell, `env` and the program `tenant`, and what they load. Beyond the
edits, a container gets only the folder of the stand-ins' cards.
"""

import hashlib
import json
import os
import re
import shutil
import stat
import subprocess
import tarfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dra_simulator.runtime import Container
from stand_ins.libraries import PATH_IN_CONTAINER

_PROGRAMS: Final = ("/bin/sh", "/usr/bin/env", "/bin/cat", "/bin/sleep")
_LOADED: Final = re.compile(r"(/\S+) \(0x")
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_RUN_SECONDS: Final = 300
_CAPABILITIES: Final = ("CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_KILL", "CAP_SETGID", "CAP_SETUID")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A program that ended in a container.

    Attributes:
        printed: The JSON objects that it printed.
    """

    code: int
    printed: Sequence[Mapping[str, Any]]
    errors: str

    @property
    def results(self) -> list[int]:
        """The CUresult of each command of `tenant`."""
        return [each["result"] for each in self.printed]


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A program that waits in a container.

    Attributes:
        exec: Runs another program in the same container until it ends.
        go: Ends the wait.
        end: Ends this wait and all later ones; returns what was printed after the first one.
    """

    printed: Sequence[Mapping[str, Any]]
    exec: Callable[..., Ended]
    go: Callable[[], None]
    end: Callable[[], Ended]


class Image:
    """Root folder of containers."""

    def __init__(self, root: Path, tenant: Path) -> None:
        """Copy the programs, and the libraries that they load from the usual folders."""
        self.root: Final = root
        for program in _PROGRAMS:
            self._copy(Path(program))
            for library in _libraries(Path(program)):
                self._copy(library)
        self.add("usr/bin/tenant", tenant.read_bytes(), mode=0o755)
        for folder in ("dev", "proc", "etc", "tmp"):
            (root / folder).mkdir(parents=True, exist_ok=True)
        (root / "tmp").chmod(0o1777)

    def add(self, path: str, content: bytes, *, mode: int = 0o644) -> None:
        """Add a file to the image."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        file.chmod(mode)

    def archive(self, file: Path, name: str) -> Path:
        """Write the image as `docker save` does; without a command its containers sleep."""
        layer, config = file.with_suffix(".layer"), file.with_suffix(".config")
        with tarfile.open(layer, "w") as tar:
            tar.add(self.root, arcname=".")
        digest = hashlib.sha256(layer.read_bytes()).hexdigest()
        content = {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Entrypoint": ["sleep", "3600"], "Env": [f"PATH={_PATH}"]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        }
        config.write_text(json.dumps(content))
        entry = {"Config": config.name, "RepoTags": [name], "Layers": [layer.name]}
        manifest = file.with_name("manifest.json")
        manifest.write_text(json.dumps([entry]))
        with tarfile.open(file, "w") as tar:
            for each in (layer, config, manifest):
                tar.add(each, arcname=each.name)
        return file

    def _copy(self, file: Path) -> None:
        target = self.root / file.relative_to("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, target)


def _libraries(program: Path) -> list[Path]:
    shown = subprocess.run(["ldd", str(program)], capture_output=True, check=True).stdout.decode()
    return [Path(path) for path in _LOADED.findall(shown)]


class Runc:
    """Starter of containers from one image."""

    def __init__(self, folder: Path, root: Path, cards: Path, *, runc: str = "runc") -> None:
        """Remember where things are.

        Args:
            folder: For bundles and runc's own state.
            root: Of the containers, as an image has it.
            cards: The stand-ins' file of cards.
        """
        self._folder: Final = folder
        self._root: Final = root
        self._cards: Final = cards
        self._runc: Final = runc

    def run(self, container: Container, *words: str, **more: Any) -> Ended:
        """Run a program in a container of its own until it ends; see _config() for `more`."""
        with self._started(container, words, **more) as (_, process):
            return _ended(process)

    @contextmanager
    def waiting(self, container: Container, *words: str, **more: Any) -> "Iterator[Waiting]":
        """Run `tenant` in a container; yield once it waits in its command `wait`.

        The container ends after the block.
        """
        with self._started(container, ("tenant", *words), **more) as (name, process):
            printed: list[Mapping[str, Any]] = []
            while not printed or printed[-1]["command"] != "wait":
                if process.stdout is None or not (line := process.stdout.readline()):
                    raise RuntimeError(f"tenant {words}: found {printed}, expected a wait")
                printed.append(json.loads(line))
            yield Waiting(
                printed=printed,
                exec=lambda *each: self._exec(name, each),
                go=lambda: _send_line(process),
                end=lambda: _ended(process),
            )

    def _exec(self, name: str, words: Sequence[str]) -> Ended:
        with _process(self._command("exec", name, *words)) as process:
            return _ended(process)

    @contextmanager
    def _started(
        self, container: Container, words: Sequence[str], **more: Any
    ) -> "Iterator[tuple[str, subprocess.Popen[bytes]]]":
        name = f"stand-in-{uuid.uuid4().hex[:12]}"
        bundle = self._folder / name
        bundle.mkdir(parents=True)
        (bundle / "config.json").write_text(json.dumps(self._config(container, words, **more)))
        with _process(self._command("run", "--bundle", str(bundle), name)) as process:
            try:
                yield name, process
            finally:
                if process.poll() is None:
                    process.communicate(timeout=_RUN_SECONDS)

    def _command(self, *words: str) -> list[str]:
        return [self._runc, "--root", str(self._folder / "runc"), *words]

    def _config(
        self,
        container: Container,
        words: Sequence[str],
        *,
        hooks: Mapping[str, Any] | None = None,
        cgroup: str = "",
    ) -> Mapping[str, Any]:
        """Return the bundle's configuration, with hooks by name and a cgroup other than runc's."""
        nodes = [_node(each.path, Path(each.host_path)) for each in container.device_nodes]
        mounts = [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["mode=755"]},
            _bind(str(self._cards.parent), PATH_IN_CONTAINER, ("rw", "rbind")),
            *(
                _bind(each.host_path, each.container_path, each.options)
                for each in container.mounts
            ),
        ]
        env = {"PATH": _PATH, **container.env}
        return {
            "ociVersion": "1.0.2",
            "root": {"path": str(self._root), "readonly": False},
            "process": {
                "terminal": False,
                "user": {"uid": 0, "gid": 0},
                "args": list(words),
                "env": [f"{name}={value}" for name, value in env.items()],
                "cwd": "/",
                "capabilities": {
                    kind: list(_CAPABILITIES) for kind in ("bounding", "effective", "permitted")
                },
                "noNewPrivileges": True,
            },
            "mounts": mounts,
            "hooks": hooks or {},
            "annotations": {"run.oci.hooks.stderr": "/dev/stderr"},  # crun drops it otherwise
            "linux": {
                **({"cgroupsPath": cgroup} if cgroup else {}),
                "namespaces": [{"type": each} for each in ("pid", "ipc", "mount", "uts")],
                "devices": nodes,
                "resources": {  # as CDI's own library allows them
                    "devices": [
                        {"allow": True, "access": "rwm"}
                        | {name: each[name] for name in ("type", "major", "minor")}
                        for each in nodes
                    ]
                },
            },
        }


def _process(command: Sequence[str]) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe)


def _send_line(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        process.stdin.write(b"\n")
        process.stdin.flush()


def _ended(process: subprocess.Popen[bytes]) -> Ended:
    out, err = process.communicate(timeout=_RUN_SECONDS)
    printed = [json.loads(line) for line in out.splitlines() if line.startswith(b"{")]
    return Ended(code=process.returncode, printed=printed, errors=err.decode(errors="replace"))


def _bind(source: str, destination: str, options: Sequence[str]) -> Mapping[str, Any]:
    return {
        "type": "bind",
        "source": source,
        "destination": destination,
        "options": list(options),
    }


def _node(path: str, host_path: Path) -> Mapping[str, Any]:
    status = host_path.stat()
    return {
        "path": path,
        "type": "c" if stat.S_ISCHR(status.st_mode) else "b",
        "major": os.major(status.st_rdev),
        "minor": os.minor(status.st_rdev),
        "fileMode": stat.S_IMODE(status.st_mode),
    }
