"""The verb `memory-limits`: its socket for the node plugin, and its pipe for hooks."""

import json
import os
import re
import socket
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from tensorfusion_dra.app.memory_limits import LimitsServer
from tensorfusion_dra.core.claims import verdicts
from tensorfusion_dra.core.claims.enforcer import SilentEnforcerError
from tensorfusion_dra.core.errors import FatalError, RetryableError
from tensorfusion_dra.enforcers.nvidia import enforcer as nvidia
from tensorfusion_dra.enforcers.nvidia.enforcer import FOLDER, SOCKET, LimitsClient
from tensorfusion_dra.runtime.supervisor import Supervisor
from tests.support import helm

HINT = "GPU-1: persistence mode: found off, expected on"


class Limits:
    """Limits of one pod; those of another one are refused."""

    def __init__(self) -> None:
        self.found: dict[str, int] = {}
        self.beside: Mapping[str, Mapping[str, int]] = {}
        self.containers: list[tuple[str, Mapping[str, int]]] = []
        self.fault: Exception | None = None
        self.driver_fault: Exception | None = None

    def check_driver(self) -> None:
        if self.driver_fault:
            raise self.driver_fault

    def check(self) -> list[str]:
        return ["", HINT]

    def set(
        self, pod: str, limits: Mapping[str, int], beside: Mapping[str, Mapping[str, int]]
    ) -> list[str]:
        if self.fault:
            raise self.fault
        self.found |= limits
        self.beside = beside
        return [*limits]

    def get(self, pod: str, gpus: list[str]) -> dict[str, Any]:
        return {uuid: (self.found[uuid], 5) if uuid in self.found else "none" for uuid in gpus}

    def set_container(self, pod: str, cgroup: str, limits: Mapping[str, int]) -> None:
        if pod != "uid-p":
            raise RetryableError(f"pod {pod}: refused")
        self.containers.append((cgroup, limits))


@pytest.fixture
def limits() -> Limits:
    return Limits()


@pytest.fixture
def folder(limits: Limits) -> Iterator[Path]:
    """Yield the folder of a server that runs."""
    with tempfile.TemporaryDirectory(prefix="tfd-") as made:
        folder = Path(made) / FOLDER
        with Supervisor() as supervisor:
            supervisor.on_stop(supervisor.join, seconds=5)
            server = LimitsServer(cast("Any", limits), folder)
            supervisor.run("server", lambda: server.run(supervisor))
            yield folder
            supervisor.stopping.set()


def hook(folder: Path, pod: str, state: Mapping[str, Any]) -> subprocess.CompletedProcess[str]:
    words = ["sh", "-c", nvidia._HOOK, "hook", str(folder), pod, "GPU-0=7,GPU-1=8"]
    text = json.dumps(state)
    return subprocess.run(words, input=text, capture_output=True, text=True, check=False)


def test_node_plugin_sets_reads_and_checks_over_a_socket_of_root(
    folder: Path, limits: Limits
) -> None:
    path = str(folder / SOCKET)
    client = LimitsClient(path)

    assert client.set("uid-p", {"GPU-0": 7}, {"uid-q": {"GPU-0": 8}}, wait_seconds=9) == ["GPU-0"]
    assert limits.beside == {"uid-q": {"GPU-0": 8}}
    assert client.get("uid-p", ["GPU-0", "GPU-1"], wait_seconds=9) == {
        "GPU-0": (7, 5),
        "GPU-1": "none",
    }
    assert client.check(wait_seconds=9) == ["", HINT]
    limits.fault = RetryableError("found 5 bytes, expected 4")
    with pytest.raises(RetryableError, match="found 5 bytes, expected 4"):
        client.set("uid-p", {"GPU-0": 7}, {}, wait_seconds=9)
    files = (folder / "socket", folder / "requests")
    assert {stat.S_IMODE(each.stat().st_mode) for each in files} == {0o600}
    sign = nvidia.Nvidia(root=str(folder.parent)).sign()
    assert sign.verdict.reason == verdicts.ENFORCER_ALIVE
    assert [(each.subject, each.found, each.expected) for each in sign.advice] == [
        ("GPU-1", "persistence mode: found off", "on")
    ]


@pytest.mark.parametrize("is_asked", [True, False])
def test_driver_that_is_replaced_ends_the_process_at_a_request_or_without_one(
    limits: Limits, is_asked: bool
) -> None:
    fault = FatalError("NVML_ERROR_LIB_RM_VERSION_MISMATCH")
    limits.fault, limits.driver_fault = (fault, None) if is_asked else (None, fault)
    with tempfile.TemporaryDirectory(prefix="tfd-") as made, Supervisor() as supervisor:
        server = LimitsServer(cast("Any", limits), Path(made))
        supervisor.run("server", lambda: server.run(supervisor))
        if is_asked:
            with pytest.raises(RetryableError, match="VERSION_MISMATCH"):
                LimitsClient(f"{made}/socket").set("uid-p", {"GPU-0": 7}, {}, wait_seconds=9)

        assert supervisor.wait() is fault


@pytest.mark.process
def test_hook_has_the_cgroup_of_its_container_limited(folder: Path, limits: Limits) -> None:
    own = {"annotations": {"pid": "1", "a": '{"pid":2,"b"'}, "id": "x", "pid": os.getpid()}

    assert hook(folder, "uid-p", own).returncode == 0
    refused = hook(folder, "uid-q", own)

    (cgroup,) = re.findall("^0::(.*)$", Path("/proc/self/cgroup").read_text(), re.MULTILINE)
    assert limits.containers == [(cgroup, {"GPU-0": 7, "GPU-1": 8})]
    text = "tensorfusion-dra: memory limits: pod uid-q: refused\n"
    assert (refused.returncode, refused.stderr) == (1, text)
    assert not list(folder.glob("*.answer"))


def test_request_of_a_full_node_is_read_whole(folder: Path, limits: Limits) -> None:
    cards = {f"GPU-{card:08}-aaaa-bbbb-cccc-dddddddddddd": 80 * 2**30 for card in range(16)}
    pods = {f"1b4e28ba-2fa1-11d2-883f-{pod:012}": cards for pod in range(250)}

    LimitsClient(str(folder / SOCKET)).set("uid-p", cards, pods, wait_seconds=9)

    assert limits.beside == pods


@pytest.mark.process
def test_hook_does_not_take_the_answer_to_an_earlier_container_of_the_same_pid(
    tmp_path: Path,
) -> None:
    os.mkfifo(tmp_path / "requests")
    pipe = os.open(tmp_path / "requests", os.O_RDWR)
    words = ["sh", "-c", nvidia._HOOK, "hook", str(tmp_path), "uid-p", "GPU-0=7"]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as waiting:
        assert waiting.stdin is not None
        waiting.stdin.write(json.dumps({"pid": os.getpid()}))
        waiting.stdin.close()
        cgroup = os.read(pipe, 4096).decode().split()[3]
        answer = tmp_path / f"{os.getpid()}.answer"

        answer.write_text(f"{cgroup}-earlier ok")
        with pytest.raises(subprocess.TimeoutExpired):
            waiting.wait(0.5)
        answer.write_text(f"{cgroup} ok")

        assert waiting.wait(9) == 0
    os.close(pipe)
    assert not answer.exists()


@pytest.mark.process
def test_liveness_probe_succeeds_while_the_server_answers(folder: Path) -> None:
    (container,) = (
        each
        for each in helm.containers(helm.render({"enforcers": {"nvidia": {"install": True}}}))
        if each["name"] == "memory-limits"
    )
    command = container["livenessProbe"]["exec"]["command"]
    served = str(folder / SOCKET)
    words = [
        each.replace("/run/tensor-fusion/nvidia/memory-limits/socket", served) for each in command
    ]
    assert words != command

    assert subprocess.run(words, check=False).returncode == 0
    (folder / SOCKET).unlink()
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(served)
        silent.listen()
        patient = [each.replace("settimeout(9)", "settimeout(0.2)") for each in words]
        assert subprocess.run(patient, check=False, capture_output=True).returncode == 1


@pytest.mark.process
def test_hook_fails_without_a_pid_or_a_server(tmp_path: Path) -> None:
    for state, said in (
        ({"id": "x"}, "found no pid in the container's state"),
        ({"pid": os.getpid()}, f"{tmp_path}/requests: found no pipe"),
    ):
        failed = hook(tmp_path, "uid-p", state)
        assert failed.returncode == 1
        assert said in failed.stderr


def test_silent_socket_says_what_is_missing(tmp_path: Path) -> None:
    missing = "socket: found No such file or directory, expected the container memory-limits$"

    with pytest.raises(SilentEnforcerError, match=missing):
        LimitsClient(str(tmp_path / "socket")).check(wait_seconds=9)
