"""The devices that a ResourceClaim or a ResourceClaimTemplate requests, and those that it got."""

from collections.abc import Mapping
from typing import Any

from tensorfusion_dra.core.kubernetes.untyped_json import as_list, as_map


def requests(item: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the device requests of a claim or of a template, with all alternatives."""
    spec = as_map(item.get("spec"))
    devices = as_map(as_map(spec.get("spec", spec)).get("devices"))
    return [
        as_map(exact)
        for request in map(as_map, as_list(devices.get("requests")))
        for exact in (request.get("exactly"), *as_list(request.get("firstAvailable")))
        if exact is not None
    ]


def results(claim: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the devices that are allocated to a claim; none before its allocation."""
    allocation = as_map(as_map(claim.get("status")).get("allocation"))
    return [as_map(each) for each in as_list(as_map(allocation.get("devices")).get("results"))]
