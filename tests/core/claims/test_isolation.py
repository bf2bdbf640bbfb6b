"""Isolation modes that a tenant may choose, that one card can hold, and that a GPUPool sets."""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from tensorfusion_dra.core.claims import isolation
from tensorfusion_dra.core.claims.admit import admit
from tensorfusion_dra.core.claims.claim import Allocation
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.devices.capacity import Oversubscription
from tensorfusion_dra.core.devices.gpu import HostResources, Isolation
from tensorfusion_dra.core.errors import ClaimError, InputError
from tensorfusion_dra.core.kubernetes.node_fit import NodeLabels
from tensorfusion_dra.core.kubernetes.quantity import GIB
from tensorfusion_dra.enforcers.hami_core import HamiCore
from tensorfusion_dra.enforcers.mps import Mps
from tests.support.admission import Json
from tests.support.builders.allocations import allocation, exclusive_allocation
from tests.support.builders.claims import allocated_claim, claim_admission, claim_record
from tests.support.builders.devices import NODE as MEMBER
from tests.support.builders.gpupools import gpupool_document
from tests.support.builders.gpus import gpu, gpus
from tests.support.builders.nodes import RULES, node_facts
from tests.support.builders.policies import share_policy

NODE = node_facts(*gpus(3))
GPU_0, GPU_1, GPU_2 = NODE.devices
SOFT, HARD, SHARED = Isolation.SOFT, Isolation.HARD, Isolation.SHARED


def record(
    name: str, *allocations: Allocation, isolation: Isolation, beside: list[PreparedClaim]
) -> PreparedClaim:
    chosen = share_policy(isolation=isolation)
    return claim_admission(
        allocated_claim(name, *allocations), on=NODE, beside=beside, policy=chosen
    )


def refusal(
    name: str, *allocations: Allocation, isolation: Isolation, beside: list[PreparedClaim]
) -> str:
    with pytest.raises(ClaimError) as caught:
        record(name, *allocations, isolation=isolation, beside=beside)
    return str(caught.value)


@pytest.mark.parametrize(
    ("existing", "wanted"),
    [pair for pair in product(Isolation, repeat=2) if SHARED in pair or len({*pair}) == 2],
)
def test_card_has_one_mode_and_in_shared_isolation_one_tenant(
    existing: Isolation, wanted: Isolation
) -> None:
    first = record("a", allocation(GPU_0, 1), isolation=existing, beside=[])
    alone = f"default/a on the card in isolation {existing}, expected no other tenant"
    same = f"the card in isolation {existing} by default/a, expected the same"

    assert refusal("b", allocation(GPU_0, 2), isolation=wanted, beside=[first]) == (
        f"claim default/b: {GPU_0}: isolation {wanted}: found "
        f"{alone if SHARED in (existing, wanted) else same}"
    )


def test_claim_has_one_share_of_a_card_in_shared_isolation() -> None:
    text = refusal("a", allocation(GPU_0, 1), allocation(GPU_0, 2), isolation=SHARED, beside=[])

    assert "found default/a on the card in isolation shared, expected no other tenant" in text


@pytest.mark.parametrize(("mode", "other"), list(product(Isolation, repeat=2)))
def test_admin_access_is_compatible_with_every_mode(mode: Isolation, other: Isolation) -> None:
    tenant = record("a", allocation(GPU_0, 1), isolation=mode, beside=[])
    admin = record(
        "admin", exclusive_allocation(GPU_0, admin_access=True), isolation=other, beside=[tenant]
    )

    assert record("a", allocation(GPU_0, 1), isolation=mode, beside=[admin]).shares


@pytest.mark.parametrize("enforcer", [HamiCore(library="/libvgpu.so"), Mps()])
def test_hard_and_soft_share_a_card_if_the_enforcer_treats_them_alike(
    enforcer: HamiCore | Mps,
) -> None:
    rules = replace(RULES, enforcers={enforcer.name: enforcer})
    node = replace(NODE, enforcer=enforcer.name, rules=rules)
    soft = claim_record("a", allocation(GPU_0, 1), on=node, policy=share_policy(isolation=SOFT))
    hard = allocated_claim("b", allocation(GPU_0, 2))

    kept = claim_admission(hard, on=node, beside=[soft], policy=share_policy(isolation=HARD))

    assert [each.isolation for each in kept.shares] == [HARD]


def test_isolation_of_admin_access_is_not_a_tenants_choice() -> None:
    chosen = share_policy(isolation=SHARED, isolation_by_tenant=True)
    admin = allocated_claim("admin", exclusive_allocation(GPU_0, admin_access=True))

    assert claim_admission(admin, on=NODE, policy=chosen).shares


def test_claim_with_two_isolation_modes_is_refused() -> None:
    claim = allocated_claim(
        "a", allocation(GPU_0, 1, request="one"), allocation(GPU_1, 2, request="two")
    )

    with pytest.raises(ClaimError) as caught:
        admit(
            claim,
            replace(NODE, policies=[share_policy(isolation=SOFT), share_policy(isolation=HARD)]),
            [],
        )

    assert str(caught.value) == "claim default/a: isolation: found hard, soft, expected one"


def test_claim_that_has_its_card_without_limits_keeps_later_claims_off_even_if_the_card_grows() -> (
    None
):
    """Example: ECC is turned off at a reboot, which leaves containers more memory."""
    before, after = (node_facts(gpu(vram_bytes=size * GIB)) for size in (80, 86))
    (card,) = before.devices
    whole = claim_record("a", allocation(card, 1, tflops="312", vram="80Gi"), on=before)

    alone = isolation.without_limits(whole, before.devices)
    assert alone is not None
    late = allocated_claim("late", allocation(card, 2, tflops="0", vram="1Gi"))
    with pytest.raises(ClaimError) as caught:
        claim_admission(late, on=after, beside=[alone])

    assert [(share.isolation, share.limit) for share in alone.shares] == [(SHARED, None)]
    assert str(caught.value) == (
        f"claim default/late: {card}: isolation soft: found default/a on the card in isolation "
        "shared, expected no other tenant"
    )


@pytest.mark.parametrize(
    ("ratios", "has_limits"),
    [
        # All of the card's own compute and memory, so there is nothing to limit.
        (Oversubscription(tflops_percent=150, host_memory_percent=0, host_disk_percent=0), False),
        # Only the limiter gives a container more memory than the card has.
        (Oversubscription(tflops_percent=100, host_memory_percent=50, host_disk_percent=0), True),
    ],
)
def test_whole_card_needs_its_limits_only_if_its_memory_is_expanded(
    ratios: Oversubscription, has_limits: bool
) -> None:
    pool = replace(MEMBER, oversubscription=ratios)
    node = node_facts(*gpus(1), node=pool, host=HostResources(memory_bytes=80 * GIB))
    claim = claim_record("a", exclusive_allocation(next(iter(node.devices))), on=node)

    assert (isolation.without_limits(claim, node.devices) is None) is has_limits


LABELED_NODE = NodeLabels(name="node-01", labels={"type": "p5", "workload": "batch"})


def pool_with_isolation(default: Any = None, *rules: tuple[str, Any]) -> Json:
    config: Json = {"isolationModeRules": [{"mode": m, "selector": s} for m, s in rules]}
    if default is not None:
        config["defaultIsolationMode"] = default
    return gpupool_document("prod", nodeManagerConfig=config)


def labels(**wanted: str) -> Json:
    return {"matchLabels": wanted}


def expression(key: str, operator: str, *values: str) -> Json:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (gpupool_document("prod"), None),
        (gpupool_document("prod", nodeManagerConfig={"defaultIsolationMode": ""}), None),
        (pool_with_isolation("soft"), "soft"),
        (pool_with_isolation("hard"), "hard"),
        (pool_with_isolation("soft", ("hard", labels(type="p5"))), "hard"),
        (pool_with_isolation("soft", ("hard", labels(type="p4"))), "soft"),
        (pool_with_isolation("soft", ("hard", labels(type="p5", workload="web"))), "soft"),
        (
            pool_with_isolation("soft", ("hard", labels(type="p5")), ("shared", labels(type="p5"))),
            "hard",
        ),
        (pool_with_isolation("soft", ("hard", {}), ("shared", labels(type="p5"))), "hard"),
        (pool_with_isolation("soft", ("hard", None), ("shared", labels(type="p5"))), "shared"),
        (pool_with_isolation("soft", ("hard", expression("type", "In", "p4", "p5"))), "hard"),
        (pool_with_isolation("soft", ("hard", expression("type", "NotIn", "p4"))), "hard"),
        (pool_with_isolation("soft", ("hard", expression("zone", "NotIn", "a"))), "hard"),
        (pool_with_isolation("soft", ("hard", expression("zone", "DoesNotExist"))), "hard"),
        (pool_with_isolation("soft", ("hard", expression("zone", "Exists"))), "soft"),
        (pool_with_isolation(None, ("hard", labels(type="p4"))), None),
        # An unsupported mode is no error for a node that the rule does not select.
        (pool_with_isolation("soft", ("partitioned", labels(type="p4"))), "soft"),
    ],
)
def test_first_rule_that_selects_the_node_precedes_the_default(
    found: Json, expected: str | None
) -> None:
    assert isolation.pool_mode(found, LABELED_NODE) == expected


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (
            pool_with_isolation("none"),
            "defaultIsolationMode: found 'none', expected one of soft, hard, shared",
        ),
        (
            pool_with_isolation("partitioned"),
            "defaultIsolationMode: found 'partitioned', expected one of soft",
        ),
        (
            pool_with_isolation("soft", ("partitioned", {})),
            r"isolationModeRules\[0\].mode: found 'partitioned'",
        ),
        (
            pool_with_isolation("soft", ("hard", "x")),
            r"isolationModeRules\[0\].selector: found 'x', expected an",
        ),
        (
            pool_with_isolation("soft", ("hard", {"labels": {}})),
            r"selector: found \['labels'\], expected match",
        ),
        (
            pool_with_isolation("soft", ("hard", expression("a", "Gt", "1"))),
            "found operator 'Gt', expected one",
        ),
        (
            pool_with_isolation("soft", ("hard", expression("a", "In"))),
            "found no values, expected some",
        ),
    ],
)
def test_invalid_values_are_reported_with_their_path(found: Json, expected: str) -> None:
    with pytest.raises(InputError, match=rf"^spec\.nodeManagerConfig\..*{expected}"):
        isolation.pool_mode(found, LABELED_NODE)


def test_modes_of_a_pool_are_those_of_all_its_rules() -> None:
    found = pool_with_isolation(
        "soft", ("hard", labels(type="p4")), ("partitioned", {}), ("none", {})
    )

    assert isolation.pool_modes(found) == {"soft", "hard"}
    assert isolation.pool_modes(gpupool_document("prod")) == frozenset()


def test_only_rules_depend_on_node_labels() -> None:
    assert isolation.pool_has_rules(pool_with_isolation("soft", ("hard", {})))
    assert not isolation.pool_has_rules(pool_with_isolation("hard"))
    assert not isolation.pool_has_rules(gpupool_document("prod"))
