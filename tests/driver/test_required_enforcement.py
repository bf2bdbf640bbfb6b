"""Claims that nothing would enforce are refused if the settings require enforcement."""

import pytest

from tensorfusion_dra.core.claims.enforcement.signs import FileSign, NodeSigns, Places, Signs
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tests.support.prepared_node import (
    Setup,
    error_of,
    put_claim,
    share_result,
    use_real_cards,
)


class NodeWithHypervisor:
    """Signs of this node's hypervisor: "" is a dead one."""

    def __init__(self) -> None:
        self.hypervisor = ""
        self.readings = 0

    def of_claim(self, places: Places) -> Signs:
        raise AssertionError(places)

    def of_node(self) -> NodeSigns:
        self.readings += 1
        return NodeSigns(
            read_at=0,
            files=(FileSign(path="/libcuda_limiter.so"),),
            hypervisor=self.hypervisor,
            asked=("device plugin: not found",),
        )


@pytest.fixture
def signs(setup: Setup) -> NodeWithHypervisor:
    """Require the signs of a hypervisor, on a node with real cards."""
    found = NodeWithHypervisor()
    setup.required = found
    setup.preparer = setup.with_claims(setup.claims)
    return found


def test_claim_waits_until_the_hypervisor_is_alive(setup: Setup, signs: NodeWithHypervisor) -> None:
    use_real_cards(setup)
    ref = put_claim(setup, "a", share_result())

    refused = setup.prepare(ref)[ref.uid]
    signs.hypervisor = "device plugin answers"
    prepared = setup.prepare(ref)[ref.uid]

    assert error_of(refused).startswith(
        "claim default/a: nothing would enforce its limits (require-enforcement): no sign of a "
        "hypervisor (device plugin: not found); run Tensor Fusion's hypervisor on this node"
    )
    assert isinstance(prepared, PreparedClaim)


def test_prepared_claim_is_answered_after_the_hypervisor_died(
    setup: Setup, signs: NodeWithHypervisor
) -> None:
    """Its containers may run; the kubelet repeats the call when it restarts."""
    use_real_cards(setup)
    ref = put_claim(setup, "a", share_result())
    signs.hypervisor = "device plugin answers"
    setup.prepare(ref)

    signs.hypervisor = ""

    assert isinstance(setup.prepare(ref)[ref.uid], PreparedClaim)


def test_without_the_setting_a_claim_is_prepared_in_any_case(setup: Setup) -> None:
    use_real_cards(setup)
    ref = put_claim(setup, "a", share_result())

    assert isinstance(setup.prepare(ref)[ref.uid], PreparedClaim)
