"""Readiness of an instance whose node is in a GPUPool, or waits for one."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tensorfusion_dra.core.errors import InputError, RetryableError
from tensorfusion_dra.driver.pool_follower import PoolFollower, SelectingPool
from tests.driver.test_pool_follower import Setup, pool_with_qos

SELECTS_OTHERS = {
    "nodeSelectorTerms": [{"matchExpressions": [{"key": "tier", "operator": "Exists"}]}]
}
MALFORMED = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "tier", "operator": "exists"}]}]}
NO_CRDS = InputError("gpupools: no such resource")


@pytest.mark.parametrize(
    ("source", "found", "is_ready"),
    [
        ("object", RetryableError("gpupools: not listed yet"), False),
        ("object", NO_CRDS, False),
        ("object", [], False),
        ("object", [pool_with_qos(name="other")], False),
        ("object", [pool_with_qos("gold")], False),
        ("object", [pool_with_qos()], True),
        ("node-labels", NO_CRDS, False),
        ("node-labels", [], False),
        ("node-labels", [pool_with_qos(nodeManagerConfig={"nodeSelector": MALFORMED})], False),
        # Perhaps on purpose: other nodes of the DaemonSet are in the pool.
        ("node-labels", [pool_with_qos(nodeManagerConfig={"nodeSelector": SELECTS_OTHERS})], True),
    ],
)
def test_instance_is_ready_once_its_pool_is_known_or_it_is_outside_of_all_pools(
    source: str, found: Sequence[Mapping[str, Any]] | InputError, is_ready: bool
) -> None:
    setup = Setup()
    setup.nodes.found = [{"metadata": {"name": "node-01"}}]
    setup.pools.found = found
    follower = setup.follower
    if source == "node-labels":
        selecting = SelectingPool(pools=setup.pools, nodes=setup.nodes, node_name="node-01")
        follower = PoolFollower(
            selecting, setup.catalog, setup.events, on_change=lambda: None, expands_memory=True
        )
    with pytest.raises(RetryableError, match="waits for a GPUPool"):
        follower.check()

    follower.follow()

    if is_ready:
        follower.check()
        return
    with pytest.raises(RetryableError, match=r"waits for a GPUPool: .*(GPUPool|gpupools)"):
        follower.check()


def test_instance_that_had_a_pool_stays_ready_without_it() -> None:
    setup = Setup(pool_with_qos())
    setup.follower.follow()
    setup.pools.found = NO_CRDS

    setup.follower.follow()

    setup.follower.check()
