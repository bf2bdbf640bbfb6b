"""Fixed limits, which cannot change once granted, and lending of compute."""

from dataclasses import dataclass, replace

from tensorfusion_dra.core.claims.claim import Allocation
from tensorfusion_dra.core.claims.enforcers.enforcer import Needs
from tensorfusion_dra.core.claims.enforcers.tensor_fusion import TensorFusion
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.devices.oversubscription import Oversubscription
from tensorfusion_dra.core.errors import ClaimError
from tensorfusion_dra.core.kubernetes import quantity
from tensorfusion_dra.core.kubernetes.quantity import GIB
from tests.support.builders.allocations import allocation
from tests.support.builders.devices import NODE as DEFAULT_NODE
from tests.support.builders.gpus import gpu, gpus
from tests.support.builders.nodes import HAMI_CORE, RULES, node_offer
from tests.support.tenants import Card, limit_of

NODE = node_offer(*gpus(2))
GPU_0, GPU_1 = NODE.devices
OVERCOMMIT = replace(NODE, rules=replace(RULES, overcommit_limits=True))
HAMI_NODE = replace(NODE, enforcer=HAMI_CORE.name)


def of_card(number: int, vram: int) -> Allocation:
    return allocation(GPU_0, number, tflops="1", vram=f"{vram}Gi")


def computing(number: int, tflops: str) -> Allocation:
    return allocation(GPU_0, number, tflops=tflops, vram="1Gi")


def test_fixed_limit_stays_when_the_nodes_enforcer_changes() -> None:
    """The containers of the first claim were started with 10Gi in their environment."""
    card = Card(replace(NODE, enforcer=HAMI_CORE.name))
    card.admit("fixed", of_card(1, 10), limit="60Gi")
    assert card.gib() == {"fixed": 10}

    card.node = NODE
    card.admit("a", of_card(2, 10), limit="80Gi")
    assert card.gib() == {"fixed": 10, "a": 70}

    card.release("a")
    assert card.gib() == {"fixed": 10}


def test_fixed_limit_above_its_request_is_not_lent_again() -> None:
    """The limit was overcommitted when granted; the claim's containers were started with it."""
    card = Card(replace(OVERCOMMIT, enforcer=HAMI_CORE.name))
    card.admit("fixed", of_card(1, 10), limit="60Gi")

    card.node = NODE
    card.admit("a", of_card(2, 10), limit="80Gi")
    assert card.gib() == {"fixed": 60, "a": 20}

    card.admit("b", of_card(3, 30), limit="80Gi")
    assert card.gib() == {"fixed": 60, "a": 10, "b": 30}


def test_limits_of_an_unknown_enforcer_never_change() -> None:
    card = Card(NODE)
    card.admit("a", of_card(1, 10), limit="60Gi")
    card.records["a"] = replace(card.records["a"], enforcer="of-a-later-release")

    card.admit("b", of_card(2, 30), limit="80Gi")

    assert card.gib() == {"a": 60, "b": 30}


@dataclass(frozen=True)
class AtLeast20(TensorFusion):
    """An enforcer that cannot express limits below 20Gi."""

    def needs(self, claim: PreparedClaim) -> Needs:
        if limit_of(claim).vram_bytes < 20 * GIB:
            raise ClaimError(f"claim {claim.ref}: found less than 20Gi, expected more")
        return Needs()


def test_inexpressible_limits_are_not_applied_and_other_claims_divide_the_rest() -> None:
    rules = replace(RULES, enforcers={"tensor-fusion": AtLeast20()})
    card = Card(replace(NODE, rules=rules))
    card.admit("a", of_card(1, 5), limit="40Gi")
    card.admit("b", of_card(2, 25), limit="40Gi")
    assert card.gib() == {"a": 40, "b": 40}

    admission = card.admit("c", of_card(3, 50), limit="50Gi")

    assert card.gib() == {"a": 40, "b": 25, "c": 50}
    assert [changed.ref.name for changed in admission.changed] == ["b"]


def test_two_small_requests_cannot_both_have_the_whole_compute_of_a_card() -> None:
    """HAMi-core and MPS read their limits once; what is granted cannot be taken back."""
    card = Card(HAMI_NODE)

    for number, name in enumerate("ab"):
        card.admit(name, computing(number, "1"), tflops="312")

    assert card.percent() == {"a": 1, "b": 1}
    assert all(record.shares[0].compute_clamped for record in card.claims())


def test_lent_compute_is_taken_back_by_a_later_request() -> None:
    card = Card(NODE)
    card.admit("a", computing(1, "31.2"), tflops="312")
    assert card.percent() == {"a": 100}

    card.admit("b", computing(2, "156"), tflops="312")
    assert card.percent() == {"a": 50, "b": 50}
    assert [record.shares[0].compute_clamped for record in card.claims()] == [True, True]

    card.release("b")
    assert card.percent() == {"a": 100}
    assert not card.records["a"].shares[0].clamped


def test_requests_are_kept_if_rounding_takes_their_sum_above_100_percent() -> None:
    card = Card(NODE)
    for number, name in enumerate("abc"):
        card.admit(name, computing(number, "104"), tflops="312")

    assert card.percent() == {"a": 34, "b": 34, "c": 34}


def test_oversubscribed_card_lends_its_virtual_compute() -> None:
    ratios = Oversubscription(tflops_percent=150, host_memory_percent=0, host_disk_percent=0)
    card = Card(node_offer(gpu(), node=replace(DEFAULT_NODE, oversubscription=ratios)))

    for number, name in enumerate("abc"):
        consumed = {
            **allocation(GPU_0, number, tflops="0", vram="0").consumed,
            "virtual_tflops": quantity.parse("31.2"),
            "virtual_vram": quantity.parse("1Gi"),
        }
        card.admit(name, allocation(GPU_0, number, consumed=consumed), tflops="312")

    assert card.percent() == {"a": 100, "b": 40, "c": 10}
