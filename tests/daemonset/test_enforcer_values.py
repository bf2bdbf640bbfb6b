"""The chart's values for the MPS daemon and for HAMi-core's library."""

from collections.abc import Mapping
from typing import Any

import pytest

from tests.daemonset.test_manifests import MPS_DAEMON, VARIANTS
from tests.support import helm
from tests.support.helm import Document, RefusedValuesError


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"mps": {"daemon": {"enabled": True}}}, "expected settings.enforcer=mps"),
        ({"mps": {"exclusiveProcess": True}}, "without mps.daemon.enabled"),
        (
            {**MPS_DAEMON, "settings": {"enforcer": "mps", "mps-pipes": "/run/elsewhere"}},
            "found settings mps-pipes or mps-shm",
        ),
        (
            {**VARIANTS["mps-exclusive-process"], "nvidia": {"privileged": True}},
            "found nvidia.privileged",
        ),
        ({"hamiCore": {"install": {"enabled": True}}}, "expected settings.enforcer=hami-core"),
        (
            {
                "hamiCore": {"install": {"enabled": True}},
                "settings": {"enforcer": "hami-core", "hami-core-library": "/opt/libvgpu.so.1"},
            },
            "expected hamiCore.install.folder and version instead",
        ),
    ],
)
def test_values_that_contradict_each_other_are_refused(
    values: Mapping[str, Any], text: str
) -> None:
    with pytest.raises(RefusedValuesError, match=text):
        helm.render(values)


def daemonsets(values: Mapping[str, Any]) -> dict[str, Document]:
    """Return the pods of the chart's DaemonSets by name, without the common beginning."""
    return {
        item["metadata"]["name"].removeprefix("tensorfusion-dra-"): item["spec"]["template"]["spec"]
        for item in helm.render(values)
        if item["kind"] == "DaemonSet"
    }


def test_chart_passes_the_daemons_values_on() -> None:
    daemon = {
        "enabled": True,
        "image": "mps:1",
        "shmSize": "16G",
        "multiUser": True,
        "defaultActiveThreadPercentage": 25,
        "defaultPinnedMemory": "10G",
    }

    pod = daemonsets({**MPS_DAEMON, "mps": {"daemon": daemon}})["mps"]

    (container,), (shm,) = pod["containers"], pod["initContainers"]
    env = {entry["name"]: entry["value"] for entry in (*shm["env"], *container["env"])}
    assert container["image"] == "mps:1"
    assert env["SHM_SIZE"] == "16G"
    assert env["MULTI_USER"] == "true"
    assert env["DEFAULT_ACTIVE_THREAD_PERCENTAGE"] == "25"
    assert env["DEFAULT_PINNED_MEMORY"] == "10G"


def test_daemon_without_the_toolkit_takes_the_root_of_a_driver_container() -> None:
    nvidia = {"privileged": True, "driverRoot": "/run/nvidia/driver"}

    pod = daemonsets({**MPS_DAEMON, "nvidia": nvidia})["mps"]

    (container,) = pod["containers"]
    env = {entry["name"]: entry["value"] for entry in container["env"]}
    (root,) = (each for each in pod["volumes"] if each["name"] == "driver-root")
    assert env["DRIVER_ROOT"] == "/driver-root/driver"
    assert env["PATH"].endswith(":/driver-root/driver/usr/sbin:/driver-root/driver/usr/bin")
    assert root["hostPath"]["path"] == "/run/nvidia"
    assert "runtimeClassName" not in pod


def test_library_in_another_folder_is_installed_mounted_and_named_there() -> None:
    install = {"enabled": True, "folder": "/var/lib/vgpu", "version": "v3", "image": "lib:3"}

    pods = daemonsets({"settings": {"enforcer": "hami-core"}, "hamiCore": {"install": install}})

    for name in ("hami-core", "node-plugin"):
        (folder,) = (each for each in pods[name]["volumes"] if each["name"] == "hami-core")
        assert folder["hostPath"]["path"] == "/var/lib/vgpu"
    (plugin,) = pods["node-plugin"]["containers"]
    assert {"name": "hami-core", "mountPath": "/var/lib/vgpu", "readOnly": True} in plugin[
        "volumeMounts"
    ]
    library = {
        "name": "TENSORFUSION_DRA_HAMI_CORE_LIBRARY",
        "value": "/var/lib/vgpu/libvgpu.so.v3",
    }
    assert library in plugin["env"]
    every = (*pods["hami-core"]["initContainers"], *pods["hami-core"]["containers"])
    assert {each["image"] for each in every} == {"lib:3"}


def test_administrators_own_library_is_mounted_from_its_folder() -> None:
    settings = {"enforcer": "hami-core", "hami-core-library": "/opt/vgpu/libvgpu.so.7"}

    pod = daemonsets({"settings": settings})["node-plugin"]

    (folder,) = (each for each in pod["volumes"] if each["name"] == "hami-core")
    assert folder["hostPath"]["path"] == "/opt/vgpu"
