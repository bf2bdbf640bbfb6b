"""Following of the node's GPUPool; an unusable pool changes nothing."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pytest
from structlog.testing import capture_logs

from tensorfusion_dra.core.devices import gpupool
from tensorfusion_dra.core.devices.gpu import Inventory
from tensorfusion_dra.core.errors import InputError, RetryableError
from tensorfusion_dra.driver.pool_follower import PoolFollower, member
from tensorfusion_dra.driver.publish import DeviceCatalog
from tensorfusion_dra.runtime.loops import Wakeup
from tests.support.builders.gpupools import gpupool_document
from tests.support.builders.gpus import gpu
from tests.support.ports import EventsInMemory, FixedDiscovery
from tests.support.threads import running
from tests.support.waiting import PATIENCE_SECONDS

RATIOS = {"tflopsOversellRatio": 200, "vramExpandToHostMem": 0, "vramExpandToHostDisk": 0}


class ObjectsInMemory:
    """Objects set by a test, or the error of reading them."""

    def __init__(self, *found: Mapping[str, Any]) -> None:
        self.found: Sequence[Mapping[str, Any]] | InputError | RetryableError = found

    def items(self) -> Sequence[Mapping[str, Any]]:
        if isinstance(self.found, Sequence):
            return self.found
        raise self.found


class Setup:
    def __init__(
        self,
        *pools: Mapping[str, Any],
        inventory: Inventory | None = None,
        expands_memory: bool = True,
    ) -> None:
        self.pools = ObjectsInMemory(*pools)
        self.events = EventsInMemory()
        self.discovery = FixedDiscovery(inventory or Inventory(gpus=(gpu(),)))
        self.served = 0
        self.catalog = DeviceCatalog(self.discovery, None, on_change=self._count_served)
        self.catalog.refresh()
        self.nodes = ObjectsInMemory()
        self.wakeup = Wakeup()
        source = partial(member, self.pools, self.nodes, pool_name="prod", node_name="node-01")
        self.follower = PoolFollower(
            source,
            self.catalog,
            self.events,
            expands_memory=expands_memory,
            wakeup=self.wakeup,
        )

    def _count_served(self) -> None:
        self.served += 1

    def qos(self) -> str | None:
        current = self.catalog.current()
        return str(current.devices[0].attributes["qos"]) if current else None


def pool_with_qos(qos: str = "high", name: str = "prod", **spec: Any) -> dict[str, Any]:
    return gpupool_document(name, qosConfig={"defaultQoS": qos}, **spec)


def test_no_catalog_exists_before_the_pool_is_known() -> None:
    setup = Setup()
    setup.pools.found = RetryableError("gpupools: not listed yet")

    setup.follower.follow()

    assert setup.catalog.current() is None
    assert setup.catalog.reason_missing() == (
        "this node's GPUPool is not known yet: gpupools: not listed yet"
    )
    assert setup.events.written == []


def test_unchanged_pool_has_no_effect() -> None:
    setup = Setup(pool_with_qos())
    setup.follower.follow()
    setup.pools.found = [{**pool_with_qos(), "status": {"phase": "Running"}}]

    setup.follower.follow()

    assert setup.served == 1


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        ((), "GPUPool prod: found none of this name"),
        ((pool_with_qos("gold"),), "GPUPool prod: spec.qosConfig.defaultQoS: found 'gold'"),
        (InputError("gpupools: no such resource"), "gpupools: no such resource"),
    ],
)
def test_unusable_pool_keeps_the_last_good_values_with_one_log_line_and_event(
    found: Sequence[Mapping[str, Any]] | InputError, problem: str
) -> None:
    setup = Setup(pool_with_qos())
    setup.follower.follow()
    setup.pools.found = found

    with capture_logs() as logs:
        setup.follower.follow()
        setup.follower.follow()

    assert setup.qos() == "high"
    assert setup.served == 1
    ((reason, message),) = setup.events.written
    assert reason == "GPUPoolInvalid"
    assert message.startswith(problem)
    assert message.endswith("; the node's GPUs stay published as before")
    (line,) = logs
    assert line["event"] == "gpupool_unusable"
    assert line["error"].startswith(problem)


def test_event_states_that_nothing_is_published_before_the_first_usable_pool() -> None:
    setup = Setup()

    with capture_logs() as logs:
        setup.follower.follow()

    assert [line["event"] for line in logs] == ["gpupool_awaited"]
    ((_, message),) = setup.events.written
    assert message.endswith("; no GPU of this node is published until this is corrected")
    assert gpupool.REMEDY in message
    assert gpupool.REMEDY in setup.catalog.reason_missing()


def test_loop_follows_the_pool_at_every_wake_until_it_is_stopped() -> None:
    setup = Setup(pool_with_qos())
    with running(setup.follower.run, stop=setup.follower.stop):
        setup.wakeup.wake()
        setup.catalog.wait_changed(None, seconds=PATIENCE_SECONDS, stopped=lambda: False)
        assert setup.qos() == "high"
        seen = setup.catalog.current()
        setup.pools.found = [pool_with_qos("low")]
        setup.wakeup.wake()
        setup.catalog.wait_changed(seen, seconds=PATIENCE_SECONDS, stopped=lambda: False)

        assert setup.qos() == "low"


@pytest.mark.parametrize(
    ("expansion", "is_refused"),
    [
        ({"vramExpandToHostMem": 50}, True),
        ({"vramExpandToHostDisk": 50}, True),
        ({}, False),  # oversubscribes only compute
    ],
)
def test_pool_that_expands_memory_is_refused_if_the_enforcer_cannot_expand_it(
    expansion: dict[str, int], is_refused: bool
) -> None:
    ratios = {**RATIOS, **expansion}
    setup = Setup(pool_with_qos(capacityConfig={"oversubscription": ratios}), expands_memory=False)

    setup.follower.follow()

    assert (setup.catalog.current() is None) is is_refused
    texts = [message for reason, message in setup.events.written if reason == "GPUPoolInvalid"]
    found = f"found vramExpandToHostMem {ratios['vramExpandToHostMem']} and"
    assert [found in text for text in texts] == [True] * is_refused
    assert all("expected 0 for both: this node's enforcer" in text for text in texts)


RULE = {"mode": "hard", "selector": {"matchLabels": {"workload": "batch"}}}


BATCH = {"metadata": {"name": "node-01", "labels": {"workload": "batch"}}}


def isolation(setup: Setup) -> str | None:
    current = setup.catalog.current()
    assert current is not None
    return current.node.isolation


def test_pools_rules_use_the_current_labels_of_the_node() -> None:
    config = {"defaultIsolationMode": "soft", "isolationModeRules": [RULE]}
    setup = Setup(pool_with_qos(nodeManagerConfig=config))
    setup.nodes.found = [{"metadata": {"name": "node-01"}}]

    setup.follower.follow()
    before = isolation(setup)
    setup.nodes.found = [BATCH]
    setup.follower.follow()

    assert (before, isolation(setup)) == ("soft", "hard")


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
        selecting = partial(member, setup.pools, setup.nodes, node_name="node-01")
        follower = PoolFollower(selecting, setup.catalog, setup.events, expands_memory=True)
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
