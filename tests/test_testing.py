"""The conformance tests accept what works, and refuse each fault with a text that says it."""

import itertools
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tensorfusion_dra import testing
from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims import verdicts
from tensorfusion_dra.enforcers import registered
from tensorfusion_dra.extend import (
    Capacity,
    ClaimError,
    Edits,
    EnforcerFacts,
    EnforcerSettings,
    Gpu,
    Isolation,
    Limit,
    Mount,
    Needs,
    Node,
    PreparedClaim,
    Problem,
    Reading,
    consumable,
)
from tests.support.another_enforcer import Another, variant
from tests.support.waiting import FOREVER

RACK = "example.com/rack"


def limits(edits: Edits) -> Sequence[Limit]:
    """Return the limits as the software behind `Another` reads them."""
    return [
        Limit(sm_percent=int(edits.env.get("ANOTHER_COMPUTE", 1)), vram_bytes=int(value))
        for key, value in edits.env.items()
        if key.startswith("ANOTHER_MEMORY_")
    ]


COUNT = itertools.count()


def test_good_provider_passes_with_odd_cards() -> None:
    given = testing.check_attributes(
        lambda gpu, node: {RACK: f"{node.name}-{gpu.index}"}, budget_seconds=FOREVER
    )

    assert given[testing.gpu(1).uuid] == {RACK: "node-01-1"}
    assert given.keys() >= {card.uuid for card in testing.ODD_GPUS}


def test_class_with_begin_passes() -> None:
    class Count:
        def begin(self, reading: Reading) -> None:
            self.count = len(reading.gpus)

        def __call__(self, gpu: Gpu, node: Node) -> Mapping[str, Capacity]:
            return {"example.com/neighbours": consumable(self.count)}

    assert testing.check_capacities(Count, budget_seconds=FOREVER)


@pytest.mark.parametrize(
    ("check", "provider", "text"),
    [
        *(
            (testing.check_attributes, provider, text)
            for provider, text in (
                (lambda gpu, node: {RACK: 1.5}, "found float, expected a string"),
                (
                    lambda gpu, node: {"rack": "x"},
                    "rack: found a name of the driver's domain, expected",
                ),
                (lambda gpu, node: {RACK: gpu.pci_bus_id[0]}, "TypeError"),
                (lambda gpu, node: {RACK: gpu.product_name}, "may not be more than 64 bytes"),
                (lambda gpu, node: None, "expected a mapping by name"),
                (lambda gpu, node: {RACK: next(COUNT)}, "two calls differ"),
                (
                    lambda gpu, node: {f"example.com/a{n}": n for n in range(40)},
                    "which is the most",
                ),
                ("no callable", "expected a callable"),
            )
        ),
        *(
            (testing.check_capacities, lambda gpu, node, value=value: {"a": value}, text)
            for value, text in (
                (4, "see consumable"),
                (consumable(4, maximum=5), "max is larger"),
            )
        ),
        *(
            (testing.check_health_source, source, text)
            for source, text in (
                (lambda gpu: None, "expected a sequence of Problem"),
                (lambda gpu: ["hot"], "expected a Problem"),
                (
                    lambda gpu: [Problem(reason="too hot", text="")],
                    "expected a Kubernetes label value",
                ),
                (
                    lambda gpu: [Problem(reason=f"r{next(COUNT)}", text="")],
                    "two calls differ",
                ),
            )
        ),
    ],
)
def test_bad_provider_is_told_why(
    check: Callable[..., object], provider: object, text: str
) -> None:
    with pytest.raises(AssertionError, match=text):
        check(provider, budget_seconds=FOREVER)


def test_slow_provider_is_told_its_budget() -> None:
    with pytest.raises(AssertionError, match=r"no answer within 0.05 s"):
        testing.check_attributes(lambda gpu, node: time.sleep(0.2), budget_seconds=0.05)


def test_good_health_source_passes() -> None:
    hot = Problem(reason="hot", text="90 degrees")

    found = testing.check_health_source(
        lambda gpu: [hot] if gpu.index == 0 else [], budget_seconds=FOREVER
    )

    assert found == {testing.gpu(0).uuid: ["hot"]}


def test_good_enforcer_passes() -> None:
    testing.check_enforcer(Another, limits_of=limits, budget_seconds=FOREVER)


def hami_core_limits(edits: Edits) -> Sequence[Limit]:
    memory = {k: v for k, v in edits.env.items() if k.startswith("CUDA_DEVICE_MEMORY_LIMIT_")}
    return [
        Limit(
            sm_percent=int(edits.env[key.replace("MEMORY_LIMIT", "SM_LIMIT")]),
            vram_bytes=int(value.removesuffix("m")) * 2**20,
        )
        for key, value in sorted(memory.items())
    ]


def mps_limits(edits: Edits) -> Sequence[Limit]:
    percent = int(edits.env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"])
    memory = edits.env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"]
    return [
        Limit(sm_percent=percent, vram_bytes=int(part.partition("=")[2].rstrip("M")) * 2**20)
        for part in memory.split(",")
    ]


def tensor_fusion_limits(edits: Edits) -> Sequence[Limit]:
    percent = json.loads(edits.env[names.ENV_UP_LIMIT_BY_UUID])
    memory = json.loads(edits.env[names.ENV_MEM_LIMIT_BY_UUID])
    return [Limit(sm_percent=percent[uuid], vram_bytes=memory[uuid]) for uuid in sorted(memory)]


ROOT = {
    "tensor_fusion_root": "/nowhere",
    "hypervisor_address": "",
    "hypervisor_sockets": "",
    "kubelet_root": "/nowhere",
}


@pytest.mark.parametrize(
    ("name", "limits_of", "settings"),
    [
        (
            "hami-core",
            hami_core_limits,
            replace(
                testing.enforcer_settings("hami-core", hami_core_library="/nowhere/lib.so.1"),
                folder="/nowhere",
            ),
        ),
        (
            "mps",
            mps_limits,
            testing.enforcer_settings("mps", mps_root="/nowhere"),
        ),
        # Its folders are the hypervisor's, which are beside those of other enforcers.
        (
            "tensor-fusion",
            tensor_fusion_limits,
            replace(testing.enforcer_settings("tensor-fusion", **ROOT), folder="/nowhere"),
        ),
    ],
)
def test_the_drivers_own_enforcers_conform(
    name: str, limits_of: Callable[[Edits], Sequence[Limit]], settings: EnforcerSettings
) -> None:
    testing.check_enforcer(
        registered.kind(name), limits_of=limits_of, settings=settings, budget_seconds=FOREVER
    )


def only_whole_gib(_self: object, claim: PreparedClaim) -> Needs:
    """Refuse a limit that is no whole number of GiB, as an enforcer with a coarse unit would."""
    if any(share.limit.vram_bytes % 2**30 for share in claim.shares if share.limit):
        raise ClaimError("found a part of a GiB, expected whole ones")
    return Needs()


def test_enforcer_expresses_each_limit_to_which_one_may_change_or_names_the_isolation_fixed() -> (
    None
):
    fixed = variant(needs=only_whole_gib)
    testing.check_enforcer(fixed, limits_of=limits, budget_seconds=FOREVER)

    for isolations in ({Isolation.HARD}, {Isolation.SOFT}, set()):
        left = "soft" if Isolation.SOFT not in isolations else "hard"
        facts = EnforcerFacts(
            fixed_compute=frozenset(isolations), fixed_memory=frozenset(isolations)
        )
        lends = variant(needs=only_whole_gib, facts=facts)
        with pytest.raises(AssertionError, match=f"isolation {left}: .* a GiB.* or .*fixed"):
            testing.check_enforcer(lends, limits_of=limits, budget_seconds=FOREVER)


def edits(**given: Any) -> type[Another]:
    return variant(edits=lambda _self, _claim, _shares: Edits(**given))


ALWAYS = verdicts.enforced("Always", "x")


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (edits(env={"ANOTHER_MEMORY_0": str(2**50)}), "expected 1 to 21474836480"),
        *(
            (
                edits(env={"ANOTHER_MEMORY_0": "1", "ANOTHER_COMPUTE": percent}),
                f"found {percent} percent of compute, expected 1 to 25",
            )
            for percent in ("26", "0")
        ),
        (edits(env={}), "found 0 limits, expected one for each of 1 cards"),
        (
            variant(edits=lambda *_: Edits(env={"ANOTHER_MEMORY_0": str(1 + next(COUNT))})),
            "two calls differ",
        ),
        (edits(env={"A=B": ""}), "expected the name of a variable"),
        (edits(mounts=(Mount(host_path="a", container_path="/b"),)), "expected an absolute path"),
        (variant(needs=lambda _self, _claim: Needs(files=("a",))), "expected an absolute path"),
        (variant(name=7), "expected the name of the entry point"),
        (variant(from_settings=None), "enforcer: another: "),
        (variant(judge=lambda *_, is_new: [ALWAYS]), "found Enforced without a sign of life"),
        (variant(judge=lambda *_, is_new: [None]), "expected Verdict"),
    ],
)
def test_bad_enforcer_is_told_why(kind: object, text: str) -> None:
    with pytest.raises(AssertionError, match=text):
        testing.check_enforcer(kind, limits_of=limits, budget_seconds=FOREVER)
