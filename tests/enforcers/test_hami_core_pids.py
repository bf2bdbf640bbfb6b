"""Processes whose PID on the host HAMi-core has not found: it never limits their compute."""

from pathlib import Path

import pytest

from tensorfusion_dra.core.claims.verdicts import State
from tensorfusion_dra.core.kubernetes.quantity import GIB
from tensorfusion_dra.enforcers.hami_core import cache, enforcer
from tests.support import enforcer_files
from tests.support.builders.prepared_claims import limit

LIMIT = limit(25, 20)


@pytest.mark.parametrize(
    ("host_pid", "used", "compute"),
    [
        pytest.param(1_000, GIB, (State.ENFORCED, "LimiterActive"), id="known"),
        pytest.param(0, GIB, (State.NOT_ENFORCED, "ComputeNotLimited"), id="unknown"),
        # One that has only asked NVML, such as nvidia-smi, never gets one.
        pytest.param(0, 0, (State.ENFORCED, "LimiterActive"), id="does not use the card"),
    ],
)
def test_compute_is_not_limited_without_a_pid_on_the_host_but_memory_is(
    tmp_path: Path, host_pid: int, used: int, compute: tuple[State, str]
) -> None:
    path = tmp_path / "gpu.cache"
    path.write_bytes(enforcer_files.hami_cache([LIMIT] * 16, host_pid=host_pid, used=used))

    found = enforcer.of_request("gpu", [LIMIT], {"gpu": cache.read(str(path))}, "")

    assert found.limits_json() == {
        "memory": {"state": "Enforced", "reason": "LimiterActive"},
        "compute": {"state": compute[0].value, "reason": compute[1]},
    }
    assert found.state is compute[0]


def test_exited_process_limits_nothing_and_needs_no_limit(tmp_path: Path) -> None:
    path = tmp_path / "gpu.cache"
    content = bytearray(enforcer_files.hami_cache([LIMIT] * 16, host_pid=0, used=GIB))
    content[1_856:1_860] = bytes(4)  # its PID in the container
    path.write_bytes(content)

    assert cache.read(str(path)).unlimited == 0
