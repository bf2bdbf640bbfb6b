"""The verb `memory-limits`: its socket for the node plugin, and its pipe for hooks."""

import json
import os
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
from tensorfusion_dra.enforcers import nvidia
from tensorfusion_dra.enforcers.nvidia import FOLDER, SOCKET, LimitsClient
from tensorfusion_dra.runtime.supervisor import Supervisor

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
    modes = [stat.S_IMODE(each.stat().st_mode) for each in (folder / "socket", folder / "requests")]
    assert modes == [0o600, 0o600]
    sign = nvidia.Nvidia(root=str(folder.parent)).sign()
    (advice,) = sign.advice
    assert sign.verdict.reason == verdicts.ENFORCER_ALIVE
    assert (advice.subject, advice.found, advice.expected) == (
        *("GPU-1", "persistence mode: found off", "on"),
    )


def test_replaced_driver_is_answered_and_ends_the_process(limits: Limits, tmp_path: Path) -> None:
    limits.fault = FatalError("NVML_ERROR_LIB_RM_VERSION_MISMATCH")
    with tempfile.TemporaryDirectory(prefix="tfd-") as made, Supervisor() as supervisor:
        server = LimitsServer(cast("Any", limits), Path(made))
        supervisor.run("server", lambda: server.run(supervisor))
        with pytest.raises(RetryableError, match="VERSION_MISMATCH"):
            LimitsClient(f"{made}/socket").set("uid-p", {"GPU-0": 7}, {}, wait_seconds=9)
        assert isinstance(supervisor.wait(), FatalError)


def test_driver_that_is_to_be_replaced_ends_the_process_without_a_request(limits: Limits) -> None:
    limits.driver_fault = FatalError("the NVIDIA driver is being replaced")
    with tempfile.TemporaryDirectory(prefix="tfd-") as made, Supervisor() as supervisor:
        server = LimitsServer(cast("Any", limits), Path(made))
        supervisor.run("server", lambda: server.run(supervisor))

        assert supervisor.wait() is limits.driver_fault


@pytest.mark.process
def test_hook_has_the_cgroup_of_its_container_limited(folder: Path, limits: Limits) -> None:
    own = {"annotations": {"pid": "1", "a": '{"pid":2,"b"'}, "id": "x", "pid": os.getpid()}

    assert hook(folder, "uid-p", own).returncode == 0
    refused = hook(folder, "uid-q", own)

    lines = Path("/proc/self/cgroup").read_text().splitlines()
    (cgroup,) = (line.removeprefix("0::") for line in lines if line.startswith("0::"))
    assert limits.containers == [(cgroup, {"GPU-0": 7, "GPU-1": 8})]
    text = "tensorfusion-dra: memory limits: pod uid-q: refused\n"
    assert (refused.returncode, refused.stderr) == (1, text)
    assert not list(folder.glob("*.answer"))


@pytest.mark.process
def test_hook_fails_without_a_pid_or_a_server(tmp_path: Path) -> None:
    without = hook(tmp_path, "uid-p", {"id": "x"})
    alone = hook(tmp_path, "uid-p", {"pid": os.getpid()})

    assert (without.returncode, alone.returncode) == (1, 1)
    assert "found no pid in the container's state" in without.stderr
    assert f"{tmp_path}/requests: found no pipe" in alone.stderr


def test_silent_socket_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(SilentEnforcerError) as error:
        LimitsClient(str(tmp_path / "socket")).check(wait_seconds=9)

    assert str(error.value) == (
        f"{tmp_path}/socket: found No such file or directory, expected the container memory-limits"
    )
