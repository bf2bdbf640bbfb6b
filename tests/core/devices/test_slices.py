"""Writes of a node to its ResourceSlices, and the content of the slices."""

import copy
import functools
import operator
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from dra_simulator.api import slice_rules
from tensorfusion_dra.core.devices import slices
from tensorfusion_dra.core.devices.device import Node, Taint
from tensorfusion_dra.core.devices.slices import Slice
from tests.support.builders.devices import NODE, published_devices
from tests.support.builders.gpus import gpus
from tests.support.builders.slices import MANY, NAME, stored_slices, wanted_slices
from tests.support.slice_store import applied, pool_generations, writes_by_verb

SINCE = datetime(2026, 3, 1, tzinfo=UTC)


def test_new_node_creates_its_slice_at_generation_1() -> None:
    plan = slices.plan(wanted_slices(), [])

    assert writes_by_verb(plan) == {"create": [NAME]}
    (created,) = plan.create
    assert created["kind"] == "ResourceSlice"
    assert created["spec"]["driver"] == "tensor-fusion.ai.dra-driver"
    assert created["spec"]["nodeName"] == "node-01"
    assert created["spec"]["pool"] == {
        "name": "default/node-01",
        "generation": 1,
        "resourceSliceCount": 1,
    }
    assert [device["name"] for device in created["spec"]["devices"]] == [
        device.name for device in MANY[:2]
    ]


def test_slice_is_owned_by_its_node_and_has_the_guides_labels() -> None:
    (item,) = wanted_slices()

    assert item["metadata"] == {
        "name": NAME,
        "labels": {
            "tensor-fusion.ai/managed-by": "node-01",
            "kubernetes.io/hostname": "node-01",
        },
        "ownerReferences": [
            {
                "apiVersion": "v1",
                "kind": "Node",
                "name": "node-01",
                "uid": "node-uid",
                "controller": True,
            }
        ],
    }


def test_empty_pool_may_be_stored_without_a_list_of_devices() -> None:
    kept = stored_slices(0)
    del kept[0]["spec"]["devices"]

    assert not slices.plan(wanted_slices(0), kept)


def stored(count: int, *, changed: int = 0, kept: int | None = None) -> list[Slice]:
    """Return the first stored slices of so many devices, of which others changed the last ones."""
    items = stored_slices(count)
    for item in items[len(items) - changed :]:
        item["spec"]["devices"][0]["attributes"]["qos"] = {"string": "high"}
    return list(items[:kept])


@pytest.mark.parametrize(
    ("count", "before", "writes", "generation"),
    [
        (3, stored(2), {"update": [NAME]}, 1),
        (65, stored(65, changed=1), {"update": [f"{NAME}-1"]}, 1),
        (65, stored(65, changed=2), {"update": [NAME, f"{NAME}-1"]}, 2),
        (129, stored(129, changed=2), {"update": [NAME, f"{NAME}-1", f"{NAME}-2"]}, 2),
        (65, stored(64), {"update": [NAME], "create": [f"{NAME}-1"]}, 2),
        (65, stored(65, kept=1), {"update": [NAME], "create": [f"{NAME}-1"]}, 2),
    ],
    ids=["one", "one of two", "two", "two of three", "a new one", "a missing one"],
)
def test_pool_moves_to_the_next_generation_unless_one_slice_changed(
    count: int, before: list[Slice], writes: dict[str, list[str]], generation: int
) -> None:
    plan = slices.plan(wanted_slices(count), before)

    assert writes_by_verb(plan) == writes
    assert set(pool_generations([*plan.update, *plan.create])) == {generation}


def test_slice_of_an_older_generation_is_replaced_by_a_new_object() -> None:
    kept = stored_slices(65)
    kept[0]["spec"]["pool"]["generation"] = 7

    plan = slices.plan(wanted_slices(65), kept)

    assert writes_by_verb(plan) == {
        "delete": [f"{NAME}-1"],
        "update": [NAME],
        "create": [f"{NAME}-1"],
    }
    assert pool_generations([*plan.update, *plan.create]) == [8, 8]


def test_another_pool_needs_new_objects_because_the_pool_of_a_slice_is_immutable() -> None:
    kept = stored_slices()
    kept[0]["spec"]["pool"]["generation"] = 41

    plan = slices.plan(wanted_slices(node=replace(NODE, gpupool="production")), kept)

    assert writes_by_verb(plan) == {"delete": [NAME], "create": [NAME]}
    assert plan.create[0]["spec"]["pool"]["name"] == "production/node-01"
    assert pool_generations(plan.create) == [1]


def test_labels_and_annotations_of_other_writers_are_no_change_and_stay() -> None:
    kept = stored_slices()
    kept[0]["metadata"]["labels"]["example.com/team"] = "a"
    kept[0]["metadata"]["annotations"] = {"example.com/note": "b"}

    assert not slices.plan(wanted_slices(), kept)
    (update,) = slices.plan(wanted_slices(3), kept).update
    assert update["metadata"]["labels"] == {
        "example.com/team": "a",
        "tensor-fusion.ai/managed-by": "node-01",
        "kubernetes.io/hostname": "node-01",
    }
    assert update["metadata"]["annotations"] == {"example.com/note": "b"}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("metadata", "labels", "tensor-fusion.ai/managed-by"), "other"),
        (("metadata", "labels"), None),
        (("metadata", "ownerReferences"), None),
        (("spec", "pool", "resourceSliceCount"), 2),
        (("spec", "devices", 0, "name"), "gpu-other"),
    ],
)
def test_changes_by_other_writers_are_repaired(path: Sequence[Any], value: object) -> None:
    kept = stored_slices()
    place: Any = functools.reduce(operator.getitem, path[:-1], kept[0])
    place[path[-1]] = value

    plan = slices.plan(wanted_slices(), kept)

    assert writes_by_verb(plan) == {"update": [NAME]}
    assert not slices.plan(wanted_slices(), applied(plan, kept))


def test_update_is_the_object_that_was_read_without_managed_fields() -> None:
    kept = stored_slices()
    kept[0]["metadata"]["managedFields"] = [{"manager": "somebody"}]
    kept[0]["metadata"]["resourceVersion"] = "17"

    (update,) = slices.plan(wanted_slices(3), kept).update

    assert update["metadata"]["uid"] == kept[0]["metadata"]["uid"]
    assert update["metadata"]["resourceVersion"] == "17"
    assert "managedFields" not in update["metadata"]


def test_plan_does_not_modify_the_stored_slices() -> None:
    kept = stored_slices(129)
    before = copy.deepcopy(kept)

    slices.plan(wanted_slices(66, node_uid="other"), kept)

    assert kept == before


@pytest.mark.parametrize(
    ("count", "sizes"),
    [(0, [0]), (1, [1]), (64, [64]), (65, [64, 1]), (129, [64, 64, 1])],
)
def test_slice_has_at_most_64_devices(count: int, sizes: list[int]) -> None:
    items = wanted_slices(count)

    assert [len(item["spec"]["devices"]) for item in items] == sizes
    assert {item["spec"]["pool"]["resourceSliceCount"] for item in items} == {len(sizes)}
    assert len({item["metadata"]["name"] for item in items}) == len(sizes)


def test_taint_moves_no_device_to_another_slice() -> None:
    taint = Taint(key="tensor-fusion.ai/unhealthy", value="lost", effect="NoSchedule", since=SINCE)
    healthy = published_devices(*gpus(65))
    tainted = (replace(healthy[0], taint=taint), *healthy[1:])

    first, last = slices.wanted(tainted, NODE, node_uid="node-uid")

    assert [len(item["spec"]["devices"]) for item in (first, last)] == [64, 1]
    assert last == slices.wanted(healthy, NODE, node_uid="node-uid")[1]
    assert slice_rules.violations(slices.plan((first, last), []).create[0]["spec"]) == ()


def test_api_server_accepts_every_slice() -> None:
    for item in slices.plan(wanted_slices(129), []).create:
        assert slice_rules.violations(item["spec"]) == ()


def test_long_node_names_give_valid_and_different_names_and_labels() -> None:
    long_names = ["n" * 63 + "." + "n" * 63 + "." + end * 63 + ".example" * 7 for end in "ab"]
    items = [wanted_slices(node=Node(name=name, gpupool="p", qos="low"))[0] for name in long_names]

    for item in items:
        assert len(item["metadata"]["name"]) <= 253
        for label in item["metadata"]["labels"].values():
            assert len(label) <= 63
            assert label[0].isalnum()
            assert label[-1].isalnum()
        assert len(slices.slice_name(item["spec"]["nodeName"], 12)) <= 253
    first, second = items
    assert first["metadata"]["name"] != second["metadata"]["name"]
    assert first["metadata"]["labels"] != second["metadata"]["labels"]
