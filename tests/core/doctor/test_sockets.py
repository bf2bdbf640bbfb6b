"""Findings about the sockets by which the kubelet finds the driver."""

from pathlib import Path

import pytest

from tensorfusion_dra.core.doctor import sockets as judge
from tensorfusion_dra.core.doctor.finding import Level
from tensorfusion_dra.core.doctor.sockets import PluginInfo, Socket
from tensorfusion_dra.kubelet import sockets

REGISTRY = "/var/lib/kubelet/plugins_registry"
OURS = f"{REGISTRY}/tensor-fusion.ai.dra-driver-reg.sock"
DRA = "/var/lib/kubelet/plugins/tensor-fusion.ai.dra-driver/dra.sock"


def levels(*found: Socket) -> list[Level]:
    return [finding.level for finding in judge.registered(found)]


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


def test_served_socket_of_this_driver_is_fine() -> None:
    assert levels(Socket(path=OURS)) == [Level.OK]
    assert levels(Socket(path=OURS), Socket(path=f"{REGISTRY}/csi.sock")) == [Level.OK, Level.OK]


def test_no_served_socket_of_this_driver_is_a_problem() -> None:
    assert levels() == [Level.PROBLEM]
    assert levels(Socket(path=OURS, live=False)) == [Level.PROBLEM, Level.WARNING]


def test_dead_socket_of_another_plugin_is_only_a_note() -> None:
    dead = Socket(path=f"{REGISTRY}/gpu.nvidia.com-reg.sock", live=False)

    assert levels(Socket(path=OURS), dead) == [Level.OK, Level.NOTE]


def test_two_served_sockets_are_a_note_because_of_rolling_updates() -> None:
    second = OURS.replace("-reg", "-5a5a5a5a-reg")

    assert levels(Socket(path=OURS), Socket(path=second))[0] is Level.NOTE


def test_socket_that_refuses_permission_could_not_be_examined() -> None:
    forbidden = Socket(path=OURS, live=None, trouble="Permission denied")

    assert Level.COULD_NOT_LOOK in levels(forbidden)


@pytest.mark.parametrize(
    ("endpoint", "level", "text"),
    [
        (Socket(path=DRA, connections=1), Level.OK, "1 connected"),
        (Socket(path=DRA, connections=None), Level.OK, "not visible"),
        (Socket(path=DRA, connections=0), Level.PROBLEM, "without any connection"),
        (Socket(path=DRA, live=False), Level.PROBLEM, "not served"),
        (Socket(path=DRA, live=None, trouble="refused"), Level.COULD_NOT_LOOK, "refused"),
        (None, Level.PROBLEM, "not found"),
    ],
)
def test_dra_socket_must_be_served_and_have_a_connection(
    endpoint: Socket | None, level: Level, text: str
) -> None:
    info = PluginInfo(socket=OURS, endpoint_path=DRA, endpoint=endpoint)

    answer, found = judge.plugin_info(info)

    assert answer.level is Level.OK
    assert (found.level, text in found.found) == (level, True)


@pytest.mark.parametrize(
    "info",
    [
        PluginInfo(socket=OURS, trouble="Deadline Exceeded"),
        PluginInfo(socket=OURS, name="gpu.nvidia.com"),
        PluginInfo(socket=OURS, kind="CSIPlugin"),
        PluginInfo(socket=OURS, versions=("v1alpha3.NodeService",)),
        PluginInfo(socket=OURS, versions=()),
    ],
)
def test_answer_that_the_kubelet_would_refuse_is_a_problem(info: PluginInfo) -> None:
    (finding,) = judge.plugin_info(info)

    assert finding.level is Level.PROBLEM
