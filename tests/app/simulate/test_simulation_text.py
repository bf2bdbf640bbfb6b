"""The report of a simulation as text, on one screen."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from tensorfusion_dra.app.simulate.report import (
    AdmissionReport,
    FreeCapacity,
    Pod,
    Share,
    SimulationReport,
    as_text,
)

FIRST = "gpu-363a38f1-2650-50ff-9309-5021289a0407"
SECOND = "gpu-363b0000-2650-50ff-9309-5021289a0407"
POOL = "default/node-01"


def limits(percent: int = 33, mib: int = 16384, mode: str = "soft") -> Mapping[str, str]:
    return {
        "TF_ISOLATION_MODE": mode,
        "TF_CUDA_SM_PERCENT_LIMIT": str(percent),
        "TF_GPU_MEMORY_LIMIT": str(mib),
        "PATH": "/bin",
    }


def running(name: str, asks: Mapping[str, str], *devices: str, env: Mapping[str, str]) -> Pod:
    shares = tuple(Share(device=each, share_id=each, consumed=asks) for each in devices)
    return Pod(name=name, asks=(asks,) * len(devices), phase="Running", shares=shares, env=env)


def waiting(name: str, reason: str) -> Pod:
    return Pod(name=name, asks=({},), phase="Pending", waits_for=reason)


def report(
    *pods: Pod, admissions: tuple[AdmissionReport, ...] = (), **changed: Any
) -> SimulationReport:
    devices = [
        {"name": name, "attributes": {"product_name": {"string": "Tesla T4"}}}
        for name in (FIRST, SECOND)
    ]
    prefix = changed.pop("prefix", "")
    left = tuple(
        FreeCapacity(
            device=device, capacity=f"{prefix}{name}", total=total, free=free, free_share=part
        )
        for device in (FIRST, SECOND)
        for name, total, free, part in (("tflops", "65", "12500m", 0.2), ("vram", "16Gi", "0", 0))
    )
    facts: dict[str, Any] = {
        "node": "node-01",
        "pool": POOL,
        "slices": ({"metadata": {"name": "s"}, "spec": {"devices": devices}},),
        "pods": pods,
        "cdi_file": "",
        "cdi_spec": None,
        "left": left,
        "admissions": admissions,
        "left_behind": (),
        "kept_in": "",
        "seconds": {"start": 1.0, "all": 1.5},
    }
    return SimulationReport(**{**facts, **changed})


TAKEN = f"tensor-fusion.ai.dra-driver/{POOL}/{FIRST}: tflops 271200m of 312 taken"


@pytest.mark.parametrize(
    ("found", "lines"),
    [
        (
            report(running("a", {"tflops": "100"}, SECOND, env=limits())),
            [
                "  gpu-363a  Tesla T4  [########..]   52.5 of 65 TFLOPS",
                "  [##########]  16Gi of 16Gi\n",
                "  a    100 TFLOPS  Running  gpu-363b  33 %, 16Gi, soft",
            ],
        ),
        (
            report(waiting("a", TAKEN), waiting("b", TAKEN), waiting("c", "no node")),
            ["  a, b wait: gpu-363a: tflops 271.2 of 312 taken\n", "  c waits: no node"],
        ),
        (report(waiting("a", "too much " * 200)), ["a waits: too much too much", " ..."]),
        (
            report(running("a", {}, FIRST, env=limits())),
            ["  TF_CUDA_SM_PERCENT_LIMIT=33  percent of the GPU's compute"],
        ),
        (
            report(running("a", {}, FIRST, env={"TF_ISOLATION_MODE": "shared"})),
            ["Running  gpu-363a  shared"],
        ),
        (
            report(prefix="virtual_"),
            [
                "GPUs of node-01, in the resource pool default/node-01, which hands out more",
                "52.5 of 65 TFLOPS",
            ],
        ),
        (
            report(left_behind=("claim a", "socket /b")),
            ["Left behind (1.5 s):\n  claim a\n  socket /b"],
        ),
    ],
    ids=[
        "devices by the fewest digits that are unique",
        "pods that wait for the same reason",
        "a long reason",
        "the limits of one container",
        "a container without limits",
        "an oversubscribed pool",
        "what was left behind",
    ],
)
def test_screen_shows(found: SimulationReport, lines: list[str]) -> None:
    shown = as_text(found, verbose=False)

    assert [line for line in lines if line not in shown] == []
    assert "PATH=" not in shown
    assert shown.count("too much") < 40
    assert ("TF_CUDA_SM_PERCENT_LIMIT" in shown) == any(pod.env == limits() for pod in found.pods)


@pytest.mark.parametrize(
    ("asks", "text"),
    [
        ({"tflops": "71200m", "vram": "10Gi"}, "71.2 TFLOPS, 10Gi "),
        ({"virtual_tflops": "156", "virtual_vram": "512Mi"}, "156 TFLOPS, 512Mi "),
        ({"vram": "17000000000"}, "15.8Gi "),
        ({}, "a whole GPU "),
        ({"tflops": "10", "example.com/sessions": "2"}, "10 TFLOPS, 2 example.com/sessions "),
    ],
)
def test_amounts_are_written_as_decimals_with_units(asks: Mapping[str, str], text: str) -> None:
    shown = as_text(report(running("a", asks, FIRST, env=limits())), verbose=False)

    assert f"  a    {text}" in shown


SMALL = {"tflops": "20", "vram": "4Gi"}
LARGE = {"tflops": "50", "vram": "8Gi"}


@pytest.mark.parametrize(
    ("asks", "devices", "text"),
    [
        ((LARGE, SMALL), (FIRST, FIRST), "50 TFLOPS, 8Gi + 20 TFLOPS, 4Gi  Running  gpu-363a "),
        ((SMALL, SMALL), (FIRST, FIRST), "2 shares, 20 TFLOPS, 4Gi each  Running  gpu-363a "),
        ((SMALL, SMALL), (FIRST, SECOND), "2 GPUs, 20 TFLOPS, 4Gi each  Running  gpu-363a "),
        (
            (SMALL, LARGE, SMALL),
            (FIRST,),
            "2 x 20 TFLOPS, 4Gi + 50 TFLOPS, 8Gi  Running  gpu-363a ",
        ),
        (({}, {}), (FIRST, SECOND), "2 whole GPUs  Running  gpu-363a "),
        ((), (), "no GPU    Running  -  "),
    ],
)
def test_a_pods_requests_are_told_apart(
    asks: tuple[Mapping[str, str], ...], devices: tuple[str, ...], text: str
) -> None:
    shares = tuple(
        Share(device=each, share_id=str(n), consumed={}) for n, each in enumerate(devices)
    )

    shown = as_text(report(Pod(name="a", asks=asks, phase="Running", shares=shares)), verbose=False)

    assert f"  a    {text}" in shown


def test_containers_of_a_pod_show_their_own_limits() -> None:
    found = running("a", SMALL, FIRST, env=limits())
    found = replace(found, other_envs=(limits(7, 4096), limits(7, 4096)))

    shown = as_text(report(found), verbose=False)

    assert "Running  gpu-363a  33 %, 16Gi, soft\n" in shown
    assert re.search(r"\n {20,}7 %, 4Gi, soft\n", shown)
    assert shown.count("7 %, 4Gi") == 1


def test_a_pod_with_several_gpus_shows_each_of_them() -> None:
    found = report(running("a", {"vram": "1Gi"}, FIRST, SECOND, env=limits()))

    shown = as_text(found, verbose=False)

    assert "  a    2 GPUs, 1Gi each  Running  gpu-363a  33 %, 16Gi, soft" in shown
    first, second = (line for line in shown.splitlines() if line.rfind("gpu-363") > 20)
    assert (second.strip(), second.index("gpu-363b")) == ("gpu-363b", first.index("gpu-363a"))


def test_admission_shows_claims_warnings_and_refusals() -> None:
    admissions = (
        AdmissionReport(pod="good", claim="good-claim-x", warnings=("qos: no effect",)),
        AdmissionReport(pod="plain"),
        AdmissionReport(pod="bad", refused="found 'many', " * 20),
    )

    shown = as_text(report(admissions=admissions), verbose=False)

    for line in (
        "  good   admitted  claim good-claim-x\n         warning   qos: no effect\n",
        "  plain  admitted  unchanged: it asks for no share",
        "  bad    refused   found 'many', found 'many'",
    ):
        assert line in shown
    assert max(map(len, shown.splitlines())) <= 100


def test_verbose_adds_claims_spec_and_environment_in_full() -> None:
    found = report(
        running("a", {}, FIRST, env=limits()),
        slices=(
            {
                "metadata": {"name": "slice-a"},
                "spec": {
                    "pool": {"generation": 3},
                    "devices": [
                        {"name": FIRST, "attributes": {"product_name": {"string": "Tesla T4"}}}
                    ],
                },
            },
        ),
        cdi_file="/cdi/a.json",
        cdi_spec={"kind": "tensor-fusion.ai/vgpu"},
        admissions=(
            AdmissionReport(
                pod="a", claim="a-claim", requests=({"count": 1}, {"count": 1}, {"count": 2})
            ),
        ),
    )

    shown = as_text(found, verbose=True)

    for part in (
        f"ResourceSlice slice-a, generation 3, 1 attributes each:\n  {FIRST}\n",
        'Request of claim a-claim, 2 times\n  {\n    "count": 1\n  }\n',
        'Request of claim a-claim\n  {\n    "count": 2\n  }\n',
        'CDI spec of a: /cdi/a.json\n  {\n    "kind": "tensor-fusion.ai/vgpu"\n  }\n',
        "\n  PATH=/bin\n",
    ):
        assert part in shown
    assert shown.endswith("(start 1.0 s, all 1.5 s)")
