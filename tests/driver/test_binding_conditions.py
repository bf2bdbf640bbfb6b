"""Claims that wait at the scheduler for the node's enforcer get their binding conditions."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pytest

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.core.kubernetes.projection import Projection, projected
from tensorfusion_dra.driver.binding_conditions import LISTS, BindingConditions
from tests.enforcers.test_enforcer_choice import NOW, Chooser

Json = dict[str, Any]


def result(device: str = "gpu-0", pool: str = "default/node-01", **fields: Any) -> Json:
    """Return an allocation of a device that carried the condition."""
    return {
        "request": "gpu",
        "driver": names.DRIVER,
        "pool": pool,
        "device": device,
        "bindingConditions": [names.BINDING_READY],
        "bindingFailureConditions": [names.BINDING_FAILED],
        **fields,
    }


def claim(name: str, *results: Json, true: str = "") -> Json:
    """Return a stored claim; a condition may be True of its devices already."""
    entries = [
        {
            **{key: each[key] for key in ("driver", "pool", "device", "shareID") if key in each},
            "conditions": [
                {"type": "Ready", "status": "True"},
                {"type": true, "status": "True"},
            ],
        }
        for each in results
        if true
    ]
    return {
        "metadata": {"namespace": "default", "name": name, "uid": f"uid-{name}"},
        "status": {"allocation": {"devices": {"results": list(results)}}, "devices": entries},
    }


class Node:
    """A node that has the MPS daemon or not, and a cluster with claims."""

    def __init__(self, *claims: Json) -> None:
        self.chooser = Chooser("mps", wait_seconds=90)
        self.claims = claims
        self.lists = 0
        self.is_away = False
        self.written: dict[str, Sequence[Mapping[str, Any]]] = {}
        self.conditions = BindingConditions(
            self.chooser.chooser, self, self, node_name="node-01", now=lambda: NOW
        )

    def listed(self, keep: Projection) -> Sequence[Json]:
        self.lists += 1
        if self.is_away:
            raise RetryableError("no API server")
        return [found for each in self.claims if (found := projected(each, keep))]

    def write(self, ref: ClaimRef, devices: Sequence[Mapping[str, Any]]) -> bool:
        self.written[ref.name] = devices
        return True

    def settle(self, *present: str, times: int = 1, after: float = 0) -> int:
        """Return how often the claims were listed."""
        before = self.lists
        for _ in range(times):
            self.chooser.check(*present, after=after)
            self.conditions.settle()
        return self.lists - before

    def give_up(self) -> None:
        self.settle()
        self.settle(after=100)


@pytest.mark.parametrize(
    ("is_there", "kind", "reason", "message"),
    [
        (True, names.BINDING_READY, "EnforcerReady", "node node-01 has enforcer mps"),
        (
            False,
            names.BINDING_FAILED,
            "EnforcerMissing",
            "node node-01 had no enforcer for enforcer-wait-seconds",
        ),
    ],
)
def test_claim_that_waits_gets_the_condition_for_each_device(
    is_there: bool, kind: str, reason: str, message: str
) -> None:
    shared = result(shareID="share-0")
    node = Node(claim("a", shared, shared | {"request": "again"}, result("gpu-1")))
    node.settle()
    assert node.written == {}

    if is_there:
        node.settle("mps")
    else:
        node.settle(after=100)

    condition = {
        "type": kind,
        "status": "True",
        "reason": reason,
        "message": message,
        "lastTransitionTime": "2026-03-01T00:00:00Z",
    }
    of_device = {"driver": names.DRIVER, "pool": "default/node-01", "conditions": [condition]}
    assert node.written == {
        "a": [
            {**of_device, "device": "gpu-0", "shareID": "share-0"},
            {**of_device, "device": "gpu-1"},
        ]
    }


READY: Final = {"true": names.BINDING_READY}
FAILED: Final = {"true": names.BINDING_FAILED}


@pytest.mark.parametrize(
    ("stored", "is_there", "is_written"),
    [
        (claim("bound before", result(), **READY), True, False),
        (claim("runs", result(), **READY), False, False),
        (claim("failed before", result(), **FAILED), False, False),
        (claim("saved in time", result(), **FAILED), True, True),
        (claim("of another node", result(pool="default/node-02")), True, False),
        (claim("of another driver", result(driver="nic.example.com")), True, False),
        (claim("waits for no enforcer", result(bindingConditions=["a"])), True, False),
        (claim("never waited", result(bindingConditions=None)), True, False),
        ({"metadata": {"name": "not allocated"}}, True, False),
    ],
    ids=lambda each: each["metadata"]["name"] if isinstance(each, dict) else "",
)
def test_only_claims_that_wait_for_this_node_are_written(
    stored: Json, is_there: bool, is_written: bool
) -> None:
    node = Node(stored)

    if is_there:
        node.settle("mps")
    else:
        node.give_up()

    assert bool(node.written) == is_written


def test_claims_are_listed_a_few_times_after_a_change_and_never_while_pods_wait() -> None:
    node = Node()

    lists = [
        node.settle("mps", times=20),
        node.settle(times=20),
        node.settle(times=20, after=100),
        node.settle("mps", times=20),
    ]

    assert lists == [LISTS, 0, LISTS, 0]


def test_short_absence_that_only_a_prepare_saw_is_followed_by_lists() -> None:
    node = Node()
    node.settle("mps", times=20)
    node.chooser.seconds += 60
    assert node.chooser.chosen() == "none"
    assert node.chooser.chosen("mps") == "mps"

    assert node.settle("mps", times=20) == LISTS


def test_list_that_fails_does_not_count() -> None:
    node = Node(claim("a", result()))
    node.is_away = True
    node.settle("mps", times=LISTS + 1)
    node.is_away = False

    assert node.settle("mps", times=20) == LISTS
    assert "a" in node.written
