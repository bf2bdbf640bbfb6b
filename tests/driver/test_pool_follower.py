"""Following of the node's GPUPool; an unusable pool changes nothing."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
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

Found = Sequence[Mapping[str, Any]] | InputError | RetryableError
NODE_01 = {"metadata": {"name": "node-01"}}


class Objects:
    """Objects in memory, or the error of reading them."""

    def __init__(self, found: Found) -> None:
        self.found = found

    def items(self) -> Sequence[Mapping[str, Any]]:
        if isinstance(self.found, Sequence):
            return self.found
        raise self.found


class Setup:
    """A follower of the pool `prod`, or of the pool that selects the node.

    Attributes:
        pools, nodes: Objects, or the error of reading them.
    """

    def __init__(
        self, *pools: Mapping[str, Any], by_name: bool = True, expands_memory: bool = True
    ) -> None:
        self.pools: Found = pools
        self.nodes: Found = [NODE_01]
        self.events = EventsInMemory()
        self.served = 0
        discovery = FixedDiscovery(Inventory(gpus=(gpu(),)))
        self.catalog = DeviceCatalog(discovery, None, on_change=self._count_served)
        self.catalog.refresh()
        self.wakeup = Wakeup()
        pool_name = "prod" if by_name else ""
        self.follower = PoolFollower(
            lambda: member(
                Objects(self.pools), Objects(self.nodes), pool_name=pool_name, node_name="node-01"
            ),
            self.catalog,
            self.events,
            expands_memory=expands_memory,
            wakeup=self.wakeup,
        )

    def _count_served(self) -> None:
        self.served += 1

    def follow(self, pools: Found | None = None) -> list[Any]:
        """Follow these pools, or the ones of before; return the lines that were logged."""
        if pools is not None:
            self.pools = pools
        with capture_logs() as logs:
            self.follower.follow()
        return list(logs)

    def qos(self) -> str | None:
        current = self.catalog.current()
        return str(current.devices[0].attributes["qos"]) if current else None

    def isolation(self) -> str | None:
        current = self.catalog.current()
        return current.node.isolation if current else None


def pool_with_qos(qos: str = "high", name: str = "prod", **spec: Any) -> dict[str, Any]:
    return gpupool_document(name, qosConfig={"defaultQoS": qos}, **spec)


def test_no_catalog_exists_before_the_pool_is_known() -> None:
    setup = Setup()

    setup.follow(RetryableError("gpupools: not listed yet"))

    assert setup.catalog.current() is None
    assert setup.catalog.reason_missing() == (
        "this node's GPUPool is not known yet: gpupools: not listed yet"
    )
    assert setup.events.written == []


def test_unchanged_pool_has_no_effect() -> None:
    setup = Setup(pool_with_qos())
    setup.follow()

    setup.follow([{**pool_with_qos(), "status": {"phase": "Running"}}])

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
    found: Found, problem: str
) -> None:
    setup = Setup(pool_with_qos())
    setup.follow()

    logs = setup.follow(found) + setup.follow(found)

    assert (setup.qos(), setup.served) == ("high", 1)
    setup.follower.check()  # the instance stays ready
    ((reason, message),) = setup.events.written
    assert reason == "GPUPoolInvalid"
    assert message.startswith(problem)
    assert message.endswith("; the node's GPUs stay published as before")
    (line,) = logs
    assert line["event"] == "gpupool_unusable"
    assert line["error"].startswith(problem)


def test_event_states_that_nothing_is_published_before_the_first_usable_pool() -> None:
    setup = Setup()

    (line,) = setup.follow()

    assert line["event"] == "gpupool_awaited"
    ((_, message),) = setup.events.written
    assert message.endswith("; no GPU of this node is published until this is corrected")
    assert gpupool.REMEDY in message
    assert gpupool.REMEDY in setup.catalog.reason_missing()


def test_loop_follows_the_pool_at_every_wake_until_it_is_stopped() -> None:
    setup, seen = Setup(), None
    with running(setup.follower.run, stop=setup.follower.stop):
        for qos in ("high", "low"):
            setup.pools = [pool_with_qos(qos)]
            setup.wakeup.wake()
            seen = setup.catalog.wait_changed(seen, seconds=PATIENCE_SECONDS, stopped=lambda: False)
            assert setup.qos() == qos


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
    none = {"tflopsOversellRatio": 200, "vramExpandToHostMem": 0, "vramExpandToHostDisk": 0}
    ratios = none | expansion
    setup = Setup(pool_with_qos(capacityConfig={"oversubscription": ratios}), expands_memory=False)

    setup.follow()

    assert (setup.catalog.current() is None) is is_refused
    texts = [message for _, message in setup.events.written]
    found = f"found vramExpandToHostMem {ratios['vramExpandToHostMem']} and"
    assert [found in text for text in texts] == [True] * is_refused
    assert all("expected 0 for both: this node's enforcer" in text for text in texts)


def test_pools_rules_use_the_current_labels_of_the_node() -> None:
    rule = {"mode": "hard", "selector": {"matchLabels": {"workload": "batch"}}}
    config = {"defaultIsolationMode": "soft", "isolationModeRules": [rule]}
    setup = Setup(pool_with_qos(nodeManagerConfig=config))
    modes = []
    for labels in ({}, {"workload": "batch"}):
        setup.nodes = [{"metadata": {"name": "node-01", "labels": labels}}]
        setup.follow()
        modes.append(setup.isolation())

    assert modes == ["soft", "hard"]


SELECTS_OTHERS = {
    "nodeSelectorTerms": [{"matchExpressions": [{"key": "tier", "operator": "Exists"}]}]
}


MALFORMED = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "tier", "operator": "exists"}]}]}


NO_CRDS = InputError("gpupools: no such resource")


@pytest.mark.parametrize(
    ("by_name", "found", "is_ready"),
    [
        (True, RetryableError("gpupools: not listed yet"), False),
        (True, NO_CRDS, False),
        (True, [], False),
        (True, [pool_with_qos(name="other")], False),
        (True, [pool_with_qos("gold")], False),
        (True, [pool_with_qos()], True),
        (False, NO_CRDS, False),
        (False, [], False),
        (False, [pool_with_qos(nodeManagerConfig={"nodeSelector": MALFORMED})], False),
        # Perhaps on purpose: other nodes of the DaemonSet are in the pool.
        (False, [pool_with_qos(nodeManagerConfig={"nodeSelector": SELECTS_OTHERS})], True),
    ],
)
def test_instance_is_ready_once_its_pool_is_known_or_it_is_outside_of_all_pools(
    by_name: bool, found: Found, is_ready: bool
) -> None:
    setup = Setup(by_name=by_name)
    with pytest.raises(RetryableError, match="waits for a GPUPool: none was read yet"):
        setup.follower.check()

    setup.follow(found)

    waiting = pytest.raises(RetryableError, match=r"waits for a GPUPool: .*(GPUPool|gpupools)")
    with nullcontext() if is_ready else waiting:
        setup.follower.check()
