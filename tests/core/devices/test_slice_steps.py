"""Stored slices after each write of a plan, and the devices that a scheduler sees meanwhile."""

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tensorfusion_dra.core.devices import slices
from tensorfusion_dra.core.devices.slices import Slice
from tests.support.builders.devices import NODE
from tests.support.builders.slices import stored_slices, wanted_slices
from tests.support.slice_store import applied, listed, pool_generations, states, visible
from tests.support.tally import examples


def test_obsolete_slice_is_deleted_before_other_writes() -> None:
    kept = stored_slices(65)

    steps = states(slices.plan(wanted_slices(1), kept), kept)

    assert [len(step) for step in steps] == [2, 1, 1]
    assert pool_generations(steps[-1]) == [1]


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


@settings(max_examples=examples(40))
@given(stores(), st.sampled_from([0, 1, 2, 65, 129]), st.sampled_from("ab"))
def test_plan_leads_from_any_stored_slices_to_exactly_the_wanted_pool(
    kept: list[Slice], count: int, node_uid: str
) -> None:
    target = wanted_slices(count, node_uid=node_uid)

    plan = slices.plan(target, kept)
    after = applied(plan, kept)

    pool = visible(after, "default/node-01")
    assert pool is not None
    assert len(pool) == len(after)
    assert listed(pool) == listed(target)
    assert set(pool_generations(after)) == {plan.generation}
    assert not slices.plan(target, after)


@settings(max_examples=examples(40))
@given(stores(), st.sampled_from([0, 1, 2, 65, 129]))
def test_scheduler_never_sees_mixed_devices_or_an_older_generation(
    kept: list[Slice], count: int
) -> None:
    target = wanted_slices(count)
    of_pool = [item for item in kept if item["spec"]["pool"]["name"] == "default/node-01"]
    newest = max(pool_generations(of_pool), default=0)

    for state in states(slices.plan(target, kept), kept)[1:]:
        seen = visible(state, "default/node-01") or []

        untouched = all(item in kept for item in seen) and set(pool_generations(seen)) <= {newest}
        assert untouched or listed(seen) == listed(target)
