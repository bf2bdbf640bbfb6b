"""Scripts and probes of the chart's pods, run by this machine's sh with stand-ins for programs."""

import os
import signal
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from tensorfusion_dra.enforcers.hami_core.enforcer import HamiCore
from tensorfusion_dra.enforcers.mps.enforcer import Mps
from tensorfusion_dra.state import unix_sockets
from tests.daemonset import mps_stand_in, scripts
from tests.daemonset.scripts import Container, container, variables
from tests.support import helm
from tests.support.chart_variants import VARIANTS
from tests.support.waiting import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.process

DAEMON: Final = container("mps-daemon", "daemon")
SHM: Final = container("mps-daemon", "shm")
SIDECAR: Final = container("mps-exclusive-process", "compute-mode")
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
    env = variables(DAEMON)
    at = {mount["name"]: mount["mountPath"] for mount in DAEMON["volumeMounts"]}

    assert Mps().pipes == env["CUDA_MPS_PIPE_DIRECTORY"] == at["pipe"]
    assert Mps().shm == f"{variables(SHM)['MPS']}/shm"
    assert (at["shm"], at["log"]) == ("/dev/shm", env["CUDA_MPS_LOG_DIRECTORY"])


def test_both_probes_ask_the_daemon_and_a_pod_has_time_to_end() -> None:
    workload = helm.one(helm.render(VARIANTS["mps-daemon"]), "DaemonSet", "tensorfusion-dra-mps")
    pod = workload["spec"]["template"]["spec"]

    assert DAEMON["startupProbe"]["exec"] == DAEMON["livenessProbe"]["exec"]
    assert int(variables(DAEMON)["QUIT_SECONDS"]) < pod["terminationGracePeriodSeconds"]


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


INSTALL: Final = container("hami-core-install", "install")
LIBRARY: Final = b"\x7fELF" + bytes(range(256)) * 9000
OTHER: Final = b"\x7fELF another version"


class Installation(Container):
    """The container that brings the library, from an image's folder to the node's."""

    @property
    def folder(self) -> Path:
        return self.root / "usr" / "local" / "vgpu"

    @property
    def library(self) -> Path:
        return self.folder / "libvgpu.so.v1"

    @property
    def image(self) -> Path:
        return self.root / "image"

    def names(self) -> list[str]:
        """Return the files in the node's folder."""
        return [path.name for path in self.folder.iterdir()] if self.folder.exists() else []


@pytest.fixture
def installation() -> Iterator[Installation]:
    with tempfile.TemporaryDirectory(prefix="tfd-") as made:
        Path(made).chmod(0o755)
        installation = Installation(of=INSTALL, root=Path(made))
        source = f"{installation.image}/libvgpu.so*"
        installation.given.update(FOLDER=str(installation.folder), SOURCE=source, VERSION="v1")
        installation.image.mkdir()
        (installation.image / "libvgpu.so.v1").write_bytes(LIBRARY)
        yield installation


def test_library_is_installed_readable_and_unchangeable(installation: Installation) -> None:
    status, output = installation.run()

    assert (status, installation.library.read_bytes()) == (0, LIBRARY), output
    assert stat.S_IMODE(installation.library.stat().st_mode) == 0o555
    assert installation.names() == ["libvgpu.so.v1"]


def test_second_run_changes_nothing(installation: Installation) -> None:
    installation.run()
    before = [changes(path) for path in (installation.library, installation.folder)]

    status, output = installation.run()

    assert (status, "is there already" in output) == (0, True)
    assert [changes(path) for path in (installation.library, installation.folder)] == before


def changes(path: Path) -> tuple[int, int, int]:
    """Return what tells a changed file from one that was only read."""
    found = path.stat()
    return found.st_ino, found.st_mtime_ns, found.st_ctime_ns


def test_other_content_under_the_same_name_is_kept_and_an_error(installation: Installation) -> None:
    installation.run()
    (installation.image / "libvgpu.so.v1").write_bytes(OTHER)

    status, output = installation.run()

    assert status == 1
    difference = f"found another content than that of {installation.image}/libvgpu.so.v1"
    assert f"{installation.library}: {difference}" in output
    assert installation.library.read_bytes() == LIBRARY


def test_another_version_is_a_file_beside_the_first(installation: Installation) -> None:
    installation.run()
    (installation.image / "libvgpu.so.v1").write_bytes(OTHER)
    first = installation.library.stat()

    installation.given.update(VERSION="v2")

    status, output = installation.run()

    assert status == 0, output
    assert installation.library.with_name("libvgpu.so.v2").read_bytes() == OTHER
    assert (installation.library.stat(), installation.library.read_bytes()) == (first, LIBRARY)


@pytest.mark.parametrize(
    ("program", "text"),
    [
        (
            "dd",
            'case "$2" in of=*) head -c 9 "${1#if=}" >"${2#of=}"; kill -9 0;; esac; /bin/dd "$@"',
        ),
        ("ln", "kill -9 0"),
        ("chmod", "kill -9 0"),
    ],
    ids=["while it writes", "before the name", "before the mode"],
)
def test_interrupted_installation_leaves_no_library_and_the_next_one_succeeds(
    installation: Installation, program: str, text: str
) -> None:
    installation.put_program(program, f"#!/bin/sh\n{text}\n")

    status, _ = installation.run()
    assert status == -9
    assert [name[:14] for name in installation.names()] == [".libvgpu.so.v1"]
    (installation.root / "bin" / program).unlink()
    status, output = installation.run()

    assert (status, installation.library.read_bytes()) == (0, LIBRARY), output
    assert installation.names() == ["libvgpu.so.v1"]


def test_two_at_once_never_leave_half_a_library(installation: Installation) -> None:
    with ThreadPoolExecutor(4) as pool:
        ended = [each.result() for each in [pool.submit(installation.run) for _ in range(4)]]

    assert installation.library.read_bytes() == LIBRARY, ended
    assert installation.run()[0] == 0
    assert installation.names() == ["libvgpu.so.v1"]


@pytest.mark.parametrize(
    ("has_library", "status", "text"),
    [(False, 1, "/usr/local/vgpu: cannot be written"), (True, 0, "is there already")],
)
def test_read_only_folder_is_an_error_unless_it_has_the_library(
    installation: Installation, has_library: bool, status: int, text: str
) -> None:
    installation.folder.mkdir(parents=True)
    if has_library:
        installation.run()
    installation.folder.chmod(0o555)
    # Permissions do not restrict root.
    other_user = 65534 if os.geteuid() == 0 else None

    found, output = installation.run(user=other_user)

    assert (found, text in output) == (status, True)


def test_full_disk_is_an_error_and_leaves_no_library(installation: Installation) -> None:
    refused = '#!/bin/sh\ncase "$2" in of=*) echo "no room" >&2; exit 1;; esac; exec /bin/dd "$@"\n'
    installation.put_program("dd", refused)

    status, output = installation.run()

    assert (status, "no room" in output, installation.library.exists()) == (1, True, False)


@pytest.mark.parametrize("files", [{}, {"libvgpu.so.v1": LIBRARY, "libvgpu.so.v2": LIBRARY}])
def test_pattern_has_to_match_one_file(installation: Installation, files: dict[str, bytes]) -> None:
    (installation.image / "libvgpu.so.v1").unlink()
    for name, content in files.items():
        (installation.image / name).write_bytes(content)

    status, output = installation.run()

    assert (status, "expected one file in the image" in output) == (1, True)
    assert installation.names() == []


def test_file_that_is_no_library_is_refused(installation: Installation) -> None:
    (installation.image / "libvgpu.so.v1").write_text("<html>not found</html>")

    status, output = installation.run()

    assert (status, "found no shared library" in output) == (1, True)
    assert not installation.library.exists()


def test_driver_looks_for_the_library_under_the_name_that_is_installed() -> None:
    env = variables(INSTALL)
    plugin = container("hami-core-install", "node-plugin")
    settings = {entry["name"]: entry.get("value") for entry in plugin["env"]}

    library = f"{env['FOLDER']}/libvgpu.so.{env['VERSION']}"
    assert settings["TENSORFUSION_DRA_HAMI_CORE_LIBRARY"] == library


TENANT_FILES: Final = "tenant-files"
FILES: Final = container("hypervisor", TENANT_FILES)


def mounted_files(
    folder: Path, *, mounted: bool = False, mount_status: int = 0, written: str = "shm"
) -> tuple[int, str, str]:
    """Return status and output of the script, and how it called a stand-in for mount."""
    given = {"ROOT": f"{folder}/run", "WRITTEN": written}
    files = Container(of=FILES, root=folder, given=given)
    calls = files.put_mounts(mounted=mounted, status=mount_status)

    return *files.run(), calls.read_text()


@pytest.mark.parametrize("mount_status", [0, 32])
def test_new_folder_is_on_a_tmpfs_and_a_fault_does_not_keep_the_driver_from_starting(
    tmp_path: Path, mount_status: int
) -> None:
    status, _, calls = mounted_files(tmp_path, mount_status=mount_status)

    options = "nosuid,nodev,noexec,mode=0755,size=512M,nr_inodes=64k"
    assert calls == f"-t tmpfs -o {options} tensorfusion-dra {tmp_path}/run/shm\n"
    assert (tmp_path / "run" / "shm").is_dir()
    assert status == 0


def test_every_folder_of_several_enforcers_is_mounted(tmp_path: Path) -> None:
    calls = mounted_files(tmp_path, written="shm hami-core/claims")[2]

    folders = [line.rpartition("/run/")[2] for line in calls.splitlines()]
    assert folders == ["shm", "hami-core/claims"]


def test_mount_of_tensor_fusion_itself_is_left_alone(tmp_path: Path) -> None:
    assert mounted_files(tmp_path, mounted=True)[2] == ""


def test_files_of_running_pods_are_not_hidden(tmp_path: Path) -> None:
    (tmp_path / "run" / "shm" / "default" / "trainer-0").mkdir(parents=True)

    status, output, calls = mounted_files(tmp_path)

    assert (status, calls) == (0, "")
    assert "becomes a tmpfs after the node's next reboot" in output


def test_folders_that_the_node_plugin_could_not_delete_are_deleted_and_no_other(
    tmp_path: Path,
) -> None:
    kept = [
        tmp_path / "run" / "shm" / "default" / "trainer-0",
        tmp_path / "run" / "hami-core" / "claims" / "uid-a" / ".mine.removed",
        tmp_path / "outside",
    ]
    for folder in kept:
        folder.mkdir(parents=True)
    for parent in ("shm/default", "hami-core/claims"):
        folder = tmp_path / "run" / parent / ".0123.removed"
        (folder / "deep").mkdir(parents=True)
        (folder / "link").symlink_to(tmp_path / "outside")
        os.mkfifo(folder / "deep" / "pipe")

    mounted_files(tmp_path, mounted=True)

    assert all(folder.is_dir() for folder in kept)
    assert not list((tmp_path / "run").glob("*/*/.0123.removed"))


@pytest.mark.parametrize(
    ("variant", "expected"),
    [
        ("nvidia", ["/run/tensor-fusion/shm", HamiCore(library="").claims_root]),
        ("hami-core", [HamiCore(library="").claims_root]),
        ("mps", []),
        ("simulated", []),
    ],
)
def test_tmpfs_is_where_the_enforcer_has_containers_write(
    variant: str, expected: list[str]
) -> None:
    every = helm.containers(helm.render(VARIANTS[variant]))
    found = [variables(each) for each in every if each["name"] == TENANT_FILES]

    folders = [f"{each['ROOT']}/{name}" for each in found for name in each["WRITTEN"].split()]
    assert folders == expected


def test_nothing_is_privileged_if_the_administrator_mounts_it() -> None:
    values = {"nodePlugin": {"tenantFilesSize": ""}}

    assert TENANT_FILES not in {each["name"] for each in helm.containers(helm.render(values))}
