"""Findings about the sockets by which the kubelet finds the driver."""

from pathlib import Path
from typing import Any

import pytest

from tensorfusion_dra.core.doctor import sockets as judge
from tensorfusion_dra.core.doctor.finding import Level
from tensorfusion_dra.core.doctor.sockets import PluginInfo, Socket
from tensorfusion_dra.kubelet import sockets
from tests.support import findings
from tests.support.findings import Expected

REGISTRY = "/var/lib/kubelet/plugins_registry"
OURS = f"{REGISTRY}/tensor-fusion.ai.dra-driver-reg.sock"
DRA = "/var/lib/kubelet/plugins/tensor-fusion.ai.dra-driver/dra.sock"


@pytest.mark.parametrize("folder", [REGISTRY, f"/{'k' * 50}", f"/{'k' * 65}"])
@pytest.mark.parametrize("pod_uid", ["", "5a5a5a5a-0000-4000-8000-000000000001"])
def test_every_form_of_this_drivers_socket_name_is_recognized(folder: str, pod_uid: str) -> None:
    paths = sockets.paths(registry_folder=Path(folder), data_folder=Path("/d"), pod_uid=pod_uid)

    assert judge.is_ours(paths.registration.name)


@pytest.mark.parametrize(
    "name", ["gpu.nvidia.com-reg.sock", "csi.sock", "dra-x-reg.sock", "tensor-fusion.ai.dra-driver"]
)
def test_socket_names_of_other_plugins_are_not_recognized(name: str) -> None:
    assert not judge.is_ours(name)


FOREIGN = f"{REGISTRY}/gpu.nvidia.com-reg.sock"
NONE_SERVED = (Level.PROBLEM, "none of them served")
OK = (Level.OK, "")


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        ([Socket(path=OURS)], [OK]),
        ([Socket(path=OURS), Socket(path=FOREIGN)], [OK, (Level.OK, "by another plugin")]),
        ([], [NONE_SERVED]),
        ([Socket(path=OURS, live=False)], [NONE_SERVED, (Level.WARNING, "its process died")]),
        (
            [Socket(path=OURS), Socket(path=FOREIGN, live=False)],
            [OK, (Level.NOTE, "another plugin's")],
        ),
        (
            [Socket(path=OURS), Socket(path=OURS.replace("-reg", "-5a5a5a5a-reg"))],
            [(Level.NOTE, "two during a rolling update"), OK, OK],
        ),
        (
            [Socket(path=OURS, live=None, trouble="Permission denied")],
            [NONE_SERVED, (Level.COULD_NOT_LOOK, "Permission denied")],
        ),
    ],
)
def test_registration_folder(listed: list[Socket], expected: list[Expected]) -> None:
    findings.check(judge.registered(listed), expected)


def answer(**facts: Any) -> PluginInfo:
    return PluginInfo(socket=OURS, endpoint_path=DRA, **facts)


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        (answer(endpoint=Socket(path=DRA, connections=1)), [OK, (Level.OK, "1 connected")]),
        (answer(endpoint=Socket(path=DRA)), [OK, (Level.OK, "not visible")]),
        (
            answer(endpoint=Socket(path=DRA, connections=0)),
            [OK, (Level.PROBLEM, "without any connection")],
        ),
        (answer(endpoint=Socket(path=DRA, live=False)), [OK, (Level.PROBLEM, "not served")]),
        (
            answer(endpoint=Socket(path=DRA, live=None, trouble="refused")),
            [OK, (Level.COULD_NOT_LOOK, "refused")],
        ),
        (answer(), [OK, (Level.PROBLEM, "not found")]),
        (answer(trouble="Deadline Exceeded"), [(Level.PROBLEM, "Deadline Exceeded")]),
        (answer(name="gpu.nvidia.com"), [(Level.PROBLEM, "DRAPlugin gpu.nvidia.com")]),
        (answer(kind="CSIPlugin"), [(Level.PROBLEM, "CSIPlugin")]),
        (answer(versions=("v1alpha3.NodeService",)), [(Level.PROBLEM, "serves v1alpha3")]),
        (answer(versions=()), [(Level.PROBLEM, "serves nothing")]),
    ],
)
def test_answer_to_get_info_and_the_dra_socket_that_it_names(
    info: PluginInfo, expected: list[Expected]
) -> None:
    findings.check(judge.plugin_info(info), expected)
