"""Node plugin under test: the installed DaemonSet, or a process on this machine."""

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from tests.e2e.cluster import Cluster, Json

LABEL_NAME = "app.kubernetes.io/name=tensorfusion-dra"
LABEL_NODE_PLUGIN = f"{LABEL_NAME},app.kubernetes.io/component=node-plugin"
_ROOT = Path(__file__).parents[2]
_STOP_SECONDS = 60.0


class Driver(Protocol):
    """Node plugin, with the operations that the tests need."""

    def start(self) -> None:
        """Start it, unless it runs."""
        ...

    def kill(self) -> None:
        """Kill it as a crash does; return once it is gone and has been started again."""
        ...

    def upgrade(self) -> None:
        """Replace it with a new instance that serves before the old one ends."""
        ...

    def configured(self, settings: Mapping[str, str]) -> AbstractContextManager[None]:
        """Run it with additional settings during the block."""
        ...

    def uninstall(self) -> None:
        """End it gracefully; nothing starts it again."""
        ...

    def power_cut(self) -> AbstractContextManager[None]:
        """Enclose a block that reboots the node; on exit the driver serves again."""
        ...

    def log(self) -> str:
        """Return the logs of its instances."""
        ...


class HostProcess:
    """Node plugin as a process on this machine, which is the node."""

    def __init__(self, *, node_name: str, kubeconfig: str, gpus: str, log_file: Path) -> None:
        self._flags = [
            *("--node-name", node_name, "--kubeconfig", kubeconfig, "--simulated-gpus", gpus),
            *os.environ.get("E2E_DRIVER_FLAGS", "").split(),
        ]
        self._log_file = log_file
        self._running: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        if self._running is None or self._running.poll() is not None:
            self._running = self._spawn()

    def kill(self) -> None:
        self._end_at_once()
        self._running = self._spawn()

    def _end_at_once(self) -> None:
        if self._running is not None:
            self._running.kill()
            self._running.wait(_STOP_SECONDS)

    def upgrade(self) -> None:
        old, began = self._running, len(self.log())
        self._running = self._spawn()
        deadline = time.monotonic() + _STOP_SECONDS
        while '"event": "registered"' not in self.log()[began:]:
            assert time.monotonic() < deadline, "the new instance was not registered"
            assert self._running.poll() is None, f"the new instance ended: {self.log()[-2000:]}"
            time.sleep(0.1)
        if old is not None:
            old.terminate()
            assert old.wait(_STOP_SECONDS) == 0, self.log()[-2000:]

    @contextmanager
    def configured(self, settings: Mapping[str, str]) -> Iterator[None]:
        own = self._flags
        self._flags = [*own, *(f"--{name}={value}" for name, value in settings.items())]
        try:
            self.upgrade()
            yield
        finally:
            self._flags = own
            self.upgrade()

    def uninstall(self) -> None:
        if self._running is not None and self._running.poll() is None:
            self._running.terminate()
            assert self._running.wait(_STOP_SECONDS) == 0, self.log()[-2000:]
        self._running = None

    @contextmanager
    def power_cut(self) -> Iterator[None]:
        self._end_at_once()
        yield
        self.start()

    def log(self) -> str:
        return self._log_file.read_text(errors="replace") if self._log_file.exists() else ""

    def _spawn(self) -> "subprocess.Popen[bytes]":
        # As in the DaemonSet, where the pod's UID distinguishes the sockets of two instances.
        uid = str(uuid.uuid4())
        with self._log_file.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "tensorfusion_dra", "node-plugin", *self._flags],
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd=_ROOT,
                env={**os.environ, "POD_UID": uid},
            )


class InstalledDaemonSet:
    """Installed DaemonSet, on one node of the cluster."""

    def __init__(self, cluster: Cluster, *, node_name: str) -> None:
        self._cluster = cluster
        self._node_name = node_name
        found = cluster.objects("DaemonSet", labelSelector=LABEL_NAME)
        assert found, f"no DaemonSet with {LABEL_NAME}: install it, or use --driver host"
        metadata = found[0]["metadata"]
        self._name, self._namespace = metadata["name"], metadata["namespace"]
        self._uninstalled: Json | None = None

    def start(self) -> None:
        if self._uninstalled is not None:
            self._cluster.create(self._uninstalled)
            self._uninstalled = None
        self._cluster.until("a ready node plugin", self._ready_pod, seconds=120)

    def kill(self) -> None:
        before = self._cluster.until("a ready node plugin", self._ready_pod, seconds=120)
        self._cluster.delete(
            "Pod", before["metadata"]["name"], namespace=self._namespace, grace_seconds=0
        )
        self._cluster.until(
            "another ready node plugin", lambda: self._ready_pod(other_than=before), seconds=120
        )

    def upgrade(self) -> None:
        annotations = {"tensorfusion-dra-e2e/upgrade": uuid.uuid4().hex}
        self._roll_out({"metadata": {"annotations": annotations}})

    @contextmanager
    def configured(self, settings: Mapping[str, str]) -> Iterator[None]:
        found = self._cluster.find("DaemonSet", self._name, namespace=self._namespace)
        assert found is not None
        (container,) = found["spec"]["template"]["spec"]["containers"]
        added = [
            {"name": f"TENSORFUSION_DRA_{name.upper().replace('-', '_')}", "value": value}
            for name, value in settings.items()
        ]
        env = container["env"]
        try:
            self._roll_out({"spec": {"containers": [{**container, "env": [*env, *added]}]}})
            yield
        finally:
            self._roll_out({"spec": {"containers": [container]}})

    def _roll_out(self, template: Json) -> None:
        """Merge a patch into the pod template; return once only the new pod runs."""
        before = self._cluster.until("a ready node plugin", self._ready_pod, seconds=120)
        patch = {"spec": {"template": template}}
        self._cluster.merge("DaemonSet", self._name, patch, namespace=self._namespace)
        self._cluster.until(
            "only the new node plugin to run",
            lambda: (
                self._ready_pod(other_than=before)
                if len(self._pods()) == 1 and self._pods() != [before]
                else None
            ),
            seconds=180,
        )

    def uninstall(self) -> None:
        found = self._cluster.find("DaemonSet", self._name, namespace=self._namespace)
        assert found is not None
        kept = ("name", "namespace", "labels", "annotations")
        metadata = {key: found["metadata"][key] for key in kept if key in found["metadata"]}
        self._uninstalled = {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": metadata,
            "spec": found["spec"],
        }
        self._cluster.delete("DaemonSet", self._name, namespace=self._namespace)
        self._cluster.until("no node plugin", lambda: not self._pods(), seconds=120)

    @contextmanager
    def power_cut(self) -> Iterator[None]:
        yield  # the reboot also ends its container
        self._cluster.until("a ready node plugin", self._ready_pod, seconds=180)

    def log(self) -> str:
        return "".join(
            self._cluster.log(pod["metadata"]["name"], namespace=self._namespace)
            for pod in self._pods()
        )

    def _pods(self) -> list[Json]:
        return self._cluster.objects(
            "Pod",
            namespace=self._namespace,
            labelSelector=LABEL_NODE_PLUGIN,
            fieldSelector=f"spec.nodeName={self._node_name}",
        )

    def _ready_pod(self, other_than: Json | None = None) -> Json | None:
        uid = other_than["metadata"]["uid"] if other_than else ""
        for pod in self._pods():
            conditions = pod["status"].get("conditions") or []
            is_ready = any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
            is_ending = "deletionTimestamp" in pod["metadata"]
            if is_ready and pod["metadata"]["uid"] != uid and not is_ending:
                return pod
        return None
