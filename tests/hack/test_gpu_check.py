"""The checks of limits on a machine, by hack/gpu-check, mps-check and nvidia-check."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dra_simulator.runtime import Mount
from gpucheck import cards, checks, steps, tenant
from gpucheck.machine import Machine
from gpucheck.steps import CheckError, Deadline, Json, Report, SkipError, Step
from gpucheck.tenant import Edits
from tensorfusion_dra.core import names
from tests.daemonset import mps_stand_in, scripts
from tests.guard import sitecustomize as path_guard
from tests.support import helm
from tests.support.compiler import compiler
from tests.support.waiting import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]
UUID = "GPU-12345678-1234-1234-1234-123456789abc"


@dataclass(frozen=True, kw_only=True)
class Ended:
    code: int
    printed: str
    out: Path

    @property
    def results(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.out / "results.json").read_text())
        return found

    def states(self) -> dict[str, str]:
        return {each["step"]: each["state"] for each in self.results["steps"]}

    def facts(self, step: str) -> Any:
        return next(each["facts"] for each in self.results["steps"] if each["step"] == step)


def run(out: Path, *words: str) -> Ended:
    """Run the check against stand-ins."""
    compiler("the stand-ins of hack/gpu-check")
    command = [sys.executable, str(ROOT / "hack" / "gpu-check"), "--stand-ins", "--out", str(out)]
    ended = subprocess.run(
        [*command, *words],
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_SECONDS,
        check=False,
        env=path_guard.environment(),
    )
    assert ended.stderr == ""
    return Ended(code=ended.returncode, printed=ended.stdout, out=out)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """Run every step. Shares of compute are not judged, since they depend on the machine's load."""
    return run(tmp_path_factory.mktemp("out"), "--seconds", "0.2", "--tolerance", "10000")


@pytest.mark.sweep
def test_every_step_has_a_result_and_every_output_says_that_there_was_no_gpu(whole: Ended) -> None:
    assert whole.code == 0, whole.printed
    limits = ("prepare", "memory", "compute", "tenants", "neighbour", "cost")
    assert whole.states() == {
        **dict.fromkeys(("discovery", "baseline", "tensor-fusion:prepare"), "ok"),
        "tensor-fusion:limits": "skipped",
        **{f"{name}:{step}": "ok" for name in ("hami-core", "mps") for step in limits},
    }
    for text in (whole.printed, (whole.out / "table.txt").read_text(encoding="utf-8")):
        assert text.startswith("STAND-INS, no GPU")
    assert len(whole.results["stand_ins"]) == 3
    files = {path.name for path in whole.out.iterdir()}
    assert files == {"results.json", "table.txt", "recording-of-stand-ins.json"}


@pytest.mark.sweep
def test_processes_have_the_limits_of_their_cdi_spec(whole: Ended) -> None:
    for enforcer in ("hami-core", "mps"):
        found = whole.facts(f"{enforcer}:memory")

        assert found["one_piece_above"]["granted_bytes"] == 0
        assert found["one_piece_above"]["refusal"] == "CUDA_ERROR_OUT_OF_MEMORY"
        assert found["limit_bytes"] // 2 < found["pieces"]["granted_bytes"] <= found["limit_bytes"]
    # HAMi-core counts the processes of a container together, MPS each one by itself.
    hami_core, mps = whole.facts("hami-core:memory"), whole.facts("mps:memory")
    assert hami_core["two_processes_bytes"] <= hami_core["limit_bytes"]
    assert mps["two_processes_bytes"] > mps["limit_bytes"]


@pytest.mark.sweep
def test_compute_is_measured_at_each_limit_and_beside_neighbours(whole: Ended) -> None:
    for enforcer in ("hami-core", "mps"):
        limits = {
            step: [row["limit_percent"] for row in whole.facts(f"{enforcer}:{step}")["rates"]]
            for step in ("compute", "tenants", "neighbour", "cost")
        }

        assert limits == {
            "compute": [None, 25, 50, 75],
            "tenants": [25, 50],
            "neighbour": [50, 50, 50, 50, None],
            "cost": [None, 100],
        }


@pytest.mark.sweep
def test_a_kernel_is_as_large_where_the_limit_leaves_fewer_multiprocessors(whole: Ended) -> None:
    free, quarter, *_ = whole.facts("mps:compute")["rates"]

    # Four times, if nothing disturbs; a kernel of a quarter of the blocks would be as fast.
    assert free["kernels_per_second"] > 1.5 * quarter["kernels_per_second"]


def test_a_share_above_its_limit_fails_and_one_without_a_limit_does_not() -> None:
    free = {"label": "no limit", "limit_percent": None, "percent": 104.0}
    held = {"label": "alone", "limit_percent": 25, "percent": 35.0}
    above = {"label": "alone", "limit_percent": 25, "percent": 35.1}

    assert checks.judged([free, held], 10) == "no limit 104.0 %; alone (limit 25 %) 35.0 %"
    with pytest.raises(CheckError, match="expected at most the limit and 10 points"):
        checks.judged([free, held, above], 10)


@pytest.mark.sweep
def test_a_limiter_that_does_not_limit_fails_the_check(tmp_path: Path) -> None:
    ended = run(
        tmp_path,
        *("--without-limiter", "--seconds", "0.3", "--tolerance", "0"),
        *("--only", "hami-core:memory", "--only", "hami-core:compute"),
    )

    assert ended.code == 1
    assert ended.states() == {
        "hami-core:prepare": "ok",
        "hami-core:memory": "failed",
        "hami-core:compute": "failed",
    }
    assert "in one piece was granted" in ended.printed
    assert "expected at most the limit and 0 points" in ended.printed


def test_environment_of_a_tenant_has_the_paths_of_the_host(
    tmp_path: Path,
) -> None:
    preload = tmp_path / "preload"
    preload.write_text("/usr/local/vgpu/libvgpu.so\n/usr/lib/other.so\n")
    here = Machine(
        driver_root=Path("/nowhere"), library_folder=None, dev=None, hami_core=None, mps_control=()
    )
    mounts = {
        "/host/libvgpu.so.2": "/usr/local/vgpu/libvgpu.so",
        "/host/caches": "/usr/local/vgpu/claims",
        "/host/driver/libcuda.so.550": "/usr/lib64/libcuda.so.1",
        str(preload): "/etc/ld.so.preload",
    }
    edits = Edits(
        env={"CUDA_DEVICE_MEMORY_SHARED_CACHE": "/usr/local/vgpu/claims/gpu.cache"},
        mounts=[Mount(host_path=host, container_path=path) for host, path in mounts.items()],
        device_nodes=[],
    )

    place = tenant.of_edits(edits, here, tmp_path / "links")

    expected = {
        "LD_PRELOAD": "/host/libvgpu.so.2:/usr/lib/other.so",
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": "/host/caches/gpu.cache",
        "LD_LIBRARY_PATH": str(tmp_path / "links"),
    }
    assert place.items() >= expected.items()
    links = {path.name: str(path.readlink()) for path in (tmp_path / "links").iterdir()}
    assert links == {"libcuda.so.1": "/host/driver/libcuda.so.550"}


def test_a_step_that_fails_does_not_lose_the_others(tmp_path: Path) -> None:
    report = Report(tmp_path, {"stand_ins": []})

    lines: list[str] = []

    def act(error: Exception | None, _deadline: Deadline, facts: Json) -> str:
        facts["half"] = 1
        if error:
            raise error
        return "good"

    for name, error, left_seconds in (
        ("a", CheckError("found 2, expected 1"), 10),
        ("b", SkipError("not here"), 10),
        ("c", ZeroDivisionError("a mistake in the step"), 10),
        ("d", None, 10),
        ("e", None, 0),
    ):
        step = Step(name=name, seconds=10, run=partial(act, error))
        steps.run(step, report, left_seconds=left_seconds, progress=lines.append)

    stored = json.loads((tmp_path / "results.json").read_text())["steps"]
    assert {each["step"]: each["state"] for each in stored} == {
        "a": "failed",
        "b": "skipped",
        "c": "failed",
        "d": "ok",
        "e": "skipped",
    }
    assert stored[0]["facts"] == {"half": 1}
    assert (len(lines), report.has_failed) == (5, True)


@pytest.mark.parametrize("only", [[], ["mps"], ["events", "mps:memory"]])
def test_steps_are_chosen_by_name_or_by_enforcer(only: list[str]) -> None:
    assert steps.is_wanted("mps:memory", only)
    assert not steps.is_wanted("mps:memory", ["mps:compute", "hami-core"])


def test_a_recording_does_not_identify_the_cards() -> None:
    gpu = {"index": 0, "uuid": UUID, "name": "NVIDIA H200"}
    refused = {"index": 1, "uuid": {"error": "NVML_ERROR_GPU_IS_LOST"}, "name": "NVIDIA H200"}

    found = cards.anonymous({"library": "libnvidia-ml.so.1", "gpus": [gpu, refused]})

    anonymous = {**gpu, "uuid": "GPU-00000000-aaaa-bbbb-cccc-dddddddddddd"}
    assert found == {"library": "libnvidia-ml.so.1", "gpus": [anonymous, refused]}


def test_what_is_published_otherwise_than_nvml_answered_is_named() -> None:
    gpu = {
        "index": 0,
        "uuid": UUID,
        "name": "NVIDIA H200",
        "memory_bytes": 141 * 2**30,
        "reserved_bytes": 2**30,
        "bus_id": "00000000:3A:00.0",
    }
    device = {
        "name": "gpu-0",
        "attributes": {
            names.ATTR_UUID: {"string": UUID},
            names.ATTR_PRODUCT_NAME: {"string": "NVIDIA H100"},
            names.ATTR_PCI_BUS_ID: {"string": "0000:3a:00.0"},
        },
        "capacity": {"vram": {"value": "140Gi"}},
    }

    assert cards.differences({"gpus": [gpu]}, [device]) == [
        "gpu-0: product name: found NVIDIA H100 published, expected NVIDIA H200"
    ]


@pytest.mark.sweep
@pytest.mark.parametrize(("fails", "status", "wrong"), [("", 0, 0), ("1", 1, 4)])
def test_table_tells_a_daemon_that_works_from_one_that_does_not(
    tmp_path: Path, fails: str, status: int, wrong: int
) -> None:
    stand_in = scripts.stand_in_program(mps_stand_in.__file__)
    scripts.put_program(tmp_path / "bin", "nvidia-cuda-mps-control", stand_in)

    done = subprocess.run(
        [sys.executable, ROOT / "hack/mps-check", tmp_path / "bin"],
        env={
            **os.environ,
            "HELM": helm.program(),
            "MPS_STAND_IN_LOG": str(tmp_path / "commands"),
            "MPS_STAND_IN_FAILS": fails,
        },
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )

    assert (done.returncode, done.stdout.count("WRONG")) == (status, wrong), done.stderr
    assert len(done.stdout.splitlines()) == 5


@pytest.mark.sweep
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("runc"), reason="needs root and runc")
def test_every_cgroup_gets_its_limit_with_real_containers() -> None:
    compiler("hack/nvidia-check")
    assert "$ sudo hack/nvidia-check\n" in (ROOT / "docs/limits.md").read_text(encoding="utf-8")

    # Without the guard over paths: the image of the containers has libraries of this machine.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ended = subprocess.run(
        [ROOT / "hack/nvidia-check"],
        capture_output=True,
        text=True,
        env=env,
        timeout=280,
        check=False,
    )

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count("\n") == ended.stdout.count("holds  ") == 18
