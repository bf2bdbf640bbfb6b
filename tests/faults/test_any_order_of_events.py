"""Random sequences of events on a node: the answers hold, and no other records or files exist.

Store, files, preparer and publisher are real, and so are the requests to a simulated API server in
this process. A model beside them, a few dictionaries, predicts the answer to every call of the
kubelet. It predicts one of these outcomes for a prepare call:

- ``new``: the claim is admitted, because it is current and fits on its card;
- ``as before``: the claim has a record, and the answer equals the earlier one;
- ``refused``: for example because the card is full or away, or the API server is away;
- ``as before or refused``: the card is back, but has to stay healthy for a while first.
"""

import itertools
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from dra_simulator.apiserver import ApiServer
from dra_simulator.rest import CLAIMS, NODES, SLICES, Client
from tensorfusion_dra.cluster.api import Api
from tensorfusion_dra.cluster.objects import ApiClaims, ApiNodes
from tensorfusion_dra.cluster.slices import ApiSlices
from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims import cdi
from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.core.kubernetes.quantity import GIB
from tensorfusion_dra.driver.operations import Failure
from tensorfusion_dra.driver.prepare import Preparer
from tensorfusion_dra.driver.publish import Publisher, Repairs
from tensorfusion_dra.driver.recover import recover
from tensorfusion_dra.state.publisher_lease import PublisherLease
from tests.faults import invariants
from tests.faults.mutations import bounded
from tests.faults.node import published
from tests.support.builders.devices import NODE
from tests.support.builders.documents import claim_document
from tests.support.objects import node
from tests.support.ports import EventsInMemory
from tests.support.prepared_node import Setup, share_result, simulated_inventory
from tests.support.tally import STEPS_IN_ANY_ORDER, Tally
from tests.support.waiting import PATIENCE_SECONDS

EVERY_CARD: Final = simulated_inventory().gpus
DEVICES: Final = [f"gpu-{card.uuid.removeprefix('GPU-').lower()}" for card in EVERY_CARD]
CARD_GIB: Final = 80

pytestmark = pytest.mark.sweep
NAMES: Final = "abcdefgh"
devices = st.sampled_from(DEVICES)
sizes = st.sampled_from((1, 10, 10, 30, 30, 50, 80, None))
damages = st.sampled_from((None, b"", b"{", b"{}\n"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelledClaim:
    """An allocated claim that the API server has, or had.

    Attributes:
        vram_gib: None stands for the whole card.
    """

    ref: ClaimRef
    device: str
    vram_gib: int | None


class ModelledNode:
    """One node, its API server, and the model of both.

    Attributes:
        present: Cards that the node has now.
        stored: Claims that the API server has now, by name.
        known: All claims that there ever were, by UID.
        answered: By UID, the answer to each claim that is prepared.
        recorded: Claims that have a record, by UID.
    """

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="tff-"))
        self.server = ApiServer()
        self.server.start()
        self.is_up = True
        self.client = Client(self.server.url)
        self.client.create(NODES, node(NODE.name))
        self.present = list(EVERY_CARD)
        self.setup = Setup(self.folder, describes_devices=True)
        self.data_folder = self.folder / "plugin"
        self.cdi_folder = self.setup.cdi_folder
        self.metadata_folder = self.setup.metadata_folder
        self.limits_folder = self.setup.limits_folder
        self.tensor_fusion_root = Path("/run/tensor-fusion")
        self.preparer, self.publisher = self._build()
        self._pods = itertools.count()
        self.stored: dict[str, ModelledClaim] = {}
        self.known: dict[str, ModelledClaim] = {}
        self.answered: dict[str, object] = {}
        self.recorded: dict[str, ModelledClaim] = {}

    def close(self) -> None:
        """Stop everything and remove the disk."""
        if self.is_up:
            self.server.stop()
        shutil.rmtree(self.folder)

    @contextmanager
    def without_api_server(self) -> Iterator[None]:
        """Stop the API server for the block; its objects stay."""
        self.server.stop()
        self.is_up = False
        yield
        self.server.start()
        self.is_up = True

    def create(self, name: str, device: str, vram_gib: int | None) -> None:
        """Create and allocate a claim."""
        document = claim_document(name)
        document["metadata"]["namespace"] = "default"
        self.allocate(self.client.create(CLAIMS, document), device, vram_gib)

    def allocate(self, claim: dict[str, Any], device: str, vram_gib: int | None) -> None:
        """Write an allocation into the claim; it may be more than the card has left."""
        name, uid = claim["metadata"]["name"], claim["metadata"]["uid"]
        result = share_result(device, tflops="1", vram=f"{vram_gib}Gi")
        if vram_gib is None:
            result = {key: result[key] for key in ("request", "driver", "pool", "device")}
        # An exclusive device has no share ID, so the pod distinguishes this allocation from others.
        pod = {"resource": "pods", "name": name, "uid": f"pod-{next(self._pods)}"}
        status = {"allocation": {"devices": {"results": [result]}}, "reservedFor": [pod]}
        self.client.replace_status(CLAIMS, {**claim, "status": status})
        ref = ClaimRef(namespace="default", name=name, uid=uid)
        self.stored[name] = self.known[uid] = ModelledClaim(
            ref=ref, device=device, vram_gib=vram_gib
        )

    def prepare(self, claim: ModelledClaim) -> None:
        """Prepare the claim and compare the answer with the prediction."""
        uid = claim.ref.uid
        is_current = self.stored[claim.ref.name] is claim
        if self.is_up and is_current and self.recorded.get(uid) is not claim:
            self._forget(uid)  # a record of an earlier allocation is removed before anything else
        expected = self.expected(claim)
        # Do not wait long for an API server that is known to be away.
        in_vain = expected == "refused" and not self.is_up
        deadline = time.monotonic() + (0.1 if in_vain else PATIENCE_SECONDS)

        outcome = self.preparer.prepare([claim.ref], deadline=deadline)[uid]

        if expected == "refused" or ("refused" in expected and isinstance(outcome, Failure)):
            assert isinstance(outcome, Failure), outcome
            assert str(claim.ref) in outcome.text
        else:
            assert isinstance(outcome, PreparedClaim), outcome
            # What the kubelet keeps of an answer
            given = [(each.pool, each.device, each.share_id) for each in outcome.shares]
            answer = (given, cdi.ids_by_share(outcome))
            assert self.answered.setdefault(uid, answer) == answer
            self.recorded.setdefault(uid, claim)

    def unprepare(self, claim: ModelledClaim) -> None:
        """Unprepare the claim, which always works."""
        outcome = self.preparer.unprepare([claim.ref], deadline=time.monotonic() + PATIENCE_SECONDS)

        assert outcome == {claim.ref.uid: None}
        self._forget(claim.ref.uid)

    def _forget(self, uid: str) -> None:
        self.answered.pop(uid, None)
        self.recorded.pop(uid, None)

    def expected(self, claim: ModelledClaim) -> str:
        """Return the predicted outcome of a prepare call."""
        is_there = EVERY_CARD[DEVICES.index(claim.device)] in self.present
        if not (self.is_up and self.stored[claim.ref.name] is claim):
            return "refused"
        if claim.device in self.recovering():
            return "as before or refused" if claim.ref.uid in self.answered else "refused"
        if claim.ref.uid in self.answered:
            return "as before" if is_there else "refused"
        sizes = [other.vram_gib for other in self.recorded.values() if other.device == claim.device]
        shared = None not in (claim.vram_gib, *sizes) or not sizes
        fits = shared and sum(size or CARD_GIB for size in (claim.vram_gib, *sizes)) <= CARD_GIB
        return "new" if is_there and fits else "refused"

    def answered_on_working_cards(self) -> list[str]:
        """Return the UIDs of prepared claims whose next prepare call is not refused."""
        return [
            uid for uid in sorted(self.answered) if self.expected(self.known[uid]) == "as before"
        ]

    def recovering(self) -> set[str]:
        """Return the devices of cards that were away and have to stay healthy for a while."""
        seen = self.setup.catalog.current()
        return {item.subject.lower() for item in seen.left_out} if seen else set()

    def read_cards(self) -> None:
        """Read the cards that are present now."""
        self.setup.use_cards(*self.present)

    def restart_plugin(self) -> None:
        """Start a new plugin on the same disk."""
        self.setup = self.setup.restarted()
        self.read_cards()
        recover(self.setup.store, self.setup.node_files, boot_id=self.setup.boot_id)
        self.preparer, self.publisher = self._build()

    def _build(self) -> tuple[Preparer, Publisher]:
        api = Api(self.server.kubeconfig(self.folder / "kubeconfig"))
        publisher = Publisher(
            self.setup.catalog,
            ApiSlices(api, node_name=NODE.name),
            ApiNodes(api, node_name=NODE.name),
            EventsInMemory(),
            lease=PublisherLease(self.data_folder),
            repairs=Repairs(
                clock=itertools.count(step=3600).__next__
            ),  # each reading is an hour later
        )
        return self.setup.with_claims(ApiClaims(api)), publisher


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
