"""The node follows its GPUPool, and nothing that cannot be used changes it."""

from collections.abc import Mapping, Sequence
from threading import Thread
from typing import Any

import pytest
from structlog.testing import capture_logs

from tensorfusion_dra.core.devices.gpu import Inventory
from tensorfusion_dra.core.devices.oversubscription import Oversubscription
from tensorfusion_dra.core.errors import InputError, RetryableError
from tensorfusion_dra.driver.catalog import CatalogReader
from tensorfusion_dra.driver.pool_follower import NamedPool, PoolFollower, SelectingPool
from tests.support.gpus import gpu
from tests.support.ports import EventsInMemory, FixedDiscovery
from tests.support.waiting import PATIENCE_SECONDS

MORE = Oversubscription(tflops_percent=200, host_memory_percent=0, host_disk_percent=0)
RATIOS = {"tflopsOversellRatio": 200, "vramExpandToHostMem": 0, "vramExpandToHostDisk": 0}


class ObjectsInMemory:
    """Objects that a test sets, or the error that there is in their place."""

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
        self.catalog = CatalogReader(self.discovery, None)
        self.served = 0
        self.nodes = ObjectsInMemory()
        source = NamedPool(pools=self.pools, nodes=self.nodes, gpupool="prod", node_name="node-01")
        self.follower = PoolFollower(
            source,
            self.catalog,
            self.events,
            on_served=self._count_served,
            expands_memory=expands_memory,
        )

    def _count_served(self) -> None:
        self.served += 1

    def qos(self) -> str | None:
        current = self.catalog.current()
        return str(current.devices[0].attributes["qos"]) if current else None


def pool(qos: str = "high", name: str = "prod", **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"qosConfig": {"defaultQoS": qos}, **spec}}


def test_there_is_no_catalog_before_the_pool_is_known() -> None:
    setup = Setup()
    setup.pools.found = RetryableError("gpupools: not listed yet")

    assert not setup.catalog.refresh()
    setup.follower.follow()

    assert setup.catalog.current() is None
    assert setup.catalog.awaited() == "this node's GPUPool is not known yet"
    assert setup.events.written == []


def test_the_pool_makes_the_catalog_of_the_cards_last_read() -> None:
    setup = Setup(pool(capacityConfig={"oversubscription": RATIOS}))
    setup.catalog.refresh()

    setup.follower.follow()

    current = setup.catalog.current()
    assert current is not None
    assert current.node.pool == "prod/node-01"
    assert current.node.oversubscription == MORE
    assert str(current.devices[0].capacity["virtual_tflops"].value) == "624"
    assert setup.served == 1


def test_cards_that_are_read_later_belong_to_the_pool_too() -> None:
    setup = Setup(pool())
    setup.follower.follow()
    assert setup.catalog.awaited() == "this node's GPUs could not be read yet"

    assert setup.catalog.refresh()

    assert setup.qos() == "high"


def test_nothing_happens_while_the_pool_says_the_same() -> None:
    setup = Setup(pool())
    setup.catalog.refresh()
    setup.follower.follow()
    setup.pools.found = [{**pool(), "status": {"phase": "Running"}}]

    setup.follower.follow()

    assert setup.served == 1


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ((), "GPUPool prod: found none of this name"),
        ((pool("gold"),), "GPUPool prod: spec.qosConfig.defaultQoS: found 'gold'"),
        (InputError("gpupools: no such resource"), "gpupools: no such resource"),
    ],
)
def test_the_last_good_values_stay_with_one_line_and_one_event_a_reason(
    found: Sequence[Mapping[str, Any]] | InputError, told: str
) -> None:
    setup = Setup(pool())
    setup.catalog.refresh()
    setup.follower.follow()
    setup.pools.found = found

    with capture_logs() as logs:
        setup.follower.follow()
        setup.follower.follow()

    assert setup.qos() == "high"
    assert setup.served == 1
    ((reason, message),) = setup.events.written
    assert reason == "GPUPoolInvalid"
    assert message.startswith(told)
    assert message.endswith("; the node's GPUs stay published as before")
    (line,) = logs
    assert line["event"] == "gpupool_unusable"
    assert line["error"].startswith(told)


def test_before_the_first_good_values_the_event_says_that_nothing_is_published() -> None:
    setup = Setup()
    setup.catalog.refresh()

    with capture_logs() as logs:
        setup.follower.follow()

    assert [line["event"] for line in logs] == ["gpupool_awaited"]
    ((_, message),) = setup.events.written
    assert message.endswith("; no GPU of this node is published until this is put right")


def test_a_reason_that_returns_after_good_values_is_told_again() -> None:
    setup = Setup()
    setup.follower.follow()
    setup.pools.found = [pool()]
    setup.follower.follow()
    setup.pools.found = []

    setup.follower.follow()

    assert len(setup.events.written) == 2


def test_labels_of_the_node_choose_the_pool() -> None:
    requirement = {"key": "tier", "operator": "Exists"}
    selector = {"nodeSelectorTerms": [{"matchExpressions": [requirement]}]}
    pools = ObjectsInMemory(pool("low", nodeManagerConfig={"nodeSelector": selector}))
    nodes = ObjectsInMemory()
    source = SelectingPool(pools=pools, nodes=nodes, node_name="node-01")

    with pytest.raises(RetryableError, match="node node-01: found no such Node object"):
        source.read()
    nodes.found = [{"metadata": {"name": "node-01"}}]
    with pytest.raises(InputError, match="no GPUPool selects it"):
        source.read()
    nodes.found = [{"metadata": {"name": "node-01", "labels": {"tier": "1"}}}]
    assert source.read().qos == "low"


def test_the_loop_follows_at_every_wake_and_ends_when_stopped() -> None:
    setup = Setup(pool())
    setup.catalog.refresh()
    thread = Thread(target=setup.follower.run)
    thread.start()
    try:
        setup.follower.wake()
        setup.catalog.wait_changed(None, seconds=PATIENCE_SECONDS, stopped=lambda: False)
        assert setup.qos() == "high"
        seen = setup.catalog.current()
        setup.pools.found = [pool("low")]
        setup.follower.wake()
        setup.catalog.wait_changed(seen, seconds=PATIENCE_SECONDS, stopped=lambda: False)

        assert setup.qos() == "low"
    finally:
        setup.follower.stop()
        thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()


@pytest.mark.parametrize("expansion", ["vramExpandToHostMem", "vramExpandToHostDisk"])
def test_a_pool_that_expands_memory_is_refused_where_the_enforcer_cannot(expansion: str) -> None:
    ratios = {**RATIOS, expansion: 50}
    setup = Setup(pool(capacityConfig={"oversubscription": ratios}), expands_memory=False)
    setup.catalog.refresh()

    setup.follower.follow()

    assert setup.catalog.current() is None
    ((reason, message),) = setup.events.written
    assert reason == "GPUPoolInvalid"
    assert f"found vramExpandToHostMem {ratios['vramExpandToHostMem']} and" in message
    assert "expected 0 for both: this node's enforcer cannot expand a GPU's memory" in message


def test_a_pool_that_hands_out_more_compute_needs_no_expansion() -> None:
    setup = Setup(pool(capacityConfig={"oversubscription": RATIOS}), expands_memory=False)
    setup.catalog.refresh()

    setup.follower.follow()

    assert setup.catalog.current() is not None
    assert setup.events.written == []


RULE = {"mode": "hard", "selector": {"matchLabels": {"workload": "batch"}}}
BATCH = {"metadata": {"name": "node-01", "labels": {"workload": "batch"}}}


def isolation(setup: Setup) -> str | None:
    current = setup.catalog.current()
    assert current is not None
    return current.node.isolation


def test_the_pool_s_isolation_is_the_node_s() -> None:
    setup = Setup(pool(nodeManagerConfig={"defaultIsolationMode": "shared"}))
    setup.nodes.found = RetryableError("nodes: not listed yet")
    setup.catalog.refresh()

    setup.follower.follow()

    assert isolation(setup) == "shared"


def test_the_pool_s_rules_go_by_the_labels_that_the_node_has_now() -> None:
    config = {"defaultIsolationMode": "soft", "isolationModeRules": [RULE]}
    setup = Setup(pool(nodeManagerConfig=config))
    setup.catalog.refresh()
    setup.nodes.found = [{"metadata": {"name": "node-01"}}]

    setup.follower.follow()
    before = isolation(setup)
    setup.nodes.found = [BATCH]
    setup.follower.follow()

    assert (before, isolation(setup)) == ("soft", "hard")


def test_a_pool_that_partitions_its_cards_is_refused_with_the_ways_to_go() -> None:
    setup = Setup(pool(nodeManagerConfig={"defaultIsolationMode": "partitioned"}))
    setup.catalog.refresh()

    setup.follower.follow()

    assert setup.catalog.current() is None
    ((_, message),) = setup.events.written
    assert message.startswith(
        "GPUPool prod: spec.nodeManagerConfig.defaultIsolationMode: found 'partitioned', expected "
        "one of soft, hard, shared (cards are not partitioned by this driver"
    )
