"""Which writes a node makes to its ResourceSlices, and what a scheduler sees meanwhile."""

import copy
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorfusion_dra.core import slice_rules, slices, stored
from tensorfusion_dra.core.device import Node, Taint
from tensorfusion_dra.core.slices import Slice, SlicePlan
from tensorfusion_dra.core.stored import GATE_CONSUMABLE_CAPACITY, GATE_DEVICE_TAINTS
from tests.support.gpus import NODE, cards, published
from tests.support.slice_store import applied, listed, states, visible

NAME = "tensor-fusion-resource-slice-node-01"
CONSUMABLE_OFF = frozenset({GATE_CONSUMABLE_CAPACITY})
TAINTS_OFF = frozenset({GATE_DEVICE_TAINTS})
MANY = published(*cards(129))
SINCE = datetime(2026, 3, 1, tzinfo=UTC)


def wanted(count: int = 2, *, node: Node = NODE, node_uid: str = "node-uid") -> tuple[Slice, ...]:
    return slices.wanted(MANY[:count], node, node_uid=node_uid)


def publication(
    count: int = 2, *, node: Node = NODE, node_uid: str = "node-uid"
) -> list[dict[str, Any]]:
    """The slices of so many devices as the API server holds them."""
    items = applied(slices.plan(wanted(count, node=node, node_uid=node_uid), []), [])
    return [copy.deepcopy(dict(item)) for item in items]


def written(plan: SlicePlan) -> dict[str, list[str]]:
    """The names of what is deleted, updated and created."""
    return {
        verb: [item["metadata"]["name"] for item in getattr(plan, verb)]
        for verb in ("delete", "update", "create")
        if getattr(plan, verb)
    }


def generations(items: Sequence[Slice]) -> list[int]:
    return [item["spec"]["pool"]["generation"] for item in items]


def test_a_new_node_creates_its_slice_at_generation_1() -> None:
    plan = slices.plan(wanted(), [])

    assert written(plan) == {"create": [NAME]}
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


def test_the_slice_belongs_to_its_node_and_says_so_as_the_guide_does() -> None:
    (item,) = wanted()

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


def test_a_node_without_devices_publishes_an_empty_pool() -> None:
    plan = slices.plan(slices.wanted((), NODE, node_uid="node-uid"), [])

    (created,) = plan.create
    assert created["spec"]["devices"] == []
    assert created["spec"]["pool"]["resourceSliceCount"] == 1


def test_nothing_is_written_if_nothing_changed() -> None:
    plan = slices.plan(wanted(65), publication(65))

    assert not plan
    assert written(plan) == {}
    assert plan.generation == 1


def test_an_empty_pool_may_be_stored_without_a_list_of_devices() -> None:
    kept = publication(0)
    del kept[0]["spec"]["devices"]

    assert not slices.plan(wanted(0), kept)


def test_quantities_written_in_another_way_are_no_change() -> None:
    kept = publication()
    for device in kept[0]["spec"]["devices"]:
        device["capacity"]["vram"]["value"] = "81920Mi"
        device["capacity"]["tflops"]["value"] = "312e0"

    assert not slices.plan(wanted(), kept)


def test_one_changed_slice_keeps_the_generation() -> None:
    kept = publication(2)

    plan = slices.plan(wanted(3), kept)

    assert written(plan) == {"update": [NAME]}
    assert generations(plan.update) == [1]


def test_one_changed_slice_of_two_keeps_the_generation() -> None:
    kept = publication(65)
    kept[1]["spec"]["devices"][0]["attributes"]["qos"] = {"string": "high"}

    plan = slices.plan(wanted(65), kept)

    assert written(plan) == {"update": [f"{NAME}-1"]}
    assert generations(plan.update) == [1]


def test_two_changed_slices_take_the_whole_pool_to_the_next_generation() -> None:
    kept = publication(129)
    for item in kept[:2]:
        item["spec"]["devices"][0]["attributes"]["qos"] = {"string": "high"}

    plan = slices.plan(wanted(129), kept)

    assert written(plan) == {"update": [NAME, f"{NAME}-1", f"{NAME}-2"]}
    assert generations(plan.update) == [2, 2, 2]


def test_a_new_slice_takes_the_whole_pool_to_the_next_generation() -> None:
    plan = slices.plan(wanted(65), publication(64))

    assert written(plan) == {"update": [NAME], "create": [f"{NAME}-1"]}
    assert generations([*plan.update, *plan.create]) == [2, 2]
    assert {item["spec"]["pool"]["resourceSliceCount"] for item in plan.update} == {2}


def test_a_slice_that_vanished_comes_back_with_the_whole_pool_at_the_next_generation() -> None:
    plan = slices.plan(wanted(65), publication(65)[:1])

    assert written(plan) == {"update": [NAME], "create": [f"{NAME}-1"]}
    assert generations([*plan.update, *plan.create]) == [2, 2]


def test_after_all_slices_were_wiped_generations_begin_again() -> None:
    plan = slices.plan(wanted(), [])

    assert generations(plan.create) == [1]


def test_an_obsolete_slice_goes_before_the_rest_is_written() -> None:
    kept = publication(65)

    steps = states(slices.plan(wanted(1), kept), kept)

    assert [len(step) for step in steps] == [2, 1, 1]
    assert generations(steps[-1]) == [1]


def test_a_slice_under_a_foreign_name_is_obsolete() -> None:
    stray = publication()[0]
    stray["metadata"]["name"] = "00000-tensor-fusion.ai.dra-driver-node-01-abcde"

    plan = slices.plan(wanted(), [*publication(), stray])

    assert written(plan) == {"delete": [stray["metadata"]["name"]]}


def test_obsolete_slices_go_oldest_first_so_that_no_older_pool_comes_back() -> None:
    (stray,), (old,) = publication(1), publication(2)
    stray["metadata"]["name"] = "a-stray"
    stray["spec"]["pool"]["generation"] = 5

    steps = states(slices.plan(wanted(3), [stray, old]), [stray, old])

    assert [[len(item["spec"]["devices"]) for item in step] for step in steps] == [
        [1, 2],
        [1],
        [],
        [3],
    ]


def test_a_slice_of_an_older_generation_is_replaced_by_a_new_object() -> None:
    kept = publication(65)
    kept[0]["spec"]["pool"]["generation"] = 7

    plan = slices.plan(wanted(65), kept)

    assert written(plan) == {
        "delete": [f"{NAME}-1"],
        "update": [NAME],
        "create": [f"{NAME}-1"],
    }
    assert generations([*plan.update, *plan.create]) == [8, 8]


def test_another_pool_means_new_objects_because_the_pool_of_a_slice_is_immutable() -> None:
    moved = replace(NODE, gpupool="production")

    plan = slices.plan(wanted(node=moved), publication())

    assert written(plan) == {"delete": [NAME], "create": [NAME]}
    assert plan.create[0]["spec"]["pool"]["name"] == "production/node-01"


def test_generations_of_another_pool_do_not_count() -> None:
    kept = publication()
    kept[0]["spec"]["pool"]["generation"] = 41

    plan = slices.plan(wanted(node=replace(NODE, gpupool="production")), kept)

    assert generations(plan.create) == [1]


def test_a_node_that_was_created_again_owns_its_slices_again() -> None:
    plan = slices.plan(wanted(node_uid="new-uid"), publication(node_uid="old-uid"))

    assert written(plan) == {"update": [NAME]}
    (owner,) = plan.update[0]["metadata"]["ownerReferences"]
    assert owner["uid"] == "new-uid"


def test_labels_and_annotations_of_others_are_no_change_and_stay() -> None:
    kept = publication()
    kept[0]["metadata"]["labels"]["example.com/team"] = "a"
    kept[0]["metadata"]["annotations"] = {"example.com/note": "b"}

    assert not slices.plan(wanted(), kept)
    (update,) = slices.plan(wanted(3), kept).update
    assert update["metadata"]["labels"] == {
        "example.com/team": "a",
        "tensor-fusion.ai/managed-by": "node-01",
        "kubernetes.io/hostname": "node-01",
    }
    assert update["metadata"]["annotations"] == {"example.com/note": "b"}


def test_what_others_change_of_ours_is_repaired() -> None:
    def spoilt(label: str = "node-01", count: int = 1, device: str = "") -> list[Slice]:
        kept = publication()
        kept[0]["metadata"]["labels"]["tensor-fusion.ai/managed-by"] = label
        kept[0]["spec"]["pool"]["resourceSliceCount"] = count
        if device:
            kept[0]["spec"]["devices"][0]["name"] = device
        return list(kept)

    for kept in (spoilt(label="other"), spoilt(count=2), spoilt(device="gpu-other")):
        plan = slices.plan(wanted(), kept)

        assert written(plan) == {"update": [NAME]}
        assert not slices.plan(wanted(), applied(plan, kept))


def test_a_missing_label_or_owner_is_repaired() -> None:
    for missing in ("labels", "ownerReferences"):
        kept = publication()
        del kept[0]["metadata"][missing]

        plan = slices.plan(wanted(), kept)

        assert written(plan) == {"update": [NAME]}
        assert not slices.plan(wanted(), applied(plan, kept))


def test_an_update_is_the_object_that_was_read_without_its_field_owners() -> None:
    kept = publication()
    kept[0]["metadata"]["managedFields"] = [{"manager": "somebody"}]
    kept[0]["metadata"]["resourceVersion"] = "17"

    (update,) = slices.plan(wanted(3), kept).update

    assert update["metadata"]["uid"] == kept[0]["metadata"]["uid"]
    assert update["metadata"]["resourceVersion"] == "17"
    assert "managedFields" not in update["metadata"]


def test_what_was_read_stays_as_it_was() -> None:
    kept = publication(129)
    before = copy.deepcopy(kept)

    slices.plan(wanted(66, node_uid="other"), kept)

    assert kept == before


@pytest.mark.parametrize(
    ("count", "sizes"),
    [(0, [0]), (1, [1]), (64, [64]), (65, [64, 1]), (129, [64, 64, 1])],
)
def test_a_slice_holds_at_most_64_devices(count: int, sizes: list[int]) -> None:
    items = wanted(count)

    assert [len(item["spec"]["devices"]) for item in items] == sizes
    assert {item["spec"]["pool"]["resourceSliceCount"] for item in items} == {len(sizes)}
    assert len({item["metadata"]["name"] for item in items}) == len(sizes)


def test_a_taint_moves_no_device_to_another_slice() -> None:
    taint = Taint(key="tensor-fusion.ai/unhealthy", value="lost", effect="NoSchedule", since=SINCE)
    healthy = published(*cards(65))
    tainted = (replace(healthy[0], taint=taint), *healthy[1:])

    first, last = slices.wanted(tainted, NODE, node_uid="node-uid")

    assert [len(item["spec"]["devices"]) for item in (first, last)] == [64, 1]
    assert last == slices.wanted(healthy, NODE, node_uid="node-uid")[1]
    assert slice_rules.slice_violations(slices.plan((first, last), []).create[0]["spec"]) == ()


def test_the_api_server_takes_every_slice() -> None:
    for item in slices.plan(wanted(129), []).create:
        assert slice_rules.slice_violations(item["spec"]) == ()


def test_long_node_names_give_valid_and_different_names_and_labels() -> None:
    long_names = ["n" * 63 + "." + "n" * 63 + "." + end * 63 + ".example" * 7 for end in "ab"]
    items = [wanted(node=Node(name=name, gpupool="p", qos="low"))[0] for name in long_names]

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


def dropping(gates: frozenset[str], items: Sequence[Slice]) -> list[Slice]:
    """The slices as an API server keeps them that has these gates off."""
    return [
        {
            **item,
            "spec": {
                **item["spec"],
                "devices": stored.without(item["spec"]["devices"], gates),
            },
        }
        for item in items
    ]


def test_fields_of_a_gate_that_is_off_are_missed_until_the_gate_is_known() -> None:
    kept = dropping(CONSUMABLE_OFF, publication())

    assert written(slices.plan(wanted(), kept)) == {"update": [NAME]}
    assert not slices.plan(wanted(), kept, dropped=CONSUMABLE_OFF)
    assert slices.plan(wanted(), kept, dropped=TAINTS_OFF)


def test_with_a_gate_off_other_changes_are_still_written() -> None:
    kept = dropping(CONSUMABLE_OFF, publication())

    plan = slices.plan(wanted(3), kept, dropped=CONSUMABLE_OFF)

    assert written(plan) == {"update": [NAME]}


def test_a_gate_that_is_on_again_costs_nothing_while_it_is_still_taken_for_off() -> None:
    assert not slices.plan(wanted(), publication(), dropped=CONSUMABLE_OFF)


def test_dropped_fields_name_their_gate() -> None:
    (item,) = wanted()
    devices = [{**device, "taints": [{"key": "a"}]} for device in item["spec"]["devices"]]
    tainted = {**item, "spec": {**item["spec"], "devices": devices}}

    for gates in (CONSUMABLE_OFF, TAINTS_OFF, CONSUMABLE_OFF | TAINTS_OFF):
        assert slices.dropped_gates(tainted, dropping(gates, [tainted])[0]) == gates


def test_nothing_dropped_names_no_gate() -> None:
    for item in (*wanted(0), *wanted(2)):
        assert slices.dropped_gates(item, item) == frozenset()


def test_a_difference_that_no_gate_explains_names_none() -> None:
    (item,) = wanted(2)
    (other,) = wanted(1)

    assert slices.dropped_gates(item, other) == frozenset()


@st.composite
def stores(draw: st.DrawFn) -> list[Slice]:
    """What may be stored for this driver and node, whoever wrote it."""
    sizes = st.sampled_from([0, 1, 2, 64, 65, 129])
    items: dict[str, Any] = {}
    for pool in draw(st.lists(st.sampled_from(["default", "old"]), max_size=2)):
        node = replace(NODE, gpupool=pool)
        for item in publication(draw(sizes), node=node, node_uid=draw(st.sampled_from("ab"))):
            change = draw(st.sampled_from(["", "", "vanished", "generation", "device", "renamed"]))
            name = item["metadata"]["name"]
            if change == "vanished":
                continue
            if change == "generation":
                item["spec"]["pool"]["generation"] = draw(st.integers(0, 3))
            if change == "device" and item["spec"]["devices"]:
                item["spec"]["devices"][0]["attributes"]["qos"] = {"string": "low"}
            if change == "renamed":
                name = f"a-{name}"
            item["metadata"] = {**item["metadata"], "name": name, "uid": f"{pool}-{name}"}
            items[name] = item
    return draw(st.permutations(list(items.values())))


@settings(max_examples=40, deadline=None)
@given(stores(), st.sampled_from([0, 1, 2, 65, 129]), st.sampled_from("ab"))
def test_from_whatever_is_stored_a_plan_leads_to_the_wanted_pool_and_to_nothing_else(
    kept: list[Slice], count: int, node_uid: str
) -> None:
    target = wanted(count, node_uid=node_uid)

    plan = slices.plan(target, kept)
    after = applied(plan, kept)

    pool = visible(after, "default/node-01")
    assert pool is not None
    assert len(pool) == len(after)
    assert listed(pool) == listed(target)
    assert set(generations(after)) == {plan.generation}
    assert not slices.plan(target, after)


@settings(max_examples=40, deadline=None)
@given(stores(), st.sampled_from([0, 1, 2, 65, 129]))
def test_no_scheduler_ever_sees_old_and_new_devices_mixed_or_an_older_generation(
    kept: list[Slice], count: int
) -> None:
    target = wanted(count)
    of_pool = [item for item in kept if item["spec"]["pool"]["name"] == "default/node-01"]
    newest = max(generations(of_pool), default=0)

    for state in states(slices.plan(target, kept), kept)[1:]:
        seen = visible(state, "default/node-01") or []

        untouched = all(item in kept for item in seen) and set(generations(seen)) <= {newest}
        assert untouched or listed(seen) == listed(target)
