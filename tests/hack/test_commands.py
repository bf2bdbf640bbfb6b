"""Commands in hack: what they need of a machine, what they would run, refuse, and leave behind."""

import os
import runpy
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from hypervisor import node
from tests.guard import sitecustomize as path_guard
from tests.support.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
COMMANDS = [
    file.name
    for file in sorted((ROOT / "hack").iterdir())
    if file.is_file() and file.read_bytes().startswith(b"#!/usr/bin/env python3\n")
]
NEED_NONE = {"new-provider", "release-files", "release-version"}
NEED_DEV = {"kueue-check", "manifests", "mps-check", "status-screenshots"}
Ended = subprocess.CompletedProcess[str]


def ended(*command: str | Path, **options: Any) -> Ended:
    """Run a command to its end."""
    return subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False, **options
    )


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout without .venv."""
    shutil.copytree(ROOT / "hack", tmp_path / "hack", symlinks=True)
    (tmp_path / "tensorfusion_dra").symlink_to(ROOT / "tensorfusion_dra")
    return tmp_path


def run(checkout: Path, command: str, *arguments: str) -> Ended:
    environment = path_guard.environment({"PATH": os.defpath, "PYTHONDONTWRITEBYTECODE": "1"})
    # -S hides installed packages.
    python = (sys.executable, "-S", f"hack/{command}", *arguments)
    return ended(*python, cwd=checkout, env=environment)


@pytest.mark.parametrize("command", [each for each in COMMANDS if each not in NEED_NONE])
def test_command_without_its_packages_says_how_to_install_them(
    checkout: Path, command: str
) -> None:
    refused = run(checkout, command, "--help")

    packages = "dev" if command in NEED_DEV else "demo"
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
    assert refused.stderr.startswith(f"hack/{command}: {sys.executable} lacks ")
    assert f"(make -C {checkout} .venv/{packages}.stamp," in refused.stderr


@pytest.mark.parametrize("command", sorted(NEED_NONE))
def test_command_that_needs_no_packages_works_without(checkout: Path, command: str) -> None:
    helped = run(checkout, command, "--help")

    assert (helped.returncode, helped.stderr) == (0, "")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_needs_no_other_program(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [command, "--help"])
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PATH", "/nowhere")

    with pytest.raises(SystemExit, match=r"^0$"):
        runpy.run_path(str(ROOT / "hack" / command), run_name="__main__")

    assert capsys.readouterr().out.startswith("usage: ")


def put_program(folder: Path, name: str, script: str = "") -> None:
    """Write a shell script of this name."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


KUBECTL = """\
echo "$1 $2" >> calls
[ "$1 $2" != "get deviceclass" ] || printf %s "$STORED"
"""


@pytest.mark.parametrize(
    ("stored", "changes"),
    [("", ["create -f", "delete deviceclass"]), ("deviceclass/tensor-fusion.ai", [])],
)
def test_hypervisor_check_leaves_cluster_and_node_as_they_were(
    stored: str, changes: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_program(tmp_path, "kubectl", KUBECTL)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("STORED", stored)
    monkeypatch.chdir(tmp_path)
    old, new = tmp_path / "old", tmp_path / "new"
    (old / "claims").mkdir(parents=True)
    (old / "cards.json").touch()

    def fail() -> None:
        with node.new_files_removed([old, new]), node.device_class():
            (old / "claims.lock").touch()
            (old / "claims" / "a.json").touch()
            (new / "shm").mkdir(parents=True)
            (new / "shm" / "link").symlink_to(old)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()

    assert (tmp_path / "calls").read_text().splitlines() == ["get deviceclass", *changes]
    assert {*old.rglob("*")} == {old / "claims", old / "cards.json"}
    assert not new.exists()


def test_command_goes_on_with_the_python_in_venv(checkout: Path) -> None:
    put_program(checkout / ".venv/bin", "python", "printf '%s\\n' \"$@\"")

    done = run(checkout, "gpu-check", "--out", "a folder")

    assert done.stdout.splitlines() == ["hack/gpu-check", "--out", "a folder"]


def test_venv_that_lacks_the_packages_too_ends_the_command(checkout: Path) -> None:
    home = Path(sys.base_prefix) / "bin"
    (checkout / ".venv/bin").mkdir(parents=True)
    (checkout / ".venv/pyvenv.cfg").write_text(f"home = {home}\n")
    (checkout / ".venv/bin/python").symlink_to(home / f"python3.{sys.version_info.minor}")

    refused = run(checkout, "gpu-check", "--help")

    assert refused.returncode == 1
    assert f"{checkout}/.venv/bin/python lacks " in refused.stderr


LACKING = (
    "system: found Darwin, expected Linux",
    "ARCH: found riscv64, expected amd64 or arm64",
    "user: found ada, expected root",
    "apt-get install buildah debootstrap git",
    "docker build --tag tensorfusion-dra:",
)


@pytest.mark.parametrize(
    ("user", "system", "architecture", "programs", "said"),
    [
        ("0", "Linux", "", ("buildah", "debootstrap", "git"), ()),
        ("1000", "Darwin", "riscv64", (), LACKING),
    ],
)
def test_image_says_at_once_all_that_the_machine_lacks(  # noqa: PLR0917
    tmp_path: Path,
    user: str,
    system: str,
    architecture: str,
    programs: tuple[str, ...],
    said: tuple[str, ...],
) -> None:
    for name in ("bash", "dirname", "sed"):
        (tmp_path / name).symlink_to(shutil.which(name) or name)
    put_program(tmp_path, "id", f'[ "$1" = -u ] && echo {user} || echo ada')
    put_program(tmp_path, "uname", f'[ "$1" = -m ] && echo x86_64 || echo {system}')
    for name in programs:
        put_program(tmp_path, name)

    environment = {"PATH": str(tmp_path), "ARCH": architecture}
    checked = ended(tmp_path / "bash", ROOT / "hack/image", "--check", env=environment)

    assert (checked.returncode, checked.stdout) == (bool(said), "")
    assert [line for line in said if line not in checked.stderr] == []
    assert bool(checked.stderr) == bool(said)


BUILDAH = """\
case "$*" in
*" images "*) for last; do :; done; [ -e "images/$last" ] ;;
*" commit "*) for last; do :; done; touch "images/$last" ;;
*" tag "*) for last; do before=${now:-}; now=$last; done; echo "$before" >> tagged ;;
esac
"""
DEBOOTSTRAP = """\
echo "$SOURCE_DATE_EPOCH" >> days
for root; do :; done
mkdir -p "$root/etc/dpkg/dpkg.cfg.d"
for folder in usr/share/doc usr/share/man usr/share/locale usr/share/info var/cache/apt \\
    var/cache/ldconfig var/lib/apt/lists var/log; do mkdir -p "$root/$folder"; done
"""


def test_image_has_the_base_of_its_day_whatever_was_built_before(tmp_path: Path) -> None:
    """Debian's packages write the day of their installation into files."""
    shutil.copytree(ROOT / "hack", tmp_path / "hack", symlinks=True)
    (tmp_path / "pyproject.toml").symlink_to(ROOT / "pyproject.toml")
    (tmp_path / "images").mkdir()
    (tmp_path / "images/debian:trixie-slim").touch()  # of an earlier release
    programs = {"id": "echo 0", "buildah": BUILDAH, "debootstrap": DEBOOTSTRAP, "python": "exit 3"}
    programs["git"] = "cat epoch"  # the commit's time
    for name, text in programs.items():
        put_program(tmp_path / "bin", name, text)

    first, next_day = 1_790_000_000, 1_790_000_000 + 86_400
    for epoch in (first, first + 60, next_day):
        environment = {
            "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
            "PYTHON": str(tmp_path / "bin/python"),
            "REVISION": "a",
        }
        (tmp_path / "epoch").write_text(str(epoch))
        # Ends when it fetches wheels, with the base.
        ended(tmp_path / "hack/image", cwd=tmp_path, env=environment)

    days = [f"debian:trixie-slim-{epoch // 86_400}" for epoch in (first, first, next_day)]
    assert (tmp_path / "days").read_text().split() == [str(first), str(next_day)]
    assert (tmp_path / "tagged").read_text().split() == days


INSTALLED = """\
case "$1" in
--version) echo "tensorfusion-dra $VERSION" ;;
simulate)
    [ ! -e simulated ] || exit 0
    touch simulated
    echo "simulate needs the extra 'simulate'" >&2
    exit 2
    ;;
esac
"""


def test_release_check_does_not_print_the_refusal_that_it_expects(tmp_path: Path) -> None:
    put_program(tmp_path / "venv", "tensorfusion-dra", INSTALLED)
    put_program(tmp_path / "venv", "python")
    made = f'[ "$2" != venv ] || {{ mkdir .venv; cp -r {tmp_path / "venv"} .venv/bin; }}'
    for name, text in {"python": made, "tar": "", "cmp": "", "stat": "echo 0"}.items():
        put_program(tmp_path / "bin", name, text)

    # Ends at the kubectl plugin, which is not in the empty archives.
    done = ended(
        ROOT / "hack/release-check",
        "--inside",
        tmp_path / "bin/python",
        env={
            "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
            "TMPDIR": str(tmp_path),
            "VERSION": tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"],
        },
    )

    assert [*tmp_path.glob("*/simulated")]
    assert [*tmp_path.glob("*/plugin")]
    assert "extra" not in done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("make") is None, reason="found no make on PATH")
def test_make_image_makes_no_environment_on_a_machine_that_lacks_something(tmp_path: Path) -> None:
    for name in ("Makefile", "hack", "pyproject.toml"):
        (tmp_path / name).symlink_to(ROOT / name)

    refused = ended("make", "image", cwd=tmp_path, env={**os.environ, "ARCH": "riscv64"})

    assert refused.returncode == 2
    assert "ARCH: found riscv64" in refused.stderr
    assert not (tmp_path / ".venv").exists()


def script(name: str, *arguments: str) -> Ended:
    """Run a script that sets up a cluster."""
    path = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    return ended(ROOT / "hack" / name, *arguments, env=path)


def dry_run(*arguments: str) -> tuple[dict[str, Any], list[str]]:
    """Run kind-up --dry-run; return kind's configuration and the commands that it would run."""
    done = script("kind-up", "--dry-run", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    configuration, first, rest = done.stdout.partition("kind create")
    return yaml.safe_load(configuration), (first + rest).splitlines()


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("kind-up", ["--version", "1.30", "--dry-run"], "expected 1.35, 1.36 or 1.37"),
        ("kind-up", ["--archive", "/no/image.tar"], "--archive /no/image.tar: found no file"),
        ("kind-up", ["--name"], "--name: expected a value"),
        ("kind-up", ["--node", "fly", "--dry-run"], "--node fly: expected restart-kubelet"),
        ("cluster-up", [], "--state: expected a folder"),
        ("cluster-up", ["--bin"], "--bin: expected a value"),
        ("cluster-up", ["--speed", "1"], "--speed: no such option"),
    ],
)
def test_bad_input_of_a_cluster_script_gives_one_line_and_exit_code_2(
    name: str, arguments: list[str], expected: str
) -> None:
    subprocess.run(["bash", "-n", ROOT / "hack" / name], check=True)  # the rest of it too

    refused = script(name, *arguments)

    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert expected in refused.stderr


@pytest.mark.parametrize(
    ("version", "gates"),
    [("1.35", {"DRAConsumableCapacity": True}), ("1.36", None), ("1.37", None)],
)
def test_kind_has_cdi_and_device_sharing_in_every_version_of_kubernetes(
    version: str, gates: dict[str, bool] | None
) -> None:
    configuration, commands = dry_run("--version", version)

    (patch,) = configuration["containerdConfigPatches"]
    assert tomllib.loads(patch)["plugins"]["io.containerd.grpc.v1.cri"]["enable_cdi"] is True
    assert [each["role"] for each in configuration["nodes"]] == ["control-plane", "worker"]
    assert configuration["kind"] == "Cluster"
    assert configuration.get("featureGates") == gates
    assert f"--image kindest/node:v{version}." in commands[0]


def test_image_is_loaded_before_the_daemonset_is_applied() -> None:
    _, commands = dry_run("--name", "a", "--archive", "x.tar")

    assert [line.split()[:2] for line in commands] == [
        ["kind", "create"],
        ["kind", "load"],
        ["kubectl", "--context"],
        ["kubectl", "--context"],
    ]
    assert commands[1].split()[-1] == "x.tar"
    assert "apply --filename daemonset/install/simulated.yaml" in commands[2]
    assert all("kind-a" in line for line in commands[2:])


@pytest.mark.parametrize(
    ("command", "runs"),
    [
        ("restart-kubelet", "docker exec a-worker systemctl restart kubelet"),
        ("stop-kubelet", "docker exec a-worker systemctl stop kubelet"),
        ("start-kubelet", "docker exec a-worker systemctl start kubelet"),
        ("reboot", "docker restart a-worker"),
    ],
)
def test_each_node_action_is_one_docker_command(command: str, runs: str) -> None:
    done = script("kind-up", "--dry-run", "--name", "a", "--node", command)

    assert done.stdout.strip() == runs
