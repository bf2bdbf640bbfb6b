"""The report of a simulation as text, on one screen."""

from collections.abc import Mapping
from typing import Any

import pytest

from tensorfusion_dra.app.simulate.report import (
    Admission,
    FreeCapacity,
    Pod,
    Report,
    Share,
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
    return Pod(name=name, asks=asks, phase="Running", shares=shares, env=env)


def waiting(name: str, reason: str) -> Pod:
    return Pod(name=name, asks={}, phase="Pending", waits_for=reason)


def report(*pods: Pod, admissions: tuple[Admission, ...] = (), **changed: Any) -> Report:
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
    return Report(**{**facts, **changed})


def screen(found: Report) -> str:
    return as_text(found, verbose=False)


def test_devices_are_named_by_the_fewest_digits_that_are_unique() -> None:
    shown = screen(report(running("a", {"tflops": "100"}, SECOND, env=limits())))

    assert "  gpu-363a  Tesla T4  [########..]   52.5 of 65 TFLOPS" in shown
    assert "  [##########]  16Gi of 16Gi\n" in shown
    assert "  a    100 TFLOPS  Running  gpu-363b  33 %, 16Gi, soft" in shown


@pytest.mark.parametrize(
    ("asks", "text"),
    [
        ({"tflops": "71200m", "vram": "10Gi"}, "71.2 TFLOPS, 10Gi "),
        ({"virtual_tflops": "156", "virtual_vram": "512Mi"}, "156 TFLOPS, 512Mi "),
        ({"vram": "17000000000"}, "15.8Gi "),
        ({}, "a whole GPU "),
    ],
)
def test_amounts_are_written_as_decimals_with_units(asks: Mapping[str, str], text: str) -> None:
    shown = screen(report(running("a", asks, FIRST, env=limits())))

    assert f"  a    {text}" in shown


def test_a_pod_with_several_gpus_shows_each_of_them() -> None:
    shown = screen(report(running("a", {"vram": "1Gi"}, FIRST, SECOND, env=limits())))

    assert "  a    2 GPUs, 1Gi each  Running  gpu-363a  33 %, 16Gi, soft" in shown
    first, second = (line for line in shown.splitlines() if line.rfind("gpu-363") > 20)
    assert (second.strip(), second.index("gpu-363b")) == ("gpu-363b", first.index("gpu-363a"))


def test_pods_with_the_same_reason_to_wait_share_a_line() -> None:
    reason = f"tensor-fusion.ai.dra-driver/{POOL}/{FIRST}: tflops 271200m of 312 taken"

    shown = screen(report(waiting("a", reason), waiting("b", reason), waiting("c", "no node")))

    assert "  a, b wait: gpu-363a: tflops 271.2 of 312 taken\n" in shown
    assert "  c waits: no node" in shown


def test_a_long_reason_is_cut() -> None:
    shown = screen(report(waiting("a", "too much " * 200)))

    assert shown.count("too much") < 40
    assert " ..." in shown


def test_a_container_without_limits_shows_its_isolation_alone() -> None:
    shown = screen(report(running("a", {}, FIRST, env={"TF_ISOLATION_MODE": "shared"})))

    assert "Running  gpu-363a  shared" in shown
    assert "TF_CUDA_SM_PERCENT_LIMIT" not in shown


def test_the_screen_shows_the_limits_of_one_container_and_no_other_variable() -> None:
    shown = screen(report(running("a", {}, FIRST, env=limits())))

    assert "  TF_CUDA_SM_PERCENT_LIMIT=33  percent of the GPU's compute" in shown
    assert "PATH=" not in shown


def test_an_oversubscribed_pool_is_described_as_such() -> None:
    shown = screen(report(prefix="virtual_"))

    assert "GPUs of node-01, in the resource pool default/node-01, which hands out more" in shown
    assert "52.5 of 65 TFLOPS" in shown


def test_admission_shows_claims_warnings_and_refusals() -> None:
    admissions = (
        Admission(pod="good", claim="good-claim-x", warnings=("qos: no effect",)),
        Admission(pod="plain"),
        Admission(pod="bad", refused="found 'many', " * 20),
    )

    shown = screen(report(admissions=admissions))

    assert "  good   admitted  claim good-claim-x\n         warning   qos: no effect\n" in shown
    assert "  plain  admitted  unchanged: it asks for no share" in shown
    assert "  bad    refused   found 'many', found 'many'" in shown
    assert max(map(len, shown.splitlines())) <= 100


def test_what_was_left_behind_is_listed() -> None:
    shown = screen(report(left_behind=("claim a", "socket /b")))

    assert shown.endswith("Left behind (1.5 s):\n  claim a\n  socket /b")


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
        admissions=(Admission(pod="a", claim="a-claim", request={"count": 1}),),
    )

    shown = as_text(found, verbose=True)

    assert f"ResourceSlice slice-a, generation 3, 1 attributes each:\n  {FIRST}\n" in shown
    assert 'Request of claim a-claim\n  {\n    "count": 1\n  }\n' in shown
    assert 'CDI spec of a: /cdi/a.json\n  {\n    "kind": "tensor-fusion.ai/vgpu"\n  }\n' in shown
    assert "\n  PATH=/bin\n" in shown
    assert shown.endswith("(start 1.0 s, all 1.5 s)")
