"""Random sequences of events on a node: the answers hold, and no other records or files exist."""

import shutil
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
from tests.faults.modelled_node import CARD_GIB, DEVICES, EVERY_CARD, ModelledNode
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
    @rule(chosen=st.data(), device=devices, vram_gib=sizes)
    def a_claim_is_replaced_by_another_of_its_name(
        self, chosen: st.DataObject, device: str, vram_gib: int | None
    ) -> None:
        name = chosen.draw(st.sampled_from(sorted(self.node.stored)))
        self.node.client.delete(CLAIMS, name, "default")
        self.node.create(name, device, vram_gib)

    @precondition(lambda self: self.node.stored)
    @rule(chosen=st.data(), device=devices, vram_gib=sizes)
    def a_claim_is_reallocated(
        self, chosen: st.DataObject, device: str, vram_gib: int | None
    ) -> None:
        name = chosen.draw(st.sampled_from(sorted(self.node.stored)))
        found = self.node.client.get(CLAIMS, name, "default")
        found["status"] = {}
        self.node.allocate(self.node.client.replace_status(CLAIMS, found), device, vram_gib)

    @precondition(lambda self: self.node.stored)
    @rule(chosen=st.data())
    def the_kubelet_prepares_a_claim(self, chosen: st.DataObject) -> None:
        self.node.prepare(chosen.draw(st.sampled_from([*self.node.stored.values()])))

    @precondition(lambda self: self.node.known)
    @rule(chosen=st.data())
    def the_kubelet_prepares_a_claim_that_may_be_gone(self, chosen: st.DataObject) -> None:
        self.node.prepare(chosen.draw(st.sampled_from([*self.node.known.values()])))

    @precondition(lambda self: self.node.known)
    @rule(chosen=st.data())
    def the_kubelet_unprepares_a_claim(self, chosen: st.DataObject) -> None:
        self.node.unprepare(chosen.draw(st.sampled_from([*self.node.known.values()])))

    @precondition(lambda self: self.node.known)
    @rule(chosen=st.data())
    def the_api_server_is_away_while_claims_come_and_go(self, chosen: st.DataObject) -> None:
        claims = chosen.draw(st.lists(st.sampled_from([*self.node.known.values()]), max_size=3))
        self.node.stop_api_server()
        for claim in claims:
            self.node.prepare(claim)
            if chosen.draw(st.booleans()):
                self.node.unprepare(claim)
        with pytest.raises(RetryableError):
            self.node.publisher.publish()
        self.node.start_api_server()

    @rule()
    def the_plugin_restarts(self) -> None:
        self.node.restart_plugin()

    @rule()
    def the_node_reboots(self) -> None:
        for folder in (self.node.cdi_folder, self.node.limits_folder, self.node.metadata_folder):
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
        for item in self.node.client.list(SLICES).items:
            self.node.client.delete(SLICES, item["metadata"]["name"])

    @rule()
    def the_slices_are_published(self) -> None:
        self.node.publisher.publish()

        cards = zip(EVERY_CARD, DEVICES, strict=True)
        there = sorted(device for card, device in cards if card in self.node.present)
        expected = [device for device in there if device not in self.node.recovering()]
        assert published(self.node.client.list(SLICES).items) == expected

    @invariant()
    def exactly_the_answered_claims_are_recorded(self) -> None:
        assert invariants.records(self.node.data_folder).keys() == self.node.answered.keys()

    @invariant()
    def files_match_the_records(self) -> None:
        assert invariants.violations(self.node) == []
        self.tally[STEPS_IN_ANY_ORDER] += 1


def test_answers_and_files_stay_consistent_in_any_order_of_events(tally: Tally) -> None:
    assert EVERY_CARD[0].vram_bytes == CARD_GIB * GIB
    world = type("World", (World,), {"tally": tally})

    run_state_machine_as_test(world, settings=bounded(50))
