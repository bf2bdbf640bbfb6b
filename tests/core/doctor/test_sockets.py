"""Findings about the sockets by which the kubelet finds the driver."""

import pytest

from tensorfusion_dra.core.doctor import sockets as judge
from tensorfusion_dra.core.doctor.finding import Level
from tensorfusion_dra.core.doctor.sockets import Socket
from tests.support import findings
from tests.support.findings import Expected

REGISTRY = "/var/lib/kubelet/plugins_registry"
OURS = f"{REGISTRY}/tensor-fusion.ai.dra-driver-reg.sock"


FOREIGN = f"{REGISTRY}/gpu.nvidia.com-reg.sock"
NONE_SERVED = (Level.PROBLEM, "none of them served")
OK = (Level.OK, "")


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        ([Socket(path=OURS)], [OK]),
        (
            [Socket(path=OURS), Socket(path=FOREIGN, is_ours=False)],
            [OK, (Level.OK, "by another plugin")],
        ),
        ([], [NONE_SERVED]),
        ([Socket(path=OURS, live=False)], [NONE_SERVED, (Level.WARNING, "its process died")]),
        (
            [Socket(path=OURS), Socket(path=FOREIGN, is_ours=False, live=False)],
            [OK, (Level.NOTE, "another plugin's")],
        ),
        (
            [Socket(path=OURS), Socket(path=OURS.replace("-reg", "-5a5a5a5a-reg"))],
            [(Level.NOTE, "two during a rolling update"), OK, OK],
        ),
        (
            [Socket(path=OURS, live=None)],
            [NONE_SERVED, (Level.COULD_NOT_LOOK, "no permission")],
        ),
    ],
)
def test_registration_folder(listed: list[Socket], expected: list[Expected]) -> None:
    findings.check(judge.registered(listed), expected)
