"""ResourceSlices as an API server stores them and as a scheduler reads them."""

import copy
import json
from collections.abc import Iterator, Sequence
from typing import Any

from tensorfusion_dra.core.devices.slices import Slice, SlicePlan


def applied(plan: SlicePlan, stored: Sequence[Slice]) -> list[Slice]:
    """Return the stored slices after all writes of the plan."""
    return states(plan, stored)[-1]


def states(plan: SlicePlan, stored: Sequence[Slice]) -> list[list[Slice]]:
    """Return the stored slices before the plan and after each of its writes.

    A write that the API server would refuse raises AssertionError.
    """
    return [list(stored), *_writes(plan, {item["metadata"]["name"]: item for item in stored})]


def _writes(plan: SlicePlan, state: dict[str, Slice]) -> Iterator[list[Slice]]:
    for item in plan.delete:
        name = item["metadata"]["name"]
        assert state.pop(name)["metadata"]["uid"] == item["metadata"]["uid"]
        yield list(state.values())
    for item in plan.update:
        name, old = item["metadata"]["name"], state[item["metadata"]["name"]]
        for field in ("uid", "resourceVersion"):
            assert item["metadata"][field] == old["metadata"][field], name
        for field in ("driver", "nodeName"):
            assert item["spec"][field] == old["spec"][field], name
        assert item["spec"]["pool"]["name"] == old["spec"]["pool"]["name"], name
        state[name] = _stored(item, version=old["metadata"]["resourceVersion"] + "+")
        yield list(state.values())
    for item in plan.create:
        name = item["metadata"]["name"]
        assert name not in state, name
        assert item["metadata"].keys().isdisjoint({"uid", "resourceVersion"})
        state[name] = _stored(item, version="1")
        yield list(state.values())


def _stored(item: Slice, *, version: str) -> Slice:
    kept: dict[str, Any] = copy.deepcopy(dict(item))
    kept["metadata"].setdefault("uid", f"uid-of-{kept['metadata']['name']}")
    kept["metadata"]["resourceVersion"] = version
    return kept


def visible(stored: Sequence[Slice], pool: str) -> list[Slice] | None:
    """Return the slices of a pool that a scheduler uses; None if the pool is incomplete.

    The scheduler uses the highest generation. The pool is complete if it has as many slices as each
    of them states (k8s.io/dynamic-resource-allocation/structured, GatherPools).
    """
    of_pool = [item for item in stored if item["spec"]["pool"]["name"] == pool]
    newest = max((item["spec"]["pool"]["generation"] for item in of_pool), default=0)
    slices = [item for item in of_pool if item["spec"]["pool"]["generation"] == newest]
    complete = all(item["spec"]["pool"]["resourceSliceCount"] == len(slices) for item in slices)
    return slices if slices and complete else None


def listed(slices: Sequence[Slice]) -> list[str]:
    """Return all devices of these slices as JSON texts, sorted."""
    found = (device for item in slices for device in item["spec"].get("devices") or [])
    return sorted(json.dumps(device, sort_keys=True) for device in found)


def writes_by_verb(plan: SlicePlan) -> dict[str, list[str]]:
    """Return the names of the slices that a plan deletes, updates and creates."""
    return {
        verb: [item["metadata"]["name"] for item in getattr(plan, verb)]
        for verb in ("delete", "update", "create")
        if getattr(plan, verb)
    }


def pool_generations(items: Sequence[Slice]) -> list[int]:
    """Return the pool generation of each slice."""
    return [item["spec"]["pool"]["generation"] for item in items]
