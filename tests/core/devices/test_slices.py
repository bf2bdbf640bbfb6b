"""A node's ResourceSlices: content, writes and their steps, feature gates, owners."""

import functools
import operator
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_simulator.api import object_rules
from tensorfusion_dra.core.devices import slices
from tensorfusion_dra.core.devices.device import Taint
from tensorfusion_dra.core.devices.slices import Slice
from tensorfusion_dra.core.kubernetes import device_rules
from tensorfusion_dra.core.kubernetes.device_rules import (
    GATE_BINDING_CONDITIONS,
    GATE_CONSUMABLE_CAPACITY,
    GATE_DEVICE_TAINTS,
)
from tests.support.builders.devices import NODE
from tests.support.builders.slices import MANY, NAME, stored_slices, wanted_slices
from tests.support.slice_store import (
    applied,
    listed,
    pool_generations,
    states,
    visible,
    writes_by_verb,
)
from tests.support.tally import examples

LABEL = re.compile(r"[A-Za-z0-9]([-._A-Za-z0-9]{0,61}[A-Za-z0-9])?")


def test_new_node_creates_its_slice_at_generation_1() -> None:
    owner = {"apiVersion": "v1", "kind": "Node", "name": "node-01", "uid": "node-uid"}

    assert slices.plan(wanted_slices(), []).create == (
        {
            "kind": "ResourceSlice",
            "metadata": {
                "name": NAME,
                "labels": {
                    "tensor-fusion.ai/managed-by": "node-01",
                    "kubernetes.io/hostname": "node-01",
                },
                "ownerReferences": [{**owner, "controller": True}],
            },
            "spec": {
                "driver": "tensor-fusion.ai.dra-driver",
                "nodeName": "node-01",
                "pool": {"name": "default/node-01", "generation": 1, "resourceSliceCount": 1},
                "devices": [device.as_api() for device in MANY[:2]],
            },
        },
    )


def changed(items: Sequence[Any], path: Sequence[Any], value: object) -> list[Slice]:
    """Return stored slices after another writer set a field of the first one."""
    place: Any = functools.reduce(operator.getitem, path[:-1], items[0])
    place[path[-1]] = value
    return [*items]


def stored(count: int, *, changed: int = 0, kept: int | None = None) -> list[Slice]:
    """Return the first stored slices of so many devices, of which others changed the last ones."""
    items = stored_slices(count)
    for item in items[len(items) - changed :]:
        item["spec"]["devices"][0]["attributes"]["qos"] = {"string": "high"}
    return list(items[:kept])


GENERATION = ("spec", "pool", "generation")
NO_LIST = [
    {**item, "spec": {key: found for key, found in item["spec"].items() if key != "devices"}}
    for item in stored_slices(0)
]


@pytest.mark.parametrize(
    ("count", "before", "writes", "generation"),
    [
        (0, stored(0), {}, None),
        (3, stored(2), {"update": [NAME]}, 1),
        (65, stored(65, changed=1), {"update": [f"{NAME}-1"]}, 1),
        (65, stored(65, changed=2), {"update": [NAME, f"{NAME}-1"]}, 2),
        (129, stored(129, changed=2), {"update": [NAME, f"{NAME}-1", f"{NAME}-2"]}, 2),
        (65, stored(64), {"update": [NAME], "create": [f"{NAME}-1"]}, 2),
        (65, stored(65, kept=1), {"update": [NAME], "create": [f"{NAME}-1"]}, 2),
        (
            65,
            changed(stored_slices(65), GENERATION, 7),
            {"delete": [f"{NAME}-1"], "update": [NAME], "create": [f"{NAME}-1"]},
            8,
        ),
        # The pool of a slice is immutable.
        (
            2,
            changed(stored_slices(2, node=replace(NODE, gpupool="production")), GENERATION, 41),
            {"delete": [NAME], "create": [NAME]},
            1,
        ),
        # An empty pool may be stored without a list of devices.
        (0, NO_LIST, {}, None),
    ],
    ids=[
        *("none", "one", "one of two", "two", "two of three", "a new one", "a missing one"),
        *("an older generation", "another pool", "no list of devices"),
    ],
)
def test_pool_moves_to_the_next_generation_unless_one_slice_changed(
    count: int, before: list[Slice], writes: dict[str, list[str]], generation: int | None
) -> None:
    plan = slices.plan(wanted_slices(count), before)

    assert (writes_by_verb(plan), bool(plan)) == (writes, bool(writes))
    written = [*plan.update, *plan.create]
    assert {*pool_generations(written)} == ({generation} if written else set())
    assert {item["spec"]["pool"]["name"] for item in written} <= {"default/node-01"}


def test_labels_and_annotations_of_other_writers_are_no_change_and_stay() -> None:
    (kept,) = stored_slices()
    kept["metadata"] |= {
        "labels": {**kept["metadata"]["labels"], "example.com/team": "a"},
        "annotations": {"example.com/note": "b"},
        "resourceVersion": "17",
    }
    read = {**kept, "metadata": {**kept["metadata"], "managedFields": [{"manager": "somebody"}]}}

    assert not slices.plan(wanted_slices(), [read])
    (update,) = slices.plan(wanted_slices(3), [read]).update
    assert update["metadata"] == kept["metadata"]


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
    kept = changed(stored_slices(), path, value)

    plan = slices.plan(wanted_slices(), kept)

    assert writes_by_verb(plan) == {"update": [NAME]}
    assert not slices.plan(wanted_slices(), applied(plan, kept))


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
    taint = Taint(
        key="tensor-fusion.ai/unhealthy",
        value="lost",
        effect="NoSchedule",
        since=datetime(2026, 3, 1, tzinfo=UTC),
    )
    healthy = MANY[:65]
    tainted = [replace(MANY[0], taints=(taint,)), *healthy[1:]]

    first, last = slices.wanted(tainted, NODE, node_uid="node-uid")

    assert first["spec"]["devices"] == [device.as_api() for device in tainted[:64]]
    assert last == slices.wanted(healthy, NODE, node_uid="node-uid")[1]
    assert object_rules.violations(slices.plan((first, last), []).create[0]["spec"]) == ()


def test_long_node_names_give_valid_and_different_names_and_labels() -> None:
    long_names = ["n" * 63 + "." + "n" * 63 + "." + end * 63 + ".example" * 7 for end in "ab"]
    items = [wanted_slices(node=replace(NODE, name=name))[0] for name in long_names]

    labels = [tuple(item["metadata"]["labels"].values()) for item in items]
    assert all(LABEL.fullmatch(label) for each in labels for label in each)
    assert len(set(labels)) == len({item["metadata"]["name"] for item in items}) == 2
    assert all(len(slices.slice_name(name, 12)) <= 253 for name in long_names)


CONSUMABLE_OFF = frozenset({GATE_CONSUMABLE_CAPACITY})
TAINTS_OFF = frozenset({GATE_DEVICE_TAINTS})


def dropping(gates: frozenset[str], items: Sequence[Slice]) -> list[Slice]:
    """Return the slices as an API server with these gates off stores them."""
    return [
        {**item, "spec": {**item["spec"], "devices": device_rules.without(devices, gates)}}
        for item in items
        for devices in (item["spec"]["devices"],)
    ]


@pytest.mark.parametrize(
    ("count", "gates", "known", "writes"),
    [
        (2, CONSUMABLE_OFF, frozenset(), {"update": [NAME]}),
        (2, CONSUMABLE_OFF, TAINTS_OFF, {"update": [NAME]}),
        (2, CONSUMABLE_OFF, CONSUMABLE_OFF, {}),
        # Other changes are written, and fields of a gate that is on again are none.
        (3, CONSUMABLE_OFF, CONSUMABLE_OFF, {"update": [NAME]}),
        (2, frozenset(), CONSUMABLE_OFF, {}),
    ],
)
def test_dropped_fields_count_as_a_difference_until_the_gate_is_known(
    count: int, gates: frozenset[str], known: frozenset[str], writes: dict[str, list[str]]
) -> None:
    kept = dropping(gates, stored_slices())

    assert writes_by_verb(slices.plan(wanted_slices(count), kept, dropped=known)) == writes


@pytest.mark.parametrize(
    "gates",
    [CONSUMABLE_OFF, TAINTS_OFF, frozenset({GATE_BINDING_CONDITIONS}), CONSUMABLE_OFF | TAINTS_OFF],
)
def test_dropped_fields_identify_their_gates(gates: frozenset[str]) -> None:
    (item,) = wanted_slices()
    more = {
        "taints": [{"key": "a"}],
        "bindingConditions": ["a"],
        "bindingFailureConditions": ["b"],
    }
    devices = [{**device, **more} for device in item["spec"]["devices"]]
    full = {**item, "spec": {**item["spec"], "devices": devices}}

    assert slices.dropped_gates(full, dropping(gates, [full])[0]) == gates


@pytest.mark.parametrize(("wanted", "kept"), [(0, 0), (2, 2), (2, 1)])
def test_no_gates_are_dropped_from_a_complete_slice_or_one_with_another_difference(
    wanted: int, kept: int
) -> None:
    assert slices.dropped_gates(*wanted_slices(wanted), *wanted_slices(kept)) == frozenset()


NODE_OWNER = {"apiVersion": "v1", "kind": "Node", "name": "node-01", "uid": "node-uid"}


def stored_slice(name: str, *owners: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """Return a stored slice with this name and these owners, which is not a wanted one."""
    (item,) = wanted_slices()
    metadata = {"name": name, "uid": f"uid-of-{name}", "resourceVersion": "1"}
    pool = {**item["spec"]["pool"], "generation": 1}
    return {
        "metadata": {**metadata, "ownerReferences": [*owners]},
        "spec": {**item["spec"], "pool": pool, **spec},
    }


def without_owners(name: str) -> dict[str, Any]:
    item = stored_slice(name)
    del item["metadata"]["ownerReferences"]
    return item


@pytest.mark.parametrize(
    ("item", "is_own"),
    [
        (stored_slice("left-behind", NODE_OWNER), True),
        (stored_slice("of-an-earlier-node-object", {**NODE_OWNER, "uid": "earlier"}), True),
        (without_owners(f"{NAME}-7"), True),
        (stored_slice(f"{NAME}-7"), True),
        (stored_slice("other-driver", NODE_OWNER, driver="gpu.nvidia.com"), False),
        (stored_slice("other-node", NODE_OWNER, nodeName="node-99"), False),
        (stored_slice("no-node", NODE_OWNER, nodeName=None), False),
        (stored_slice("owned-by-another-node", {**NODE_OWNER, "name": "node-99"}), False),
        (stored_slice("owned-by-a-pod", {**NODE_OWNER, "kind": "Pod"}), False),
        (stored_slice("two-owners", NODE_OWNER, {**NODE_OWNER, "kind": "Pod"}), False),
        (without_owners("without-owner"), False),
    ],
    ids=lambda item: str(item["metadata"]["name"]) if isinstance(item, dict) else "",
)
def test_slice_that_is_not_wanted_is_deleted_if_it_is_this_nodes_own(
    item: dict[str, Any], *, is_own: bool
) -> None:
    assert slices.plan(wanted_slices(), [item]).delete == ((item,) if is_own else ())


def test_obsolete_slices_are_deleted_oldest_first_so_that_no_older_pool_counts_again() -> None:
    (stray,), (old,) = stored_slices(1), stored_slices(2)
    stray["metadata"]["name"] = "a-stray"
    stray["spec"]["pool"]["generation"] = 5

    steps = states(slices.plan(wanted_slices(3), [stray, old]), [stray, old])

    assert [[len(item["spec"]["devices"]) for item in step] for step in steps] == [
        [1, 2],
        [1],
        [],
        [3],
    ]


@st.composite
def stores(draw: st.DrawFn) -> list[Slice]:
    """Return slices that may be stored for this driver and node, from any writer."""
    sizes = st.sampled_from([0, 1, 2, 64, 65, 129])
    items: dict[str, Any] = {}
    for pool in draw(st.lists(st.sampled_from(["default", "old"]), max_size=2)):
        node = replace(NODE, gpupool=pool)
        for item in stored_slices(draw(sizes), node=node, node_uid=draw(st.sampled_from("ab"))):
            change = draw(st.sampled_from(["", "", "vanished", "generation", "device", "renamed"]))
            name = item["metadata"]["name"]
            if change == "generation":
                item["spec"]["pool"]["generation"] = draw(st.integers(0, 3))
            if change == "device" and item["spec"]["devices"]:
                item["spec"]["devices"][0]["attributes"]["qos"] = {"string": "low"}
            if change == "renamed":
                name = f"a-{name}"
            if change != "vanished":
                item["metadata"] = {**item["metadata"], "name": name, "uid": f"{pool}-{name}"}
                items[name] = item
    return draw(st.permutations(list(items.values())))


@settings(max_examples=examples(40))
@given(stores(), st.sampled_from([0, 1, 2, 65, 129]), st.sampled_from("ab"))
def test_plan_leads_from_any_stored_slices_to_exactly_the_wanted_pool(
    kept: list[Slice], count: int, node_uid: str
) -> None:
    target = wanted_slices(count, node_uid=node_uid)
    plan = slices.plan(target, kept)

    after = applied(plan, kept)

    pool = visible(after, "default/node-01") or []
    assert (len(pool), listed(pool)) == (len(after), listed(target))
    assert set(pool_generations(after)) == {plan.generation}
    assert not slices.plan(target, after)


@settings(max_examples=examples(40))
@given(stores(), st.sampled_from([0, 1, 2, 65, 129]))
def test_scheduler_never_sees_mixed_devices_or_an_older_generation(
    kept: list[Slice], count: int
) -> None:
    target, pool = wanted_slices(count), "default/node-01"
    of_pool = [item for item in kept if item["spec"]["pool"]["name"] == pool]
    newest = max(pool_generations(of_pool), default=0)

    for state in states(slices.plan(target, kept), kept)[1:]:
        seen = visible(state, pool) or []

        untouched = all(item in kept for item in seen) and set(pool_generations(seen)) <= {newest}
        assert untouched or listed(seen) == listed(target)
