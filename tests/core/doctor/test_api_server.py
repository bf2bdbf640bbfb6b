"""Which clusters have what the driver is built on."""

from typing import Any

import pytest

from tensorfusion_dra.core.doctor import api_server
from tensorfusion_dra.core.doctor.finding import Level

DRIVER = "tensor-fusion.ai.dra-driver"


def node(**info: str) -> dict[str, Any]:
    ready = {"type": "Ready", "status": "True"}
    return {
        "metadata": {"name": "node-01"},
        "status": {"nodeInfo": info, "conditions": [ready]},
    }


@pytest.mark.parametrize(
    ("told", "level"),
    [
        ("v1.33.9", Level.PROBLEM),
        ("v1.34.0", Level.OK),
        ("v1.36.2", Level.OK),
        ("v1.36.2-gke.100", Level.OK),
        ("v1.40.0", Level.OK),
        ("v2.0.0", Level.NOTE),
    ],
)
def test_kubernetes_before_1_34_does_not_do(told: str, level: Level) -> None:
    (finding,) = api_server.version({"gitVersion": told})

    assert finding.level is level
    assert told in finding.found


def test_a_version_without_git_is_read_from_its_numbers() -> None:
    (finding,) = api_server.version({"major": "1", "minor": "33+"})

    assert finding.level is Level.PROBLEM


@pytest.mark.parametrize(("told", "levels"), [("v1.34.8", [Level.WARNING]), ("v1.35.0", [])])
def test_the_scheduler_of_1_34_divides_only_first_cards(told: str, levels: list[Level]) -> None:
    assert [finding.level for finding in api_server.scheduler({"gitVersion": told})] == levels


@pytest.mark.parametrize(
    ("versions", "level", "said"),
    [
        (["v1"], Level.OK, "v1 is used"),
        (["v1beta2", "v1beta1"], Level.OK, "v1beta2 is used"),
        (["v1beta1"], Level.PROBLEM, "v1beta1"),
    ],
)
def test_one_of_two_versions_of_the_group_has_to_be_served(
    versions: list[str], level: Level, said: str
) -> None:
    (finding,) = api_server.served({"versions": [{"version": version} for version in versions]})

    assert finding.level is level
    assert said in finding.found


def test_a_group_that_is_not_served_is_a_problem() -> None:
    (finding,) = api_server.served(None)

    assert (finding.level, finding.found) == (Level.PROBLEM, "not served")


@pytest.mark.parametrize(
    ("told", "level"),
    [
        ("v1.33.4", Level.PROBLEM),
        ("v1.34.0", Level.WARNING),
        ("v1.34.1", Level.WARNING),
        ("v1.34.2", Level.OK),
        ("v1.36.2", Level.OK),
        ("", Level.OK),
    ],
)
def test_a_kubelet_has_to_be_new_enough_and_not_one_that_deadlocks(told: str, level: Level) -> None:
    (finding,) = api_server.kubelet(node(kubeletVersion=told))

    assert finding.level is level


def test_a_node_that_is_not_ready_says_why() -> None:
    healthy, broken, silent = node(), node(), node()
    broken["status"]["conditions"] = [{"type": "Ready", "status": "False", "message": "no CNI"}]
    silent["status"]["conditions"] = []

    assert [f.level for f in api_server.ready(healthy)] == [Level.OK]
    assert [f.found for f in api_server.ready(broken)] == ["Ready is False: no CNI"]
    assert [f.level for f in api_server.ready(silent)] == [Level.NOTE]


def claim(*results: dict[str, Any], asks: bool = True) -> dict[str, Any]:
    exactly = {"capacity": {"requests": {"vram": "1Gi"}}} if asks else {}
    return {
        "metadata": {"namespace": "default", "name": "a"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
        "status": {"allocation": {"devices": {"results": list(results)}}},
    }


def test_a_scheduler_that_gives_whole_cards_to_who_asks_for_parts_is_found_out() -> None:
    whole = claim({"driver": DRIVER})

    (finding,) = api_server.shares([whole], DRIVER)

    assert finding.level is Level.PROBLEM
    assert "default/a" in finding.found
    assert "kube-scheduler" in finding.cure


def test_parts_whole_cards_by_wish_other_drivers_and_admins_are_as_they_should_be() -> None:
    claims = [
        claim({"driver": DRIVER, "consumedCapacity": {"vram": "1Gi"}}),
        claim({"driver": DRIVER}, asks=False),
        claim({"driver": "gpu.example.com"}),
        claim({"driver": DRIVER, "adminAccess": True}),
    ]

    (finding,) = api_server.shares(claims, DRIVER)

    assert finding.level is Level.OK
    assert list(api_server.shares(claims[1:], DRIVER)) == []


def several(
    count: int, *, device_class: str = "tensor-fusion.ai", kind: str = "ResourceClaim"
) -> Any:
    exactly = {"deviceClassName": device_class, "count": count}
    spec: dict[str, Any] = {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}
    if kind == "ResourceClaimTemplate":
        spec = {"spec": spec}
    return {"kind": kind, "metadata": {"namespace": "a", "name": "train"}, "spec": spec}


@pytest.mark.parametrize("kind", ["ResourceClaim", "ResourceClaimTemplate"])
def test_a_scheduler_before_1_36_may_give_one_request_a_gpu_several_times(kind: str) -> None:
    stored = [several(4, kind=kind), several(1), several(4, device_class="other")]

    (found,) = api_server.one_request_for_several(
        {"gitVersion": "v1.35.6"}, stored, {"tensor-fusion.ai"}
    )

    assert found.level is Level.WARNING
    assert found.found.startswith(f"{kind} a/train: one request has a count above 1")
    assert "one distinctAttribute tensor-fusion.ai.dra-driver/uuid over all" in found.expected


def test_an_alternative_for_several_gpus_is_a_request_for_several() -> None:
    alternative = {"name": "two", "deviceClassName": "tensor-fusion.ai", "count": 2}
    claim = several(1)
    claim["spec"]["devices"]["requests"] = [{"name": "gpu", "firstAvailable": [alternative]}]

    assert list(
        api_server.one_request_for_several({"gitVersion": "v1.34.2"}, [claim], {"tensor-fusion.ai"})
    )


@pytest.mark.parametrize("told", ["v1.36.2", "v1.37.0", ""])
def test_a_scheduler_since_1_36_gives_one_request_different_gpus(told: str) -> None:
    assert not list(
        api_server.one_request_for_several({"gitVersion": told}, [several(4)], {"tensor-fusion.ai"})
    )
