"""Whatever happens to a node, in any order: what was answered holds, and nothing else is there.

A model knows what each claim must be answered. Ledger, files, preparer and publisher are real, and
so are the requests to a simulated API server in this process.
"""

import itertools
import shutil
import tempfile
import time
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

from tensorfusion_dra.cluster.api import Api
from tensorfusion_dra.cluster.claims import Claims
from tensorfusion_dra.cluster.nodes import Nodes
from tensorfusion_dra.cluster.resource_api import ResourceApi
from tensorfusion_dra.cluster.slices import Slices
from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims import cdi
from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.devices.gpu import Inventory
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.core.kubernetes.quantity import GIB
from tensorfusion_dra.driver.outcomes import Failure
from tensorfusion_dra.driver.prepare import Preparer
from tensorfusion_dra.driver.publish import Publisher
from tensorfusion_dra.driver.recover import recover
from tensorfusion_dra.driver.repairs import Repairs
from tensorfusion_dra.simulator.apiserver import ApiServer
from tensorfusion_dra.simulator.rest import CLAIMS, NODES, SLICES, Client
from tensorfusion_dra.state.publishing_right import PublishingRight
from tests.faults import invariants
from tests.faults.mutations import bounded
from tests.faults.node import published
from tests.support.builders.devices import NODE
from tests.support.ports import EventsInMemory
from tests.support.prepared_node import Setup, share_result, simulated_inventory
from tests.support.tally import STEPS_IN_ANY_ORDER, Tally
from tests.support.waiting import PATIENCE_SECONDS

EVERY_CARD: Final = simulated_inventory().gpus
DEVICES: Final = [f"gpu-{card.uuid.removeprefix('GPU-').lower()}" for card in EVERY_CARD]
CARD_GIB: Final = 80
NAMES: Final = "abcdefgh"

devices = st.sampled_from(DEVICES)
sizes = st.sampled_from((1, 10, 10, 30, 30, 50, 80, None))
damages = st.sampled_from((None, b"", b"{", b"{}\n"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A claim as the API server has it, or had it.

    Attributes:
        vram_gib: None stands for the whole card.
    """

    ref: ClaimRef
    device: str
    vram_gib: int | None


class World(RuleBasedStateMachine):
    """One node, its API server, and what is expected of them."""

    tally: Tally

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="tff-"))
        self.server = ApiServer()
        self.server.start()
        self.is_up = True
        self.client = Client(self.server.url)
        node: dict[str, Any] = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE.name}}
        self.client.create(NODES, node)
        self.present = list(EVERY_CARD)
        self.setup = Setup(self.folder)
        self.preparer, self.publisher = self.built()
        self.pods = itertools.count()
        self.stored: dict[str, Stored] = {}
        self.known: dict[str, Stored] = {}
        self.answered: dict[str, object] = {}
        self.recorded: dict[str, Stored] = {}
        self.read: set[str] = set()  # UIDs, since the plugin or the kubelet was started

    def teardown(self) -> None:
        self.setup.ledger.close()
        if self.is_up:
            self.server.stop()
        shutil.rmtree(self.folder)

    @precondition(lambda self: len(self.stored) < len(NAMES))
    @rule(device=devices, vram_gib=sizes)
    def a_claim_is_allocated(self, device: str, vram_gib: int | None) -> None:
        """By a scheduler that does not always count right."""
        self.create(next(name for name in NAMES if name not in self.stored), device, vram_gib)

    @precondition(lambda self: self.stored)
    @rule(chosen=st.data(), device=devices, vram_gib=sizes)
    def a_claim_is_replaced_by_another_of_its_name(
        self, chosen: st.DataObject, device: str, vram_gib: int | None
    ) -> None:
        name = chosen.draw(st.sampled_from(sorted(self.stored)))
        self.client.delete(CLAIMS, name, "default")
        self.create(name, device, vram_gib)

    @precondition(lambda self: self.stored)
    @rule(chosen=st.data(), device=devices, vram_gib=sizes)
    def a_claim_is_allocated_anew_while_the_kubelet_restarts(
        self, chosen: st.DataObject, device: str, vram_gib: int | None
    ) -> None:
        name = chosen.draw(st.sampled_from(sorted(self.stored)))
        found = self.client.get(CLAIMS, name, "default")
        found["status"] = {}
        self.allocate(self.client.replace_status(CLAIMS, found), device, vram_gib)
        self.the_kubelet_restarts()

    @rule()
    def the_kubelet_restarts(self) -> None:
        self.preparer.forget_recent_reads()
        self.read.clear()

    @precondition(lambda self: self.stored)
    @rule(chosen=st.data())
    def the_kubelet_prepares(self, chosen: st.DataObject) -> None:
        self.prepare(chosen.draw(st.sampled_from([*self.stored.values()])))

    @precondition(lambda self: self.known)
    @rule(chosen=st.data())
    def the_kubelet_prepares_what_may_be_gone(self, chosen: st.DataObject) -> None:
        self.prepare(chosen.draw(st.sampled_from([*self.known.values()])))

    @precondition(lambda self: self.known)
    @rule(chosen=st.data())
    def the_kubelet_unprepares(self, chosen: st.DataObject) -> None:
        self.unprepare(chosen.draw(st.sampled_from([*self.known.values()])))

    @precondition(lambda self: self.known)
    @rule(chosen=st.data())
    def the_api_server_is_away_while_claims_come_and_go(self, chosen: st.DataObject) -> None:
        claims = chosen.draw(st.lists(st.sampled_from([*self.known.values()]), max_size=3))
        self.server.stop()
        self.is_up = False
        for claim in claims:
            self.prepare(claim)
            if chosen.draw(st.booleans()):
                self.unprepare(claim)
        with pytest.raises(RetryableError):
            self.publisher.publish()
        self.server.start()
        self.is_up = True

    @rule()
    def the_plugin_restarts(self) -> None:
        self.setup = self.setup.restarted()
        self.read_cards()
        self.recover()
        self.preparer, self.publisher = self.built()
        self.read.clear()

    @rule()
    def the_node_reboots(self) -> None:
        for folder in (self.cdi_folder, self.limits_folder):
            shutil.rmtree(folder, ignore_errors=True)
        self.the_plugin_restarts()

    @precondition(lambda self: self.answered_on_working_cards())
    @rule(chosen=st.data(), damage=damages)
    def a_spec_is_damaged_and_its_claim_asked_for_again(
        self, chosen: st.DataObject, damage: bytes | None
    ) -> None:
        uid = chosen.draw(st.sampled_from(self.answered_on_working_cards()))
        spec = self.cdi_folder / f"{names.CDI_FILE_PREFIX}{uid}.json"
        spec.unlink()
        if damage is not None:
            spec.write_bytes(damage)

        self.prepare(self.known[uid])
        if uid not in self.read:  # it was refused, so the next round of upkeep writes the spec
            self.recover()

    @rule(present=st.sampled_from(((), (0,), (1,), (0, 1), (0, 1), (0, 1))))
    def cards_are_lost_or_come_back(self, present: tuple[int, ...]) -> None:
        self.present = [EVERY_CARD[index] for index in present]
        self.read_cards()

    @rule()
    def the_kubelet_wipes_the_slices(self) -> None:
        for item in self.client.list(SLICES).items:
            self.client.delete(SLICES, item["metadata"]["name"])

    @rule()
    def the_slices_are_published(self) -> None:
        self.publisher.publish()

        cards = zip(EVERY_CARD, DEVICES, strict=True)
        there = sorted(device for card, device in cards if card in self.present)
        expected = [device for device in there if device not in self.recovering()]
        assert published(self.client.list(SLICES).items) == expected

    @invariant()
    def what_was_answered_is_recorded_and_nothing_else(self) -> None:
        assert invariants.records(self.data_folder).keys() == self.answered.keys()

    @invariant()
    def files_follow_from_the_records(self) -> None:
        assert invariants.violations(self) == []
        self.tally[STEPS_IN_ANY_ORDER] += 1

    def create(self, name: str, device: str, vram_gib: int | None) -> None:
        requests = [{"name": "gpu", "exactly": {"deviceClassName": names.DEVICE_CLASS}}]
        created = self.client.create(
            CLAIMS,
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {"name": name, "namespace": "default"},
                "spec": {"devices": {"requests": requests}},
            },
        )
        self.allocate(created, device, vram_gib)

    def allocate(self, claim: dict[str, Any], device: str, vram_gib: int | None) -> None:
        name, uid = claim["metadata"]["name"], claim["metadata"]["uid"]
        result = share_result(device, tflops="1", vram=f"{vram_gib}Gi")
        if vram_gib is None:
            result = {key: result[key] for key in ("request", "driver", "pool", "device")}
        # A device that is given alone has no share ID; its pod tells one allocation from the next.
        pod = {"resource": "pods", "name": name, "uid": f"pod-{next(self.pods)}"}
        claim["status"] = {
            "allocation": {"devices": {"results": [result]}},
            "reservedFor": [pod],
        }
        self.client.replace_status(CLAIMS, claim)
        ref = ClaimRef(namespace="default", name=name, uid=uid)
        self.stored[name] = self.known[ref.uid] = Stored(ref=ref, device=device, vram_gib=vram_gib)

    def prepare(self, claim: Stored) -> None:
        uid = claim.ref.uid
        is_current = self.stored[claim.ref.name] is claim
        was_read = uid in self.read
        if self.is_up and is_current and not was_read and self.recorded.get(uid) is not claim:
            self.forget(uid)  # a record of an earlier allocation goes before anything else
        expected = self.expected(claim)
        # What needs an API server that is away is not waited for long.
        in_vain = expected == "refused" and not self.is_up
        deadline = time.monotonic() + (0.1 if in_vain else PATIENCE_SECONDS)

        outcome = self.preparer.prepare([claim.ref], deadline=deadline)[claim.ref.uid]

        if expected == "refused" or ("refused" in expected and isinstance(outcome, Failure)):
            assert isinstance(outcome, Failure), outcome
            assert str(claim.ref) in outcome.text
        else:
            assert isinstance(outcome, PreparedClaim), outcome
            assert self.answered.setdefault(uid, _told(outcome)) == _told(outcome)
            self.recorded.setdefault(uid, claim)
        if self.is_up and is_current:
            self.read.add(uid)

    def unprepare(self, claim: Stored) -> None:
        outcome = self.preparer.unprepare([claim.ref], deadline=time.monotonic() + PATIENCE_SECONDS)

        assert outcome == {claim.ref.uid: None}
        self.forget(claim.ref.uid)

    def forget(self, uid: str) -> None:
        self.answered.pop(uid, None)
        self.recorded.pop(uid, None)
        self.read.discard(uid)

    def expected(self, claim: Stored) -> str:
        is_there = EVERY_CARD[DEVICES.index(claim.device)] in self.present
        is_current = self.stored[claim.ref.name] is claim
        if claim.ref.uid not in self.read and not (self.is_up and is_current):
            return "refused"
        if claim.device in self.recovering():
            return "as before or refused" if claim.ref.uid in self.answered else "refused"
        if claim.ref.uid in self.answered:
            return "as before" if is_there else "refused"
        others = [other for other in self.recorded.values() if other.device == claim.device]
        taken = sum(other.vram_gib or CARD_GIB for other in others)
        shared = None not in (claim.vram_gib, *(other.vram_gib for other in others))
        fits = (shared or not others) and taken + (claim.vram_gib or CARD_GIB) <= CARD_GIB
        return "new" if self.is_up and is_current and is_there and fits else "refused"

    def recover(self) -> None:
        recover(self.setup.ledger, self.setup.projection, boot_id=self.setup.boot_id)

    def answered_on_working_cards(self) -> list[str]:
        """The claims that are answered again, and not refused because their card is away."""
        return [
            uid for uid in sorted(self.answered) if self.expected(self.known[uid]) == "as before"
        ]

    def recovering(self) -> set[str]:
        """The devices of cards that were away and have to stay healthy for a while."""
        seen = self.setup.catalog.current()
        return {item.subject.lower() for item in seen.left_out} if seen else set()

    def read_cards(self) -> None:
        self.setup.discovery.inventory = Inventory(gpus=tuple(self.present))
        self.setup.catalog.refresh()

    def built(self) -> tuple[Preparer, Publisher]:
        api = ResourceApi(Api(self.server.kubeconfig(self.folder / "kubeconfig")))
        publisher = Publisher(
            self.setup.catalog,
            Slices(api, node_name=NODE.name),
            Nodes(api.api, node_name=NODE.name),
            EventsInMemory(),
            right=PublishingRight(self.data_folder),
            repairs=Repairs(clock=itertools.count(step=3600).__next__),  # between the steps
        )
        return self.setup.with_claims(Claims(api)), publisher

    @property
    def data_folder(self) -> Path:
        return self.folder / "plugin"

    @property
    def cdi_folder(self) -> Path:
        return self.setup.cdi_folder

    @property
    def limits_folder(self) -> Path:
        return self.setup.limits_folder

    @property
    def tensor_fusion_root(self) -> Path:
        return Path("/run/tensor-fusion")


def _told(claim: PreparedClaim) -> object:
    """What the kubelet keeps of an answer."""
    given = [(each.pool, each.device, each.share_id) for each in claim.shares]
    return given, cdi.ids_by_share(claim)


def test_what_was_answered_holds_whatever_happens(tally: Tally) -> None:
    assert EVERY_CARD[0].vram_bytes == CARD_GIB * GIB
    world = type("World", (World,), {"tally": tally})

    run_state_machine_as_test(world, settings=bounded(50))
