"""Pools that a node can use, and the order of their devices."""

import pytest

from tensorfusion_dra.scheduling import allocation
from tensorfusion_dra.scheduling.allocation import NoFitError, SchedulingError
from tests.scheduling.allocating import allocate, devices
from tests.support.objects import (
    DRIVER,
    Json,
    claim,
    device,
    device_class,
    exactly,
    node,
    resource_slice,
)


def test_devices_are_tried_in_the_order_of_pool_slice_and_publication() -> None:
    slices = [
        resource_slice(device("d1"), device("d0"), name="z", pool="b", count=2),
        resource_slice(device("d2"), name="y", pool="b", count=2),
        resource_slice(device("d3"), name="x", pool="c"),
        resource_slice(device("d4"), name="w", pool="a"),
    ]

    (found,) = allocate(claim(exactly(count=5)), slices=slices)

    assert devices(found) == ["d4", "d2", "d1", "d0", "d3"]


def test_all_mode_waits_for_a_pool_that_is_being_updated() -> None:
    gpus = [resource_slice(device("gpu-0"), count=2)]

    with pytest.raises(SchedulingError, match=f"{DRIVER}/node-a is currently being updated"):
        allocate(claim(exactly(allocationMode="All")), slices=gpus)


def test_no_device_of_an_incomplete_pool_is_allocated() -> None:
    gpus = [resource_slice(device("gpu-0"), count=2)]

    with pytest.raises(NoFitError) as caught:
        allocate(claim(), slices=gpus)

    assert caught.value.devices == {f"{DRIVER}/node-a": "1 of 2 slices"}


def test_only_the_newest_generation_of_a_pool_is_used() -> None:
    slices = [
        resource_slice(device("old"), name="a", generation=1),
        resource_slice(device("new"), name="b", generation=2),
    ]

    (found,) = allocate(claim(), slices=slices)

    assert devices(found) == ["new"]


def test_a_newer_generation_on_another_node_hides_the_pool_here() -> None:
    here = resource_slice(device("gpu-0"), name="a", pool="shared", generation=1, count=2)
    there = resource_slice(device("gpu-0"), name="b", pool="shared", generation=2)
    there["spec"]["nodeName"] = "node-b"

    with pytest.raises(NoFitError) as caught:
        allocate(claim(), slices=[here, there])

    assert caught.value.devices == {}


def test_slices_on_other_nodes_count_towards_a_complete_pool() -> None:
    here = resource_slice(device("gpu-0"), name="a", pool="shared", count=2)
    there = resource_slice(device("gpu-1"), name="b", pool="shared", count=2)
    there["spec"]["nodeName"] = "node-b"

    (found,) = allocate(claim(), slices=[here, there])

    assert devices(found) == ["gpu-0"]


def test_no_device_of_a_pool_with_duplicate_names_is_allocated() -> None:
    slices = [
        resource_slice(device("gpu-0"), name="a", count=2),
        resource_slice(device("gpu-0"), name="b", count=2),
    ]

    with pytest.raises(NoFitError) as caught:
        allocate(claim(), slices=slices)

    assert caught.value.devices == {f"{DRIVER}/node-a": "duplicate device name gpu-0"}


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        ({"allNodes": True}, None),
        (
            {
                "nodeSelector": {
                    "nodeSelectorTerms": [
                        {"matchExpressions": [{"key": "zone", "operator": "Exists"}]}
                    ]
                }
            },
            {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "Exists"}]}]},
        ),
    ],
)
def test_devices_of_several_nodes_are_available_where_their_slice_allows(
    selection: Json, expected: Json | None
) -> None:
    wide = resource_slice(device("gpu-0"))
    del wide["spec"]["nodeName"]
    wide["spec"].update(selection)
    cluster = allocation.cluster(slices=[wide], classes=[device_class()], claims=[])

    (found,) = allocation.allocate([claim()], cluster, node("node-b", zone="east"))

    assert found.get("nodeSelector") == expected


def test_a_bound_that_is_not_a_number_stops_the_scheduling() -> None:
    wide = resource_slice(device("gpu-0"))
    del wide["spec"]["nodeName"]
    bound = {"key": "cards", "operator": "Gt", "values": ["many"]}
    wide["spec"]["nodeSelector"] = {"nodeSelectorTerms": [{"matchExpressions": [bound]}]}

    with pytest.raises(SchedulingError, match=r"'many'.*expected one whole number"):
        allocate(claim(), slices=[wide])


def test_devices_of_other_nodes_are_not_considered() -> None:
    cluster = allocation.cluster(
        slices=[resource_slice(device("gpu-0"))], classes=[device_class()], claims=[]
    )

    with pytest.raises(NoFitError) as caught:
        allocation.allocate([claim()], cluster, node("node-b"))

    assert caught.value.devices == {}


def test_a_device_that_uses_an_unsupported_feature_is_never_allocated() -> None:
    partition = {**device("gpu-0"), "consumesCounters": [{"counterSet": "a", "counters": {}}]}

    with pytest.raises(NoFitError) as caught:
        allocate(claim(), slices=[resource_slice(partition)])

    (reason,) = caught.value.devices.values()
    assert reason == "uses consumesCounters, which this scheduler does not support"
