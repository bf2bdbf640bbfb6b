"""Only slices that this driver wrote on this node are deleted."""

from typing import Any

import pytest

from tensorfusion_dra.core.devices import slices
from tests.support.builders.slices import NAME, wanted_slices

NODE_OWNER = {"apiVersion": "v1", "kind": "Node", "name": "node-01", "uid": "node-uid"}


def stored_slice(name: str, owners: list[dict[str, Any]] | None, **spec: Any) -> dict[str, Any]:
    """Return a stored slice with this name and these owners, which is not a wanted one."""
    (item,) = wanted_slices()
    metadata = {"name": name, "uid": f"uid-of-{name}", "resourceVersion": "1"}
    if owners is not None:
        metadata["ownerReferences"] = owners  # type: ignore[assignment]
    pool = {**item["spec"]["pool"], "generation": 1}
    return {"metadata": metadata, "spec": {**item["spec"], "pool": pool, **spec}}


@pytest.mark.parametrize(
    "own",
    [
        stored_slice("left-behind", [NODE_OWNER]),
        stored_slice("of-an-earlier-node-object", [{**NODE_OWNER, "uid": "earlier"}]),
        stored_slice(f"{NAME}-7", None),
        stored_slice(f"{NAME}-7", []),
    ],
    ids=lambda item: str(item["metadata"]["name"]),
)
def test_own_slice_that_is_no_longer_wanted_is_deleted(own: dict[str, Any]) -> None:
    assert slices.plan(wanted_slices(), [own]).delete == (own,)


@pytest.mark.parametrize(
    "foreign",
    [
        stored_slice("other-driver", [NODE_OWNER], driver="gpu.nvidia.com"),
        stored_slice("other-node", [NODE_OWNER], nodeName="node-99"),
        stored_slice("no-node", [NODE_OWNER], nodeName=None),
        stored_slice("owned-by-another-node", [{**NODE_OWNER, "name": "node-99"}]),
        stored_slice("owned-by-a-pod", [{**NODE_OWNER, "kind": "Pod"}]),
        stored_slice("two-owners", [NODE_OWNER, {**NODE_OWNER, "kind": "Pod"}]),
        stored_slice("without-owner", None),
    ],
    ids=lambda item: str(item["metadata"]["name"]),
)
def test_slice_of_another_owner_is_never_deleted(foreign: dict[str, Any]) -> None:
    assert slices.plan(wanted_slices(), [foreign]).delete == ()
