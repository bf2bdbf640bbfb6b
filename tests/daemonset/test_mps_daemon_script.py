"""Scripts and probes of the MPS daemon's pod, run by the machine's sh with a stand-in daemon."""

import os
import signal
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from tensorfusion_dra.enforcers.mps import Mps
from tensorfusion_dra.state import unix_sockets
from tests.daemonset import mps_stand_in, scripts
from tests.daemonset.test_manifests import VARIANTS
from tests.support import helm
from tests.support.waiting import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.process

DAEMON: Final = scripts.container("mps-daemon", "daemon")
SHM: Final = scripts.container("mps-daemon", "shm")
READY: Final = "default of active threads"
MOUNT: Final = "-t tmpfs -o nosuid,nodev,noexec,mode={},size={} tensorfusion-dra-mps {{mps}}/{}"


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node with a stand-in for NVIDIA's program, and what the pod's container is given."""

    root: Path
    given: dict[str, str] = field(default_factory=dict)

    @property
    def output(self) -> Path:
        return self.root / "output"

    @property
    def control(self) -> Path:
        return self.root / "pipe" / "control"

    def environment(self) -> dict[str, str]:
        return {
            **scripts.variables(DAEMON),
            "CUDA_MPS_PIPE_DIRECTORY": str(self.root / "pipe"),
            "DEVICES": str(self.root / "dev"),
            "MPS_STAND_IN_LOG": str(self.root / "commands"),
            "PATH": scripts.path_with(self.root / "bin"),
            **self.given,
        }

    def commands(self) -> list[str]:
        """Return what the daemon was started with and asked, without the questions of waits."""
        lines = (self.root / "commands").read_text().splitlines()
        return [line for line in lines if line != "get_server_list"]

    def pod(self) -> scripts.Started:
        return scripts.started(scripts.command(DAEMON), self.environment(), self.output)

    def ready(self) -> bool:
        return eventually(lambda: READY in self.text())

    def text(self) -> str:
        return self.output.read_text() if self.output.exists() else ""

    def probe(self, name: str = "livenessProbe") -> int:
        return scripts.run(DAEMON[name]["exec"]["command"], self.environment()).returncode

    def failed(self) -> str:
        """Return the output of a container that ends with an error by itself."""
        with self.pod() as pod:
            assert pod.wait(PATIENCE_SECONDS) == 1
        return self.text()


@pytest.fixture
def node() -> Iterator[Node]:
    with tempfile.TemporaryDirectory(prefix="tfd-") as made:
        root = Path(made)
        (root / "pipe").mkdir()
        (root / "dev").mkdir()
        program = scripts.stand_in_program(mps_stand_in.__file__)
        scripts.put_program(root / "bin", "nvidia-cuda-mps-control", program)
        yield Node(root=root)


def test_daemon_answers_the_probes_and_the_driver_until_the_pod_ends(node: Node) -> None:
    before = node.probe("startupProbe"), unix_sockets.reason(str(node.control))
    with node.pod() as pod:
        assert node.ready(), node.text()
        during = node.probe("startupProbe"), unix_sockets.reason(str(node.control))
        pod.send_signal(signal.SIGTERM)
        status = pod.wait(PATIENCE_SECONDS)
    after = node.probe("startupProbe"), unix_sockets.reason(str(node.control))

    assert (before[0], during, after[0]) == (1, (0, ""), 1)
    assert "No such file" in before[1]
    assert "ended process" in after[1]
    assert (status, node.commands()[-1]) == (0, "quit -t 10")


def test_without_defaults_nothing_is_limited(node: Node) -> None:
    (node.root / "dev" / "nvidia0").touch()

    with node.pod():
        assert node.ready(), node.text()

    assert "active threads: 100.0 %; default memory limit: none" in node.text()
    assert not [line for line in node.commands() if line.startswith("set_")]
    assert "started with ['-f'] as" in node.commands()[0]


def test_defaults_are_set_for_each_card_and_several_users_are_an_option(node: Node) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (node.root / "dev" / name).touch()
    node.given.update(
        DEFAULT_ACTIVE_THREAD_PERCENTAGE="25", DEFAULT_PINNED_MEMORY="10G", MULTI_USER="true"
    )

    with node.pod():
        assert node.ready(), node.text()

    assert "active threads: 25.0 %; default memory limit: 10G" in node.text()
    assert [line for line in node.commands() if line.startswith("set_")] == [
        "set_default_device_pinned_mem_limit 0 10G",
        "set_default_device_pinned_mem_limit 1 10G",
    ]
    assert "started with ['-f', '-M'] as" in node.commands()[0]


@pytest.mark.parametrize("value", ["10Gi", "10", "10X", "0G", "G", "-1G", "1.5G"])
def test_limit_that_the_daemon_ignores_or_misunderstands_is_an_error(
    node: Node, value: str
) -> None:
    (node.root / "dev" / "nvidia0").touch()
    node.given.update(DEFAULT_PINNED_MEMORY=value)

    assert f"default memory limit: found {value}, expected a number with M or G" in node.failed()


def test_memory_limit_without_a_card_is_an_error(node: Node) -> None:
    node.given.update(DEFAULT_PINNED_MEMORY="10G")

    assert "found no NVIDIA card, expected at least one" in node.failed()


def test_another_daemon_in_the_same_folder_is_an_error_and_is_left_alone(node: Node) -> None:
    with node.pod():
        assert node.ready(), node.text()
        second = Node(root=node.root)
        output = node.root / "second"
        with scripts.started(scripts.command(DAEMON), second.environment(), output) as other:
            assert other.wait(PATIENCE_SECONDS) == 1

        assert "found another MPS control daemon, expected none" in output.read_text()
        assert node.probe() == 0


def test_daemon_starts_again_beside_the_socket_of_a_killed_one(node: Node) -> None:
    with node.pod() as pod:
        assert node.ready(), node.text()
        os.killpg(pod.pid, signal.SIGKILL)
        pod.wait(PATIENCE_SECONDS)
    assert node.control.is_socket()
    node.output.unlink()

    with node.pod():
        assert node.ready(), node.text()

        assert (node.probe(), unix_sockets.reason(str(node.control))) == (0, "")


def test_container_ends_with_its_daemon(node: Node) -> None:
    with node.pod() as pod:
        assert node.ready(), node.text()
        os.kill(int(node.commands()[0].rpartition(" ")[2]), signal.SIGKILL)

        assert pod.wait(PATIENCE_SECONDS) == 128 + signal.SIGKILL


def test_daemon_that_does_not_start_is_an_error(node: Node) -> None:
    node.given.update(MPS_STAND_IN_FAILS="1")

    text = node.failed()

    assert "no room for the daemon" in text
    assert "nvidia-cuda-mps-control: ended at its start" in text


def test_node_without_nvidias_program_is_an_error_that_says_where_it_comes_from(
    node: Node,
) -> None:
    (node.root / "bin" / "nvidia-cuda-mps-control").unlink()

    assert "nvidia-cuda-mps-control: not found" in node.failed()


def test_driver_root_gives_its_program_and_only_the_nvidia_drivers_libraries(node: Node) -> None:
    root = node.root / "driver"
    libraries = root / "usr" / "lib" / "x86_64-linux-gnu"
    libraries.mkdir(parents=True)
    for name in ("libcuda.so.1", "libnvidia-ptxjitcompiler.so.1", "libc.so.6", "libstdc++.so.6"):
        (libraries / name).touch()
    (node.root / "bin").rename(root / "usr" / "bin")
    (node.root / "links").mkdir()
    node.given.update(
        DRIVER_ROOT=str(root),
        LD_LIBRARY_PATH=str(node.root / "links"),
        PATH=f"{os.environ['PATH']}:{root}/usr/bin",
    )

    with node.pod():
        assert node.ready(), node.text()

    links = {path.name: path.readlink() for path in (node.root / "links").iterdir()}
    names = ("libcuda.so.1", "libnvidia-ptxjitcompiler.so.1")
    assert links == {name: libraries / name for name in names}


@pytest.mark.parametrize(
    ("mounted", "is_used", "expected"),
    [
        (False, False, [MOUNT.format("1777", "50%", "shm"), MOUNT.format("0755", "16M", "pipe")]),
        (False, True, [MOUNT.format("1777", "50%", "shm")]),
        (True, True, ["-o remount,size=50% {mps}/shm", "-o remount,size=16M {mps}/pipe"]),
    ],
)
def test_shared_memory_is_mounted_once_and_only_resized_after_that(
    tmp_path: Path, mounted: bool, is_used: bool, expected: list[str]
) -> None:
    """Programs that need rights on the host are replaced by ones that write down their call."""
    scripts.put_program(tmp_path / "bin", "mount", f'#!/bin/sh\necho "$*" >>{tmp_path}/calls\n')
    status = 0 if mounted else 1
    scripts.put_program(tmp_path / "bin", "mountpoint", f"#!/bin/sh\nexit {status}\n")
    mps = tmp_path / "mps"
    if is_used:
        (mps / "pipe" / "control").mkdir(parents=True)
    env = {**scripts.variables(SHM), "MPS": str(mps)}

    done = scripts.run(scripts.command(SHM), {**env, "PATH": scripts.path_with(tmp_path / "bin")})

    assert done.returncode == 0, done.stderr
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls == [each.format(mps=mps) for each in expected]
    assert (mps / "shm").is_dir()
    assert (mps / "pipe").stat().st_mode & 0o777 == 0o755


def test_pod_and_driver_mean_the_same_folders() -> None:
    env = scripts.variables(DAEMON)
    at = {mount["name"]: mount["mountPath"] for mount in DAEMON["volumeMounts"]}

    assert Mps().pipes == env["CUDA_MPS_PIPE_DIRECTORY"] == at["pipe"]
    assert Mps().shm == f"{scripts.variables(SHM)['MPS']}/shm"
    assert (at["shm"], at["log"]) == ("/dev/shm", env["CUDA_MPS_LOG_DIRECTORY"])


def test_both_probes_ask_the_daemon_and_a_pod_has_time_to_end() -> None:
    (pod,) = (
        item["spec"]["template"]["spec"]
        for item in helm.render(VARIANTS["mps-daemon"])
        if item["metadata"]["name"] == "tensorfusion-dra-mps"
    )

    assert DAEMON["startupProbe"]["exec"] == DAEMON["livenessProbe"]["exec"]
    assert int(scripts.variables(DAEMON)["QUIT_SECONDS"]) < pod["terminationGracePeriodSeconds"]
