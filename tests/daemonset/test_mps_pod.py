"""Scripts and probes of the MPS daemon's pod, run by the machine's sh with stand-ins."""

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from tensorfusion_dra.enforcers.mps import Mps
from tensorfusion_dra.state import unix_sockets
from tests.daemonset import mps_stand_in, scripts
from tests.daemonset.scripts import Container
from tests.daemonset.test_manifests import VARIANTS
from tests.support import helm
from tests.support.waiting import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.process

DAEMON: Final = scripts.container("mps-daemon", "daemon")
SHM: Final = scripts.container("mps-daemon", "shm")
SIDECAR: Final = scripts.container("mps-exclusive-process", "compute-mode")
MOUNT: Final = "-t tmpfs -o nosuid,nodev,noexec,mode={},size={} tensorfusion-dra-mps {{mps}}/{}"


@pytest.fixture
def daemon() -> Iterator[Container]:
    """The daemon's container on a node with a stand-in for NVIDIA's program, and without cards."""
    with tempfile.TemporaryDirectory(prefix="tfd-") as made:
        root = Path(made)
        (root / "pipe").mkdir()
        (root / "dev").mkdir()
        given = {
            "CUDA_MPS_PIPE_DIRECTORY": f"{root}/pipe",
            "DEVICES": f"{root}/dev",
            "MPS_STAND_IN_LOG": f"{root}/commands",
        }
        found = Container(of=DAEMON, root=root, given=given)
        program = scripts.stand_in_program(mps_stand_in.__file__)
        found.put_program("nvidia-cuda-mps-control", program)
        yield found


@contextmanager
def serving(daemon: Container) -> Iterator[subprocess.Popen[bytes]]:
    """Run the daemon during the block, from the moment in which it serves."""
    with daemon.started() as pod:
        ready = "default of active threads"
        assert eventually(lambda: ready in daemon.text()), daemon.text()
        yield pod


def commands(daemon: Container) -> list[str]:
    """Return what the daemon was started with and asked, without the questions of waits."""
    lines = (daemon.root / "commands").read_text().splitlines()
    return [line for line in lines if line != "get_server_list"]


def seen(daemon: Container) -> tuple[int, str]:
    """Return what the probe finds, and why the driver finds no daemon."""
    control = daemon.root / "pipe" / "control"
    return daemon.probe("startupProbe"), unix_sockets.reason(str(control))


def test_daemon_answers_the_probes_and_the_driver_until_the_pod_ends(daemon: Container) -> None:
    before = seen(daemon)
    with serving(daemon) as pod:
        during = seen(daemon)
        pod.send_signal(signal.SIGTERM)
        status = pod.wait(PATIENCE_SECONDS)
    after = seen(daemon)

    assert (before[0], during, after[0]) == (1, (0, ""), 1)
    assert "No such file" in before[1]
    assert "ended process" in after[1]
    assert (status, commands(daemon)[-1]) == (0, "quit -t 10")


@pytest.mark.parametrize(
    ("cards", "given", "asked", "printed"),
    [
        (["nvidia0"], {}, ["started with ['-f']"], "100.0 %; default memory limit: none"),
        (
            ["nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"],
            {
                "DEFAULT_ACTIVE_THREAD_PERCENTAGE": "25",
                "DEFAULT_PINNED_MEMORY": "10G",
                "MULTI_USER": "true",
            },
            [
                "started with ['-f', '-M']",
                "set_default_device_pinned_mem_limit 0 10G",
                "set_default_device_pinned_mem_limit 1 10G",
            ],
            "25.0 %; default memory limit: 10G",
        ),
    ],
)
def test_defaults_are_set_for_each_card_and_several_users_are_an_option(
    daemon: Container, cards: list[str], given: dict[str, str], asked: list[str], printed: str
) -> None:
    for name in cards:
        (daemon.root / "dev" / name).touch()
    daemon.given.update(given)

    with serving(daemon):
        assert f"active threads: {printed}" in daemon.text()

    found = [line.partition(" as ")[0] for line in commands(daemon)]
    assert [line for line in found if not line.startswith("get_")] == asked


@pytest.mark.parametrize(
    ("given", "cards", "text"),
    [
        # The daemon ignores or misunderstands these limits.
        *(
            (
                {"DEFAULT_PINNED_MEMORY": value},
                ["nvidia0"],
                f"default memory limit: found {value}, expected a number with M or G",
            )
            for value in ("10Gi", "10", "10X", "0G", "G", "-1G", "1.5G")
        ),
        ({"DEFAULT_PINNED_MEMORY": "10G"}, [], "found no NVIDIA card, expected at least one"),
        (
            {"MPS_STAND_IN_FAILS": "1"},
            [],
            "no room for the daemon\nnvidia-cuda-mps-control: ended at its start",
        ),
        ({"PATH": os.environ["PATH"]}, [], "nvidia-cuda-mps-control: not found"),
    ],
)
def test_daemon_that_cannot_start_is_an_error(
    daemon: Container, given: dict[str, str], cards: list[str], text: str
) -> None:
    for name in cards:
        (daemon.root / "dev" / name).touch()
    daemon.given.update(given)

    assert text in daemon.failed()


def test_another_daemon_in_the_same_folder_is_an_error_and_is_left_alone(
    daemon: Container,
) -> None:
    with serving(daemon):
        assert "found another MPS control daemon, expected none" in daemon.failed("second")
        assert daemon.probe("livenessProbe") == 0


def test_daemon_starts_again_beside_the_socket_of_a_killed_one(daemon: Container) -> None:
    with serving(daemon) as pod:
        os.killpg(pod.pid, signal.SIGKILL)
        pod.wait(PATIENCE_SECONDS)
    assert (daemon.root / "pipe" / "control").is_socket()

    with serving(daemon):
        assert seen(daemon) == (0, "")


def test_container_ends_with_its_daemon(daemon: Container) -> None:
    with serving(daemon) as pod:
        os.kill(int(commands(daemon)[0].rpartition(" ")[2]), signal.SIGKILL)

        assert pod.wait(PATIENCE_SECONDS) == 128 + signal.SIGKILL


def test_driver_root_gives_its_program_and_only_the_nvidia_drivers_libraries(
    daemon: Container,
) -> None:
    root, links = daemon.root / "driver", daemon.root / "links"
    libraries = root / "usr" / "lib" / "x86_64-linux-gnu"
    libraries.mkdir(parents=True)
    for name in ("libcuda.so.1", "libnvidia-ptxjitcompiler.so.1", "libc.so.6", "libstdc++.so.6"):
        (libraries / name).touch()
    (daemon.root / "bin").rename(root / "usr" / "bin")
    links.mkdir()
    daemon.given.update(
        DRIVER_ROOT=str(root),
        LD_LIBRARY_PATH=str(links),
        PATH=f"{os.environ['PATH']}:{root}/usr/bin",
    )

    with serving(daemon):
        assert {path.name: path.readlink() for path in links.iterdir()} == {
            name: libraries / name for name in ("libcuda.so.1", "libnvidia-ptxjitcompiler.so.1")
        }


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
    mps = tmp_path / "mps"
    shm = Container(of=SHM, root=tmp_path, given={"MPS": str(mps)})
    calls = shm.put_mounts(mounted=mounted)
    if is_used:
        (mps / "pipe" / "control").mkdir(parents=True)

    assert shm.run() == (0, "")

    assert calls.read_text().splitlines() == [each.format(mps=mps) for each in expected]
    assert (mps / "shm").is_dir()
    assert (mps / "pipe").stat().st_mode & 0o777 == 0o755


def test_pod_and_driver_mean_the_same_folders() -> None:
    env = scripts.variables(DAEMON)
    at = {mount["name"]: mount["mountPath"] for mount in DAEMON["volumeMounts"]}

    assert Mps().pipes == env["CUDA_MPS_PIPE_DIRECTORY"] == at["pipe"]
    assert Mps().shm == f"{scripts.variables(SHM)['MPS']}/shm"
    assert (at["shm"], at["log"]) == ("/dev/shm", env["CUDA_MPS_LOG_DIRECTORY"])


def test_both_probes_ask_the_daemon_and_a_pod_has_time_to_end() -> None:
    workload = helm.one(helm.render(VARIANTS["mps-daemon"]), "DaemonSet", "tensorfusion-dra-mps")
    pod = workload["spec"]["template"]["spec"]

    assert DAEMON["startupProbe"]["exec"] == DAEMON["livenessProbe"]["exec"]
    assert int(scripts.variables(DAEMON)["QUIT_SECONDS"]) < pod["terminationGracePeriodSeconds"]


NVIDIA_SMI: Final = """#!/bin/sh
# Stand-in: the cards' modes are files. -i CARD -c MODE sets one; --query-gpu lists them.
cd "$CARDS" || exit 9
echo "$*" >>"$CALLS"
case "$1" in
-i)
    case "$4" in
    DEFAULT) mode=Default ;;
    EXCLUSIVE_PROCESS) mode=Exclusive_Process ;;
    PROHIBITED) mode=Prohibited ;;
    *) echo "$4: no such mode" >&2; exit 2 ;;
    esac
    if [ -e "$CARDS.locked" ]; then echo "Insufficient Permissions" >&2; exit 4; fi
    echo "$mode" >"$2" ;;
--query-gpu=uuid,compute_mode) for card in GPU-*; do echo "$card, $(cat "$card")"; done ;;
--query-gpu=compute_mode) cat GPU-* ;;
*) exit 9 ;;
esac
"""


@pytest.fixture
def sidecar(tmp_path: Path) -> Container:
    """The container that changes the compute mode, on a node with two cards."""
    given = {name.upper(): f"{tmp_path}/{name}" for name in ("mps", "cards", "calls")}
    found = Container(of=SIDECAR, root=tmp_path, given=given)
    (tmp_path / "mps").mkdir()
    (tmp_path / "cards").mkdir()
    (tmp_path / "cards" / "GPU-a").write_text("Default\n")
    (tmp_path / "cards" / "GPU-b").write_text("Prohibited\n")
    found.put_program("nvidia-smi", NVIDIA_SMI)
    return found


def modes(sidecar: Container) -> list[str]:
    """Return the modes of the cards."""
    return [card.read_text().strip() for card in sorted((sidecar.root / "cards").iterdir())]


def are_exclusive(sidecar: Container) -> bool:
    return set(modes(sidecar)) == {"Exclusive_Process"}


def test_cards_are_exclusive_until_the_pod_ends_and_get_back_what_they_had(
    sidecar: Container,
) -> None:
    before = modes(sidecar)
    assert sidecar.probe("startupProbe") == 1

    with sidecar.started() as pod:
        assert eventually(lambda: are_exclusive(sidecar)), sidecar.text()
        assert sidecar.probe("startupProbe") == 0
        # Only from here on the script waits, and a signal finds its trap.
        pod.send_signal(signal.SIGTERM)
        assert pod.wait(PATIENCE_SECONDS) == 0

    assert modes(sidecar) == before
    assert not (sidecar.root / "mps" / "compute-modes").exists()


def test_restart_after_a_crash_keeps_the_modes_that_were_found_first(sidecar: Container) -> None:
    before, calls = modes(sidecar), sidecar.root / "calls"
    with sidecar.started() as pod:
        assert eventually(lambda: are_exclusive(sidecar)), sidecar.text()
        os.killpg(pod.pid, signal.SIGKILL)
        pod.wait(PATIENCE_SECONDS)
    assert are_exclusive(sidecar)
    calls.write_text("")

    with sidecar.started() as pod:
        assert eventually(lambda: "-i GPU-b -c EXCLUSIVE_PROCESS" in calls.read_text())
        pod.send_signal(signal.SIGTERM)
        assert pod.wait(PATIENCE_SECONDS) == 0

    assert modes(sidecar) == before


def test_mode_that_cannot_be_set_is_an_error_before_the_daemon_starts(sidecar: Container) -> None:
    (sidecar.root / "cards.locked").touch()

    assert "Insufficient Permissions" in sidecar.failed()
    assert sidecar.probe("startupProbe") == 1


def test_node_without_cards_is_an_error(sidecar: Container) -> None:
    sidecar.put_program("nvidia-smi", "#!/bin/sh\nexit 0\n")

    assert "found no card, expected at least one" in sidecar.failed()
