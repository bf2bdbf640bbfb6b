"""The chart's values for the MPS daemon and for HAMi-core's library."""

from collections.abc import Mapping
from typing import Any

import pytest

from tests.daemonset.test_manifests import CHART, MPS_DAEMON, SAME, Document
from tests.support import chart, go_template


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
            {**SAME["mps-exclusive-process"][2], "nvidia": {"privileged": True}},
            "found nvidia.privileged",
        ),
    ],
)
def test_values_that_contradict_each_other_are_refused(
    values: Mapping[str, Any], text: str
) -> None:
    with pytest.raises(go_template.TemplateError, match=text):
        chart.render(CHART, values)


def daemonsets(values: Mapping[str, Any]) -> dict[str, Document]:
    """Return the pods of the chart's DaemonSets by name, without the common beginning."""
    return {
        item["metadata"]["name"].removeprefix("tensorfusion-dra-"): item["spec"]["template"]["spec"]
        for item in chart.render(CHART, values)
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
