"""Findings about the node plugin's DaemonSet."""

from typing import Any, Final

import pytest

from tensorfusion_dra.core.doctor import daemonset
from tensorfusion_dra.core.doctor.finding import Level
from tensorfusion_dra.core.doctor.pools import Source

LABEL: Final = "nvidia.com/gpu.present"
LINUX: Final = {"kubernetes.io/os": "linux"}


def term(key: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": "In", "values": ["true"]}]}


def installed(wanted: int = 0, there: int = 0, env: dict[str, str] | None = None) -> dict[str, Any]:
    terms = [term(LABEL), term("feature.node.kubernetes.io/pci-10de.present")]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return {
        "metadata": {"namespace": "tensorfusion-dra", "name": "node-plugin"},
        "spec": {
            "template": {
                "spec": {
                    "runtimeClassName": "nvidia",
                    "nodeSelector": LINUX,
                    "affinity": {"nodeAffinity": required},
                    "containers": [
                        {
                            "env": [
                                {"name": name, "value": value}
                                for name, value in (env or {}).items()
                            ]
                        }
                    ],
                }
            }
        },
        "status": {"desiredNumberScheduled": wanted, "currentNumberScheduled": there},
    }


def node(**labels: str) -> dict[str, Any]:
    return {"metadata": {"name": "node-01", "labels": {**LINUX, **labels}}}


@pytest.mark.parametrize(
    ("wanted", "there", "labels", "has_class", "subjects"),
    [
        (1, 1, {LABEL: "true"}, True, ["DaemonSet tensorfusion-dra/node-plugin"]),
        (0, 0, {}, True, ["DaemonSet tensorfusion-dra/node-plugin"]),
        (0, 0, {}, False, ["RuntimeClass nvidia", "DaemonSet tensorfusion-dra/node-plugin"]),
        (1, 0, {LABEL: "true"}, False, ["RuntimeClass nvidia"]),
        (1, 0, {LABEL: "true"}, True, ["DaemonSet tensorfusion-dra/node-plugin"]),
    ],
)
def test_daemonset_without_pods_is_a_problem_with_what_it_lacks(
    wanted: int, there: int, labels: dict[str, str], has_class: bool, subjects: list[str]
) -> None:
    found = list(
        daemonset.pods(installed(wanted, there), [node(**labels)], has_runtime_class=has_class)
    )

    assert [each.subject for each in found] == subjects
    assert {each.level for each in found} == {Level.OK if there else Level.PROBLEM}


def test_missing_label_is_named_with_the_command_that_sets_it() -> None:
    (found,) = daemonset.pods(installed(), [node(), node()], has_runtime_class=True)

    assert found.found == (
        "no pods: none of 2 nodes has the labels kubernetes.io/os=linux and "
        "(nvidia.com/gpu.present=true or feature.node.kubernetes.io/pci-10de.present=true)"
    )
    assert found.cure.startswith("kubectl label node NODE nvidia.com/gpu.present=true, or set ")


def test_pool_source_is_read_from_the_environment_of_the_pods() -> None:
    prefix = "TENSORFUSION_DRA_"
    chosen = installed(env={f"{prefix}POOL_SOURCE": "object", f"{prefix}GPUPOOL": "prod"})

    assert daemonset.pool_source(chosen) == Source(kind="object", gpupool="prod")
    assert daemonset.pool_source(installed()) == Source(kind="settings", gpupool="default")
