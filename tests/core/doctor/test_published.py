"""Findings about the ResourceSlices that nodes publish."""

import copy
from typing import Any

from tensorfusion_dra.core.devices import slices
from tensorfusion_dra.core.doctor import published
from tensorfusion_dra.core.doctor.finding import Level
from tests.support.builders.devices import NODE
from tests.support.builders.devices import published_devices as devices
from tests.support.builders.gpus import gpus


def stored(count: int = 1) -> list[Any]:
    wanted = slices.wanted(devices(*gpus(count)), NODE, node_uid="uid")
    return [copy.deepcopy(dict(item)) for item in slices.plan(wanted, ()).create]


def levels(found: list[Any], nodes: tuple[str, ...] = ("node-01",)) -> list[Level]:
    return [finding.level for finding in published.of_cluster(found, nodes=nodes)]


def test_slices_of_the_driver_are_fine() -> None:
    (finding,) = published.of_node(stored(2), node_name="node-01")

    assert (finding.level, finding.found) == (Level.OK, "1 on 1 nodes, with 2 devices")
    assert levels(stored(130)) == [Level.OK]


def test_missing_slices_are_a_problem_for_a_node_and_for_a_cluster() -> None:
    (of_node,) = published.of_node([], node_name="node-01")

    assert of_node.level is Level.PROBLEM
    assert "node-01" in of_node.subject
    assert levels([]) == [Level.PROBLEM]


def test_incomplete_pool_is_a_warning() -> None:
    assert levels(stored(130)[:1]) == [Level.WARNING]


def test_devices_without_allow_multiple_allocations_are_a_problem() -> None:
    (item,) = stored(2)
    for device in item["spec"]["devices"]:
        del device["allowMultipleAllocations"]

    (finding,) = published.of_cluster([item], nodes=["node-01"])

    assert finding.level is Level.PROBLEM
    assert finding.found.startswith("2 of 2 cannot be shared")


def test_slice_without_owner_or_of_a_missing_node_is_a_warning() -> None:
    (item,) = stored()
    item["metadata"]["ownerReferences"] = []

    assert levels([item]) == [Level.WARNING]
    assert levels(stored(), nodes=()) == [Level.WARNING]
