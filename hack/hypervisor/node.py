"""A node with the hypervisor and the node plugin, and objects in its cluster."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from hypervisor.programs import UUID

ROOT: Final = Path(__file__).resolve().parents[2]
SOCKETS: Final = "/var/lib/kubelet/device-plugins"
FOLDERS: Final = (
    Path("/run/tensor-fusion"),
    Path("/var/lib/kubelet/plugins/tensor-fusion.ai.dra-driver"),
)
"""Where the hypervisor and the node plugin keep their files."""
DEVICE_CLASS: Final = "tensor-fusion.ai"
PATIENCE_SECONDS: Final = 90.0
PROFILE: Final = "gpus:\n" + "".join(
    f"- {{product: A100-SXM4-40GB, vram: 16Gi, tflops: 312, uuid: {UUID}{n}}}\n" for n in range(4)
)


class Check:
    """The processes, and the results so far."""

    def __init__(self, hypervisor: Path, library: Path, image: str, folder: Path) -> None:
        self.image, self.folder = image, folder
        self.failed = 0
        node = json.loads(kubectl("get", "nodes", "-o", "json"))["items"][0]
        self.node = node["metadata"]["name"]
        addresses = {each["type"]: each["address"] for each in node["status"]["addresses"]}
        profile = folder / "gpus.yaml"
        profile.write_text(PROFILE)
        self._commands = {
            "hypervisor": [
                *(str(hypervisor), "-vendor", "NVIDIA", "-accelerator-lib", str(library)),
                *("-metrics-output-path", str(folder / "metrics.log")),
            ],
            "node-plugin": [
                *(sys.executable, "-m", "tensorfusion_dra", "node-plugin"),
                *("--node-name", self.node, "--kubeconfig", os.environ["KUBECONFIG"]),
                *("--simulated-gpus", str(profile), "--hypervisor-sockets", SOCKETS),
                *("--hypervisor-address", f"{addresses['InternalIP']}:8001"),
            ],
        }
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        """Start a process; its log is in the folder."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                self._commands[name],
                stdout=log,
                stderr=log,
                cwd=self.folder if name == "hypervisor" else ROOT,
                env={**os.environ, "GPU_NODE_NAME": self.node, "POD_UID": str(time.time_ns())},
            )

    def stop(self, name: str, how: int = signal.SIGTERM) -> None:
        """End a process and wait for it."""
        process = self._running.pop(name, None)
        if process is not None:
            process.send_signal(how)
            process.wait()

    def stop_all(self) -> None:
        """End all processes."""
        for name in tuple(self._running):
            self.stop(name)

    def expect(self, what: str, expected: object, found: Callable[[], object]) -> None:
        """Compare until equal, or for so long, and print the result."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (last := found()) != expected and time.monotonic() < deadline:
            time.sleep(0.5)
        right = last == expected
        self.failed += not right
        print(
            f"{'ok  ' if right else 'FAIL'} {what}: {last}"
            + ("" if right else f", expected {expected}")
        )

    def part(self, run: Callable[["Check"], None]) -> None:
        """Run a part of the checks; one that cannot go on fails."""
        try:
            run(self)
        except Exception as error:  # noqa: BLE001 - whatever a program answers
            self.failed += 1
            text = getattr(error, "stderr", "") or f"{type(error).__name__}: {error}"
            print(f"FAIL {run.__name__}: {text}")

    def pod(
        self,
        name: str,
        containers: Mapping[str, Sequence[str]],
        *claims: Any,
        slow: bool = False,
        annotations: Mapping[str, str] | None = None,
    ) -> None:
        """Create a pod with a claim for each entry of claims, used by the containers by number."""
        for number, requests in enumerate(claims):
            template = {"name": f"{name}-{number}", "annotations": requests.pop("annotations", {})}
            apply(
                "ResourceClaimTemplate",
                {"name": template["name"]},
                spec={
                    "metadata": {"annotations": template["annotations"]},
                    "spec": {
                        "devices": {"requests": [request(*each) for each in requests.items()]}
                    },
                },
                version="resource.k8s.io/v1",
            )
        spec: dict[str, Any] = {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "resourceClaims": [
                {"name": str(number), "resourceClaimTemplateName": f"{name}-{number}"}
                for number in range(len(claims))
            ],
            "containers": [
                self.container(container, [use(each) for each in uses])
                for container, uses in containers.items()
            ],
        }
        if slow:
            spec["initContainers"] = [self.container("slow", [])]
        apply("Pod", {"name": name, "annotations": annotations or {}}, spec=spec)

    def remove_resources(self) -> None:
        """Remove the hypervisor's extended resources from the node's status.

        The kubelet would report them with 0 as long as it runs or finds its checkpoint.
        """
        node_command = shlex.split(os.environ.get("E2E_NODE_COMMAND", ""))
        if node_command:
            subprocess.run([*node_command, "stop-kubelet"], check=True)
            Path(SOCKETS, "kubelet_internal_checkpoint").unlink(missing_ok=True)
        for file in Path(SOCKETS).glob("tensor-fusion-index-*.sock"):
            file.unlink()
        status = json.loads(kubectl("get", "node", self.node, "-o", "json"))["status"]
        patch = [
            {"op": "remove", "path": f"/status/{field}/{name.replace('/', '~1')}"}
            for field in ("capacity", "allocatable")
            for name in status[field]
            if name.startswith("tensor-fusion.ai/index_")
        ]
        if patch:
            arguments = ("--subresource", "status", "--type", "json", "-p", json.dumps(patch))
            kubectl("patch", "node", self.node, *arguments)
        if node_command:
            subprocess.run([*node_command, "start-kubelet"], check=True)

    def container(self, name: str, uses: Sequence[Mapping[str, str]]) -> dict[str, Any]:
        """Return a container that sleeps."""
        return {
            "name": name,
            "image": self.image,
            "imagePullPolicy": "IfNotPresent",
            "command": ["sleep", "86400"],
            "env": [{"name": "CONTAINER_NAME", "value": name}],
            "resources": {"claims": list(uses)},
        }


@contextmanager
def new_files_removed(folders: Sequence[Path]) -> Iterator[None]:
    """Remove after the block whatever is in the folders and was not there before."""

    def present() -> set[Path]:
        return {path for each in folders if each.exists() for path in (each, *each.rglob("*"))}

    before = present()
    try:
        yield
    finally:
        for path in sorted(present() - before, reverse=True):  # a folder after what is in it
            if path.is_dir() and not path.is_symlink():
                path.rmdir()
            else:
                path.unlink()


@contextmanager
def device_class() -> Iterator[None]:
    """Give the cluster the driver's DeviceClass during the block; one that it has stays."""
    manifests = (ROOT / "daemonset" / "install" / "simulated.yaml").read_text().split("\n---\n")
    start = f"\nkind: DeviceClass\nmetadata:\n  name: {DEVICE_CLASS}\n"
    (manifest,) = (each for each in manifests if start in each)
    if kubectl("get", "deviceclass", DEVICE_CLASS, "--ignore-not-found", "-o", "name"):
        yield
        return
    kubectl("create", "-f", "-", stdin=manifest)
    try:
        yield
    finally:
        kubectl("delete", "deviceclass", DEVICE_CLASS)


def kubectl(*arguments: str, stdin: str = "") -> str:
    """Run kubectl and return what it prints."""
    return subprocess.run(
        ["kubectl", *arguments], input=stdin, capture_output=True, text=True, check=True
    ).stdout


def apply(kind: str, metadata: Mapping[str, Any], *, version: str = "v1", **fields: Any) -> None:
    """Apply an object of the namespace default."""
    document = {
        "apiVersion": version,
        "kind": kind,
        "metadata": {**metadata, "namespace": "default"},
        **fields,
    }
    kubectl("apply", "-f", "-", stdin=json.dumps(document))


def request(name: str, wanted: tuple[int, str, str]) -> dict[str, Any]:
    """Return a request for a part of the GPU with this number."""
    number, tflops, vram = wanted
    selector = f'device.attributes["tensor-fusion.ai.dra-driver"].uuid.endsWith("000{number}")'
    return {
        "name": name,
        "exactly": {
            "deviceClassName": DEVICE_CLASS,
            "selectors": [{"cel": {"expression": selector}}],
            "capacity": {"requests": {"tflops": tflops, "vram": vram}},
        },
    }


def use(text: str) -> dict[str, str]:
    """Return a container's use of a claim, 0, or of one of its requests, 0/name."""
    claim, _, name = text.partition("/")
    return {"name": claim, "request": name} if name else {"name": claim}
