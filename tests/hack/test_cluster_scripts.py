"""Dry runs of the cluster scripts, and their errors."""

import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
SCRIPTS = ("cluster-up", "kind-up")


def script(name: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [ROOT / "hack" / name, *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
    )


def dry_run(*arguments: str) -> tuple[dict[str, Any], list[str]]:
    """Run kind-up --dry-run; return kind's configuration and the commands that it would run."""
    ended = script("kind-up", "--dry-run", *arguments)
    assert (ended.returncode, ended.stderr) == (0, "")
    configuration, first, rest = ended.stdout.partition("kind create")
    return yaml.safe_load(configuration), (first + rest).splitlines()


@pytest.mark.parametrize("name", SCRIPTS)
def test_script_has_valid_bash_syntax(name: str) -> None:
    subprocess.run(["bash", "-n", ROOT / "hack" / name], check=True, timeout=PATIENCE_SECONDS)


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("kind-up", ["--version", "1.30", "--dry-run"], "expected 1.34, 1.35, 1.36 or 1.37"),
        ("kind-up", ["--archive", "/no/image.tar"], "--archive /no/image.tar: found no file"),
        ("kind-up", ["--name"], "--name: expected a value"),
        ("kind-up", ["--node", "fly", "--dry-run"], "--node fly: expected restart-kubelet"),
        ("cluster-up", [], "--state: expected a folder"),
        ("cluster-up", ["--bin"], "--bin: expected a value"),
        ("cluster-up", ["--speed", "1"], "--speed: no such option"),
    ],
)
def test_bad_input_gives_one_line_and_exit_code_2(
    name: str, arguments: list[str], expected: str
) -> None:
    ended = script(name, *arguments)

    assert ended.returncode == 2
    assert expected in ended.stderr
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("version", "gates", "cards"),
    [
        ("1.34", {"DRAConsumableCapacity": True}, ["1"]),  # whose scheduler shares only the first
        ("1.35", {"DRAConsumableCapacity": True}, []),
        ("1.36", None, []),
        ("1.37", None, []),
    ],
)
def test_device_sharing_works_in_every_version_of_kubernetes(
    version: str, gates: dict[str, bool] | None, cards: list[str]
) -> None:
    configuration, commands = dry_run("--version", version)

    assert configuration["kind"] == "Cluster"
    assert configuration.get("featureGates") == gates
    assert f"--image kindest/node:v{version}." in commands[0]
    set_env = [line.split()[-1] for line in commands if " set env " in line]
    assert set_env == [f"TENSORFUSION_DRA_SIMULATED_GPUS={n}xA100-SXM4-80GB" for n in cards]


def test_cdi_is_enabled_in_the_runtime_of_every_node() -> None:
    configuration, _ = dry_run()

    (patch,) = configuration["containerdConfigPatches"]
    assert tomllib.loads(patch)["plugins"]["io.containerd.grpc.v1.cri"]["enable_cdi"] is True
    assert [node["role"] for node in configuration["nodes"]] == ["control-plane", "worker"]


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
    ended = script("kind-up", "--dry-run", "--name", "a", "--node", command)

    assert ended.stdout.strip() == runs
