"""Containers of runc with exactly the edits of a CDI spec, for programs that use stand-in GPUs.

The image is a folder with a shell, `env` and the program `tenant`, and what they load. Beyond the
edits, a container gets only the folder of the stand-ins' cards.
"""

import json
import os
import re
import shutil
import stat
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from stand_ins.libraries import PATH_IN_CONTAINER
from tensorfusion_dra.simulator.runtime import Container

_PROGRAMS: Final = ("/bin/sh", "/usr/bin/env", "/bin/cat")
_LOADED: Final = re.compile(r"(/\S+) \(0x")
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_RUN_SECONDS: Final = 300
_CAPABILITIES: Final = ("CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_KILL", "CAP_SETGID", "CAP_SETUID")


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

    def _copy(self, file: Path) -> None:
        target = self.root / file.relative_to("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, target)


def _libraries(program: Path) -> list[Path]:
    shown = subprocess.run(["ldd", str(program)], capture_output=True, check=True).stdout.decode()
    return [Path(path) for path in _LOADED.findall(shown)]


class Runc:
    """Starter of containers from one image."""

    def __init__(self, folder: Path, image: Image, cards: Path, *, runc: str = "runc") -> None:
        """Remember where things are.

        Args:
            folder: For bundles and runc's own state.
            cards: The stand-ins' file of cards.
        """
        self._folder: Final = folder
        self._image: Final = image
        self._cards: Final = cards
        self._runc: Final = runc

    def start(self, container: Container, words: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start a container with these edits; its standard streams are those of the process."""
        name = f"stand-in-{uuid.uuid4().hex[:12]}"
        bundle = self._folder / name
        bundle.mkdir(parents=True)
        config = self._config(container, words)
        (bundle / "config.json").write_text(json.dumps(config))
        return subprocess.Popen(
            [
                self._runc,
                "--root",
                str(self._folder / "runc"),
                "run",
                "--bundle",
                str(bundle),
                name,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def run(self, container: Container, words: Sequence[str]) -> tuple[list[Any], str]:
        """Run a container until it ends; return the JSON lines that it printed, and its errors."""
        with self.start(container, words) as process:
            out, err = process.communicate(timeout=_RUN_SECONDS)
        return json_lines(out), err.decode(errors="replace")

    def _config(self, container: Container, words: Sequence[str]) -> Mapping[str, Any]:
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
            "root": {"path": str(self._image.root), "readonly": False},
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
            "linux": {
                "namespaces": [{"type": each} for each in ("pid", "ipc", "mount", "uts")],
                "devices": nodes,
            },
        }


def json_lines(printed: bytes) -> list[Any]:
    """Return the lines that are JSON objects."""
    return [json.loads(line) for line in printed.splitlines() if line.startswith(b"{")]


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
