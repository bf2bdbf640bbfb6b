"""Containers of containerd's CRI, which reads the CDI specs itself, as under a kubelet.

Its programs are in one folder: containerd, containerd-shim-runc-v2, ctr, runc and crictl. Pods have
the host's network, so no CNI plugin is needed.
"""

import json
import os
import subprocess
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from stand_ins.bundle import Image

_IMAGE: Final = "docker.io/library/stand-in:1"
_CONFIG: Final = """\
version = 3
root = "{folder}/root"
state = "{folder}/state"
[grpc]
  address = "{folder}/socket"
[ttrpc]
  address = "{folder}/ttrpc"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{image}"
[plugins."io.containerd.cri.v1.runtime"]
  enable_cdi = true
  cdi_spec_dirs = ["{specs}"]
  restrict_oom_score_adj = true
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
  BinaryName = "{runc}"
"""


class Containerd:
    """Starter of containers in pods, of which each is known by its cgroup."""

    def __init__(self, folder: Path, programs: Path, specs: Path, *, runc: str) -> None:
        """Start nothing yet.

        Args:
            folder: For its state.
            programs: Folder of its programs.
            specs: Folder of CDI specs.
            runc: Runtime; a name is searched in `programs` first.
        """
        self._folder: Final = folder
        self._env: Final = {
            **os.environ,
            "PATH": f"{programs.resolve()}:{os.environ['PATH']}",
            "CONTAINERD_ADDRESS": f"{folder}/socket",
            "CRI_CONFIG_FILE": f"{folder}/crictl.yaml",
        }
        self._sandboxes: Final[dict[str, tuple[str, Path]]] = {}
        folder.mkdir()
        config = _CONFIG.format(folder=folder, image=_IMAGE, specs=specs, runc=runc)
        (folder / "config.toml").write_text(config, encoding="utf-8")
        endpoints = {f"{each}-endpoint": f"unix://{folder}/socket" for each in ("runtime", "image")}
        (folder / "crictl.yaml").write_text(json.dumps({**endpoints, "timeout": 30}))

    @contextmanager
    def serving(self, image: Image) -> Iterator[None]:
        """Run containerd with this image; remove every pod and stop it after the block."""
        command = ["containerd", "--config", str(self._folder / "config.toml")]
        with (
            (self._folder / "log").open("wb") as log,
            subprocess.Popen(command, env=self._env, stdout=log, stderr=log) as process,
        ):
            try:
                while self._run("crictl", "info").returncode and process.poll() is None:
                    time.sleep(0.1)
                file = image.archive(self._folder / "image.tar", _IMAGE)
                self._run("ctr", "--namespace", "k8s.io", "images", "import", file, check=True)
                yield
            finally:
                self._run("crictl", "rmp", "--all", "--force")
                process.terminate()

    def start(self, cdi_ids: Iterable[str], pod: str, *words: str) -> tuple[str, str]:
        """Start a container; return its ID, the name of its cgroup, and why it did not start."""
        sandbox, config = self._sandboxes.get(pod) or self._sandbox(pod)
        document = {
            "image": {"image": _IMAGE},
            "command": words,
            "CDI_devices": [{"name": each} for each in cdi_ids],
        }
        file = self._write(document)
        made = self._run("crictl", "create", sandbox, file, config, check=True).stdout.strip()
        started = self._run("crictl", "start", made)
        return made, started.stderr if started.returncode else ""

    def ended(self, container: str) -> int:
        """Return the exit code of a container once it has ended; 128 if it was never started."""
        status = {"state": ""}
        while status["state"] != "CONTAINER_EXITED":
            time.sleep(0.1)
            inspected = self._run("crictl", "inspect", container, check=True)
            status = json.loads(inspected.stdout)["status"]
        return int(status["exitCode"])

    def _sandbox(self, pod: str) -> tuple[str, Path]:
        name = uuid.uuid4().hex[:12]
        config = self._write(
            {
                "metadata": {"name": name, "namespace": "default", "uid": name},
                "linux": {
                    "cgroup_parent": f"/{pod}",
                    "security_context": {"namespace_options": {"network": 2}},
                },
            }
        )
        made = self._run("crictl", "runp", config, check=True).stdout.strip()
        return self._sandboxes.setdefault(pod, (made, config))

    def _write(self, document: Any) -> Path:
        name = uuid.uuid4().hex[:12]
        file = self._folder / f"{name}.json"
        file.write_text(json.dumps({"metadata": {"name": name}, **document}), encoding="utf-8")
        return file

    def _run(self, *command: Any, check: bool = False) -> "subprocess.CompletedProcess[str]":
        done = subprocess.run(command, env=self._env, capture_output=True, text=True, check=False)
        if check and done.returncode:
            raise OSError(f"{command}: {done.stderr}")
        return done
