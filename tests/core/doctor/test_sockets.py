"""How a driver's sockets show whether the kubelet finds it."""

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
def test_every_name_that_the_driver_gives_its_socket_is_known_as_its_own(
    folder: str, pod_uid: str
) -> None:
    paths = sockets.paths(registry_folder=Path(folder), data_folder=Path("/d"), pod_uid=pod_uid)

    assert judge.is_ours(paths.registration.name)


@pytest.mark.parametrize(
    "name", ["gpu.nvidia.com-reg.sock", "csi.sock", "dra-x-reg.sock", "tensor-fusion.ai.dra-driver"]
)
def test_other_names_are_others(name: str) -> None:
    assert not judge.is_ours(name)


def test_a_served_socket_of_ours_is_what_the_kubelet_needs() -> None:
    assert levels(Socket(path=OURS)) == [Level.OK]
    assert levels(Socket(path=OURS), Socket(path=f"{REGISTRY}/csi.sock")) == [Level.OK, Level.OK]


def test_none_or_only_dead_ones_means_that_no_node_plugin_serves() -> None:
    assert levels() == [Level.PROBLEM]
    assert levels(Socket(path=OURS, live=False)) == [Level.PROBLEM, Level.WARNING]


def test_a_dead_socket_of_others_is_only_good_to_know() -> None:
    dead = Socket(path=f"{REGISTRY}/gpu.nvidia.com-reg.sock", live=False)

    assert levels(Socket(path=OURS), dead) == [Level.OK, Level.NOTE]


def test_two_served_sockets_are_an_update_that_is_rolled_out() -> None:
    second = OURS.replace("-reg", "-5a5a5a5a-reg")

    assert levels(Socket(path=OURS), Socket(path=second))[0] is Level.NOTE


def test_a_socket_that_may_not_be_connected_to_says_so() -> None:
    forbidden = Socket(path=OURS, live=None, trouble="Permission denied")

    assert Level.COULD_NOT_LOOK in levels(forbidden)


@pytest.mark.parametrize(
    ("endpoint", "level", "said"),
    [
        (Socket(path=DRA, connections=1), Level.OK, "1 connected"),
        (Socket(path=DRA, connections=None), Level.OK, "not to be seen"),
        (Socket(path=DRA, connections=0), Level.PROBLEM, "nobody is connected"),
        (Socket(path=DRA, live=False), Level.PROBLEM, "nobody serves"),
        (Socket(path=DRA, live=None, trouble="refused"), Level.COULD_NOT_LOOK, "refused"),
        (None, Level.PROBLEM, "not there"),
    ],
)
def test_the_kubelet_is_sent_to_a_socket_that_is_served_and_stays_connected(
    endpoint: Socket | None, level: Level, said: str
) -> None:
    info = PluginInfo(socket=OURS, endpoint_path=DRA, endpoint=endpoint)

    answer, found = judge.told(info)

    assert answer.level is Level.OK
    assert (found.level, said in found.found) == (level, True)


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
def test_an_answer_that_the_kubelet_would_not_take_is_a_problem(info: PluginInfo) -> None:
    (finding,) = judge.told(info)

    assert finding.level is Level.PROBLEM
