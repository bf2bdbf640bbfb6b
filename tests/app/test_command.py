"""The command's verbs, called as processes."""

import json
from pathlib import Path

import pytest

from tensorfusion_dra.app.shared import version
from tests.guard import sitecustomize as path_guard
from tests.support import forks


def command(*arguments: str, **environment: str) -> forks.Ended:
    guarded = path_guard.environment({"PATH": "/usr/bin:/bin", **environment})
    return forks.run(*arguments, environment=guarded)


def host_folders(root: Path) -> list[str]:
    """Return flags for the host folders that `inspect` reads."""
    return ["--kubelet-root", str(root / "kubelet"), "--cdi-dir", str(root / "cdi")]


def test_version_flag_prints_name_and_version() -> None:
    ended = command("--version")

    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == f"tensorfusion-dra {version.current()}\n"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "VERB"),
        (["fly"], "fly"),
        (["node-plugin", "--bogus"], "--bogus"),
        (["node-plugin", "--poll-seconds", "soon"], "poll-seconds: found 'soon'"),
        (["node-plugin", "--qos", "best"], "qos: found 'best', expected one of low"),
        (["node-plugin", "--node-name", "Node_1"], "node-name: found 'Node_1'"),
        (["node-plugin", "--config", "/nowhere/a.yaml"], "config /nowhere/a.yaml: No such file"),
        (["inspect", "--gpu-models", "/nowhere/a.yaml"], "/nowhere/a.yaml"),
        (["inspect", "--simulated-gpus", "/nowhere/a.yaml"], "/nowhere/a.yaml"),
        (["inspect", "--simulated-gpus", "2xA1000000"], "A1000000"),
        (["simulate", "--pods", "-1"], "pods: found -1"),
        (["simulate", "--request", "tflops"], "request 'tflops'"),
        (["simulate", "--request", "speed=1"], "request 'speed=1'"),
        (["simulate", "--request", "tflops=1_000"], "request 'tflops=1_000'"),
    ],
)
def test_bad_input_is_a_one_line_error_with_exit_code_2(
    arguments: list[str], expected: str
) -> None:
    ended = command(*arguments)

    assert ended.returncode == 2
    assert ended.stdout == ""
    assert ended.stderr.startswith("tensorfusion-dra: ")
    assert ended.stderr.count("\n") == 1
    assert expected in ended.stderr


def test_simulate_verbose_adds_the_cdi_spec_and_the_whole_environment() -> None:
    ended = command("simulate", "-v", "--gpus", "1xT4", "--pods", "2", "--request", "whole")

    assert (ended.returncode, ended.stderr) == (0, "")
    assert "Tesla T4" in ended.stdout
    assert "pod-2 waits:" in ended.stdout
    assert '  "kind": "tensor-fusion.ai/vgpu",' in ended.stdout
    assert "  NVIDIA_VISIBLE_DEVICES=void\n" in ended.stdout
    assert "Torn down, nothing left behind (start " in ended.stdout


def test_inspect_shows_cards_devices_and_claims(tmp_path: Path) -> None:
    cards = ["--simulated-gpus", "2xA100-SXM4-80GB", "--node-name", "node-01"]
    ended = command("inspect", "-o", "json", *cards, *host_folders(tmp_path))

    found = json.loads(ended.stdout)
    assert ended.returncode == 0
    assert [card["model"] for card in found["cards"]] == ["A100", "A100"]
    assert len(found["devices"]) == 2
    assert (found["shares"], found["cdiSpecs"], found["leftOut"]) == ([], [], [])
    assert list(tmp_path.iterdir()) == []


def test_inspect_shows_health_and_taints_and_writes_nothing(tmp_path: Path) -> None:
    profile = tmp_path / "gpus.yaml"
    profile.write_text("gpus: [{product: T4, recovery_action: 1}, {product: T4}]")
    cards = ["--simulated-gpus", str(profile), *host_folders(tmp_path)]

    found = json.loads(command("inspect", "-o", "json", *cards).stdout)
    shown = command("inspect", *cards).stdout

    sick, well = found["cards"]
    assert well["health"]["healthy"]
    assert (sick["health"]["healthy"], sick["health"]["reason"]) == (False, "gpu-reset-required")
    (taint,) = found["devices"][0]["taints"]
    assert (taint["value"], taint["effect"]) == ("gpu-reset-required", "NoSchedule")
    assert "taints" not in found["devices"][1]
    assert f"{sick['uuid']}: the NVIDIA driver requests a reset of the GPU" in shown
    assert shown.count("healthy") >= 1
    assert not (tmp_path / "kubelet").exists()


def test_inspect_without_the_nvidia_driver_names_the_missing_library() -> None:
    ended = command(
        *("inspect", "--nvml-library", "/nowhere/libnvidia-ml.so.1"),
        *host_folders(Path("/nowhere")),
    )

    assert ended.returncode == 1
    assert "/nowhere/libnvidia-ml.so.1" in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_inspect_reports_a_damaged_ledger_and_shows_the_rest(tmp_path: Path) -> None:
    ledger = tmp_path / "kubelet" / "plugins" / "tensor-fusion.ai.dra-driver" / "ledger.sqlite3"
    ledger.parent.mkdir(parents=True)
    ledger.write_text("no database")

    ended = command("inspect", "--simulated-gpus", "1xT4", *host_folders(tmp_path))

    assert ended.returncode == 1
    assert ended.stderr.startswith(f"tensorfusion-dra: ledger {ledger}: ")
    assert "T4" in ended.stdout
    assert ledger.read_text() == "no database"


def test_simulate_shows_an_oversubscribed_pool_and_each_containers_limits() -> None:
    ended = command(
        *("simulate", "-o", "json", "--gpus", "1xA100-SXM4-40GB", "--pods", "4"),
        *("--tflops-oversell-ratio", "150"),
        *("--request", "tflops=156,vram=10Gi,vram-limit=40Gi"),
        *("--request", "tflops=300,vram=29Gi"),
        *("--request", "tflops=12,vram=0"),
        *("--request", "whole"),
    )

    report = json.loads(ended.stdout)
    assert (ended.returncode, ended.stderr) == (0, "")
    burst, large, small, whole = report["pods"]
    assert [pod["phase"] for pod in report["pods"]] == ["Running", "Running", "Running", "Pending"]
    assert burst["env"]["TF_CUDA_SM_PERCENT_LIMIT"] == "50"
    assert large["env"]["TF_CUDA_SM_PERCENT_LIMIT"] == "97"
    assert large["env"]["TF_GPU_MEMORY_LIMIT"] == str(29 * 1024)
    assert small["shares"][0]["consumed"]["virtual_vram"] == "1Mi"
    assert "virtual_tflops" in whole["waits_for"]
    assert {left["capacity"]: left["free"] for left in report["left"]}["virtual_tflops"] == "0"


def test_inspect_raw_prints_a_recording_of_nvml() -> None:
    ended = command("inspect", "--raw", "--simulated-gpus", "1xT4")

    recording = json.loads(ended.stdout)
    assert recording["gpus"][0]["name"] == "Tesla T4"
