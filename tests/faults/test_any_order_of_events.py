"""Random sequences of events on a node: the answers hold, and no other records or files exist."""

import shutil
from collections.abc import Callable
from typing import Final

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from dra_simulator.rest import CLAIMS, SLICES
from tensorfusion_dra.core import names
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.core.kubernetes.quantity import GIB
from tests.faults import invariants
from tests.faults.modelled_node import (
    CARD_GIB,
    DEVICES,
    EVERY_CARD,
    ModelledClaim,
    ModelledNode,
)
from tests.faults.mutations import bounded
from tests.faults.node import published
from tests.support.tally import STEPS_IN_ANY_ORDER, Tally

pytestmark = pytest.mark.sweep

NAMES: Final = "abcdefgh"

devices = st.sampled_from(DEVICES)
sizes = st.sampled_from((1, 10, 10, 30, 30, 50, 80, None))
damages = st.sampled_from((None, b"", b"{", b"{}\n"))


class World(RuleBasedStateMachine):
    """Events that may happen to a node, and the invariants after each of them."""

    tally: Tally

    def __init__(self) -> None:
        super().__init__()
        self.node = ModelledNode()

    def teardown(self) -> None:
        self.node.close()

    @precondition(lambda self: len(self.node.stored) < len(NAMES))
    @rule(device=devices, vram_gib=sizes)
    def a_claim_is_allocated(self, device: str, vram_gib: int | None) -> None:
        """The scheduler of this rule may over-commit a card."""
        name = next(name for name in NAMES if name not in self.node.stored)
        self.node.create(name, device, vram_gib)

    @precondition(lambda self: self.node.stored)
    @rule(chosen=st.data(), device=devices, vram_gib=sizes, is_new=st.booleans())
    def a_claim_is_reallocated_or_replaced_by_another_of_its_name(
        self, chosen: st.DataObject, device: str, vram_gib: int | None, *, is_new: bool
    ) -> None:
        name = chosen.draw(st.sampled_from(sorted(self.node.stored)))
        if is_new:
            self.node.client.delete(CLAIMS, name, "default")
            self.node.create(name, device, vram_gib)
        else:
            found = {**self.node.client.get(CLAIMS, name, "default"), "status": {}}
            self.node.allocate(self.node.client.replace_status(CLAIMS, found), device, vram_gib)

    @precondition(lambda self: self.node.stored)
    @rule(chosen=st.data())
    def the_kubelet_prepares_a_claim(self, chosen: st.DataObject) -> None:
        self.node.prepare(chosen.draw(st.sampled_from([*self.node.stored.values()])))

    @precondition(lambda self: self.node.known)
    @rule(chosen=st.data(), act=st.sampled_from([ModelledNode.prepare, ModelledNode.unprepare]))
    def the_kubelet_calls_for_a_claim_that_may_be_gone(
        self, chosen: st.DataObject, act: Callable[[ModelledNode, ModelledClaim], None]
    ) -> None:
        act(self.node, chosen.draw(st.sampled_from([*self.node.known.values()])))

    @precondition(lambda self: self.node.known)
    @rule(chosen=st.data())
    def the_api_server_is_away_while_claims_come_and_go(self, chosen: st.DataObject) -> None:
        claims = chosen.draw(st.lists(st.sampled_from([*self.node.known.values()]), max_size=3))
        with self.node.without_api_server():
            for claim in claims:
                self.node.prepare(claim)
                if chosen.draw(st.booleans()):
                    self.node.unprepare(claim)
            with pytest.raises(RetryableError):
                self.node.publisher.publish()

    @rule(reboots=st.booleans())
    def the_plugin_or_the_node_restarts(self, *, reboots: bool) -> None:
        volatile = (self.node.cdi_folder, self.node.limits_folder, self.node.metadata_folder)
        for folder in volatile if reboots else ():
            shutil.rmtree(folder, ignore_errors=True)
        self.node.restart_plugin()

    @precondition(lambda self: self.node.answered_on_working_cards())
    @rule(chosen=st.data(), damage=damages)
    def a_spec_is_damaged_and_its_claim_prepared_again(
        self, chosen: st.DataObject, damage: bytes | None
    ) -> None:
        uid = chosen.draw(st.sampled_from(self.node.answered_on_working_cards()))
        spec = self.node.cdi_folder / f"{names.CDI_FILE_PREFIX}{uid}.json"
        spec.unlink()
        if damage is not None:
            spec.write_bytes(damage)

        self.node.prepare(self.node.known[uid])

    @rule(present=st.sampled_from(((), (0,), (1,), (0, 1), (0, 1), (0, 1))))
    def cards_are_lost_or_come_back(self, present: tuple[int, ...]) -> None:
        self.node.present = [EVERY_CARD[index] for index in present]
        self.node.read_cards()

    @rule()
    def the_kubelet_deletes_the_slices(self) -> None:
        self.node.client.delete_all(SLICES, field_selector="")

    @rule()
    def the_slices_are_published(self) -> None:
        self.node.publisher.publish()

        cards = zip(EVERY_CARD, DEVICES, strict=True)
        there = {device for card, device in cards if card in self.node.present}
        found = published(self.node.client.list(SLICES).items)
        assert found == sorted(there - self.node.recovering())

    @invariant()
    def exactly_the_answered_claims_are_recorded_and_files_match(self) -> None:
        assert invariants.records(self.node.data_folder).keys() == self.node.answered.keys()
        assert invariants.violations(self.node) == []
        self.tally[STEPS_IN_ANY_ORDER] += 1


def test_answers_and_files_stay_consistent_in_any_order_of_events(tally: Tally) -> None:
    assert EVERY_CARD[0].vram_bytes == CARD_GIB * GIB
    world = type("World", (World,), {"tally": tally})

    run_state_machine_as_test(world, settings=bounded(50))
