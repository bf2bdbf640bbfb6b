"""Allocation on node-a for tests."""

import copy
from collections.abc import Iterable, Sequence

from dra_simulator import allocation_results
from tensorfusion_dra.scheduling import allocation
from tests.support.objects import Json, device_class, node

HALF = {"tflops": "50", "vram": "20Gi"}


def allocate(
    *claims: Json,
    slices: Sequence[Json],
    classes: Iterable[Json] = (),
    existing: Iterable[Json] = (),
    release: int = allocation.NEWEST,
) -> list[Json]:
    """Return the allocations of a pod's claims on node-a."""
    cluster = allocation.cluster(
        slices=slices,
        classes=[device_class(), *classes],
        claims=[*existing, *claims],
        release=release,
    )
    return allocation_results.allocate(claims, cluster, node())


def allocated(document: Json, slices: Sequence[Json], existing: Iterable[Json] = ()) -> Json:
    """Return the claim with its allocation."""
    (found,) = allocate(document, slices=slices, existing=existing)
    return {**copy.deepcopy(document), "status": {"allocation": found}}


def devices(found: Json) -> list[str]:
    """Return the names of the allocated devices."""
    return [result["device"] for result in found["devices"]["results"]]
