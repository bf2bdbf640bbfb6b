"""A node that prepares claims with a real store and real folders."""

import json
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.enforcer import Enforcer, EnforcerFacts, Sign
from tensorfusion_dra.core.claims.lending import LendingRules
from tensorfusion_dra.core.claims.ports import ClaimSource, Events
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.devices.gpu import Gpu, Inventory, Isolation
from tensorfusion_dra.discovery.simulated import simulated_discovery
from tensorfusion_dra.driver.catalog_follower import CatalogFollower
from tensorfusion_dra.driver.claim_facts import CardFiles, FactsReader
from tensorfusion_dra.driver.claim_upkeep import NodeFiles, Upkeep
from tensorfusion_dra.driver.operations import Failure, Operations
from tensorfusion_dra.driver.prepare import Preparer
from tensorfusion_dra.driver.publish import CatalogBuilder, DeviceCatalog, OtherUsersReader
from tensorfusion_dra.driver.recover import Reconciler, RecoveryReport, recover
from tensorfusion_dra.driver.stale_claims import StaleClaimCollector
from tensorfusion_dra.driver.status import StatusReporter, utc_now
from tensorfusion_dra.enforcers.choice import EnforcerChooser
from tensorfusion_dra.enforcers.hami_core.enforcer import HamiCore
from tensorfusion_dra.enforcers.mig import Mig
from tensorfusion_dra.enforcers.mps.enforcer import Mps
from tensorfusion_dra.enforcers.tensor_fusion.enforcer import TensorFusion
from tensorfusion_dra.state import claim_files
from tensorfusion_dra.state.claim_store import ClaimStore
from tests.support.builders.devices import NODE
from tests.support.builders.stored_claims import allocation_result, stored_claim
from tests.support.ports import (
    ClaimsInMemory,
    DeviceNodesInMemory,
    DriverFilesInMemory,
    EventsInMemory,
    FixedDiscovery,
    HostFilesInMemory,
    OneNode,
    PodsInMemory,
)
from tests.support.signs import NOT_LOOKED_FOR, signing
from tests.support.threads import running
from tests.support.waiting import PATIENCE_SECONDS

TENSOR_FUSION: Final = TensorFusion()
HAMI_CORE: Final = HamiCore(library="/libvgpu.so.1")
MPS: Final = Mps()
ENFORCERS: Final[dict[str, Enforcer]] = {
    each.name: each for each in (TENSOR_FUSION, HAMI_CORE, MPS)
}


@cache
def simulated_inventory(text: str = "2xA100-SXM4-80GB") -> Inventory:
    return simulated_discovery.SimulatedDiscovery(text, node_name=NODE.name).read()


GPU_0, GPU_1 = (gpu.uuid.lower() for gpu in simulated_inventory().gpus)


class NoStatus:
    """Status writer that must not be called: the reporter's thread does not run here."""

    def write(self, ref: ClaimRef, devices: object) -> bool:
        raise AssertionError(f"status of {ref}: {devices}")


class RecordingReporter(StatusReporter):
    """Reporter that only records the reasons of claims, and the names of changed ones."""

    def __init__(self) -> None:
        super().__init__(NoStatus())
        self.reasons: list[tuple[str, str]] = []
        self.changed: list[str] = []

    def report(self, claim: PreparedClaim, *, reason: str | None = "") -> None:
        assert reason is not None
        self.reasons.append((claim.ref.name, reason))

    def report_changed(self, claim: PreparedClaim) -> None:
        self.changed.append(claim.ref.name)


class FactsOf(Mapping[str, EnforcerFacts]):
    """Facts of enforcers, also of those that a test adds later."""

    def __init__(self, enforcers: Mapping[str, Enforcer]) -> None:
        self._enforcers = enforcers

    def __getitem__(self, name: str) -> EnforcerFacts:
        return self._enforcers[name].facts

    def __iter__(self) -> Iterator[str]:
        return iter(self._enforcers)

    def __len__(self) -> int:
        return len(self._enforcers)


class Setup:
    """A node's preparer; restarted() returns a new one on the same disk."""

    def __init__(
        self,
        folder: Path,
        claims: ClaimsInMemory | None = None,
        *,
        boot_id: str = "boot-1",
        enforcer: Enforcer = TENSOR_FUSION,
        host_files: HostFilesInMemory | None = None,
        describes_devices: bool = False,
        overcommit_limits: bool = False,
    ) -> None:
        self.folder = folder
        self.boot_id = boot_id
        self.enforcer = enforcer
        self.claims = claims or ClaimsInMemory()
        self.cdi_folder = folder / "cdi"
        self.limits_folder = folder / "claims"
        self.metadata_folder = folder / "metadata"
        self.describes_devices = describes_devices
        self.host_files = host_files or HostFilesInMemory()
        own = replace(HAMI_CORE, root=str(folder / HAMI_CORE.name))
        mig = Mig(lambda: {gpu.uuid: gpu for gpu in self.read().gpus})
        self.enforcers = {**ENFORCERS, HAMI_CORE.name: own, mig.name: mig}
        self.rules = LendingRules(
            facts=FactsOf(self.enforcers),
            overcommit_limits=overcommit_limits,
        )
        self.node_files = NodeFiles(
            claim_files.cdi_specs(self.cdi_folder),
            claim_files.limits(self.limits_folder.parent),
            claim_files.device_metadata(self.metadata_folder),
            self.host_files,
            self.enforcers,
        )
        self.store = ClaimStore(
            folder / "plugin",
            rules=self.rules,
            devices_of=self.node_files.devices_of,
            with_files=self.node_files.claim_uids,
        )
        # As the end of a process does: most tests do not stop their nodes.
        weakref.finalize(self, self.store.close)
        self.discovery = FixedDiscovery(simulated_inventory())
        self.cards = CatalogBuilder(self.discovery, NODE)
        self.cards.refresh()
        self.device_nodes = DeviceNodesInMemory()
        self.driver_files = DriverFilesInMemory()
        self.pods = PodsInMemory()
        self.other_users = OtherUsersReader()
        self.reads_pods = True
        self.required: Callable[[], Sign] | None = None
        self.node_enforcer: EnforcerChooser | None = None
        self.status = StatusReporter(NoStatus())
        self.operations = Operations()
        self.preparer = self.with_claims(self.claims)

    @property
    def catalog(self) -> DeviceCatalog:
        return self.cards.catalog

    def with_claims(self, claims: ClaimSource, catalog: DeviceCatalog | None = None) -> Preparer:
        facts = FactsReader(
            catalog=catalog or self.catalog,
            other_users=self.other_users,
            files=CardFiles(device_nodes=self.device_nodes, driver_files=self.driver_files),
            pods=self.pods if self.reads_pods else None,
            enforcer=self.node_enforcer or self.named_enforcer(),
            rules=self.rules,
            isolation=Isolation.SOFT,
            boot_id=self.boot_id,
            describes_devices=self.describes_devices,
        )
        return Preparer(claims, self.store, facts, self.upkeep(), self.operations)

    def upkeep(self) -> Upkeep:
        return Upkeep(self.store, self.node_files, self.enforcers, self.status)

    def named_enforcer(self) -> EnforcerChooser:
        """Return the choice of the one enforcer that the settings name."""
        enforcer = signing(self.enforcer, self.required or (lambda: NOT_LOOKED_FOR))
        return EnforcerChooser(
            {enforcer.name: enforcer},
            is_auto=False,
            is_required=self.required is not None,
            now=utc_now,
        )

    def follower(self, status: StatusReporter, events: Events) -> CatalogFollower:
        return CatalogFollower(self.catalog, self.store, self.upkeep(), status, events)

    def divide(self) -> None:
        """Divide the cards as they were read last."""
        catalog = self.catalog.current()
        assert catalog is not None
        self.upkeep().divide(catalog.by_name())

    def prepare(self, *refs: ClaimRef) -> dict[str, PreparedClaim | Failure]:
        return dict(self.preparer.prepare(refs, deadline=time.monotonic() + PATIENCE_SECONDS))

    def annotate(self, ref: ClaimRef, **annotations: str) -> None:
        """Give a stored claim these annotations of ours, such as `vram_limit="8Gi"`."""
        self.claims.stored[str(ref)]["metadata"]["annotations"] = {
            f"tensor-fusion.ai/{key.replace('_', '-')}": text for key, text in annotations.items()
        }

    def prepared(self, ref: ClaimRef) -> PreparedClaim:
        """Prepare a claim that is not refused."""
        outcome = self.prepare(ref)[ref.uid]
        assert isinstance(outcome, PreparedClaim), outcome
        return outcome

    def record(self, ref: ClaimRef) -> PreparedClaim | None:
        return next((each for each in self.store.claims() if each.ref.uid == ref.uid), None)

    def refused(self, ref: ClaimRef) -> str:
        """Prepare a claim that is refused; return the error."""
        return error_of(self.prepare(ref)[ref.uid])

    def unprepare(self, *refs: ClaimRef) -> dict[str, Failure | None]:
        return dict(self.preparer.unprepare(refs, deadline=time.monotonic() + PATIENCE_SECONDS))

    def refresh(self, ref: ClaimRef) -> None:
        """Read again what a claim's record has of the node, as after a reboot."""
        self.preparer.refresh(ref, deadline=time.monotonic() + PATIENCE_SECONDS)

    def recover(self) -> RecoveryReport:
        """Run one round of recovery."""
        return recover(self.store, self.node_files, boot_id=self.boot_id)

    def files(self) -> dict[str, bytes]:
        """Return the content of all CDI specs, limits documents and device metadata by name."""
        folders = (self.cdi_folder, self.limits_folder, self.metadata_folder)
        paths = (path for folder in folders if folder.exists() for path in folder.iterdir())
        return {path.name: path.read_bytes() for path in paths}

    def read(self) -> Inventory:
        """Return what the last reading of the cards found."""
        return self.discovery.inventory or Inventory(gpus=())

    def use_cards(self, *cards: Gpu) -> None:
        """Have the node find these cards from now on."""
        self.discovery.inventory = Inventory(gpus=cards)
        self.cards.refresh()

    def use(self, **parts: Any) -> None:
        """Replace these attributes of the node, and prepare with them from now on."""
        vars(self).update(parts)
        self.preparer = self.with_claims(self.claims)

    def spec_of(self, ref: ClaimRef) -> Any:
        path = self.cdi_folder / spec_file(ref.uid)
        return json.loads(path.read_text()) if path.exists() else None

    def restarted(self) -> "Setup":
        self.store.close()
        return Setup(
            self.folder,
            self.claims,
            boot_id=self.boot_id,
            enforcer=self.enforcer,
            describes_devices=self.describes_devices,
        )


def put_claim(
    setup: Setup, name: str, *results: dict[str, Any], uid: str = "", pods: Sequence[str] = ()
) -> ClaimRef:
    """Store a claim of the pod with its name, or of these pods."""
    claim = stored_claim(name, *results, uid=uid)
    if pods:
        claim["status"]["reservedFor"] = [
            {"resource": "pods", "name": pod, "uid": f"uid-of-{pod}"} for pod in pods
        ]
    return setup.claims.put(claim)


def put_annotated_claim(
    setup: Setup, name: str, annotations: dict[str, str], **amounts: Any
) -> ClaimRef:
    claim = stored_claim(name, share_result(**amounts))
    claim["metadata"]["annotations"] = annotations
    return setup.claims.put(claim)


def limits_document(setup: Setup, ref: ClaimRef) -> Any:
    return json.loads((setup.limits_folder / f"{ref.uid}.json").read_text())


def limits_of(setup: Setup, ref: ClaimRef) -> Any:
    return [each.get("limits") for each in limits_document(setup, ref)["shares"]]


def share_result(device: str | None = GPU_0, **more: Any) -> Any:
    return allocation_result(device, **{"tflops": "100", "vram": "16Gi", **more})


def spec_file(claim_uid: str) -> str:
    return f"tensor-fusion.ai-vgpu_{claim_uid}.json"


def real_gpu(card: Gpu, *, minor: int | None) -> Gpu:
    return replace(card, minor=minor, simulated=False)


def use_real_cards(setup: Setup) -> None:
    """Replace the node's simulated cards by real ones, whose device nodes containers need."""
    setup.use_cards(*(real_gpu(gpu, minor=gpu.index) for gpu in simulated_inventory().gpus))


def error_of(outcome: object) -> str:
    assert isinstance(outcome, Failure)
    return outcome.text


@contextmanager
def reconciling(
    node: Setup, *, seconds: float = 0.05, events: Events | None = None
) -> Iterator[Reconciler]:
    """Run the reconciler during the block."""
    reconciler = Reconciler(node.store, node.node_files, boot_id=node.boot_id, seconds=seconds)
    stale_claims = StaleClaimCollector(
        node.claims, OneNode(), node.preparer, gone_seconds=0.1, check_seconds=0.05
    )
    reconciler.begin()

    def run() -> None:
        reconciler.run(
            node.preparer,
            node.status,
            stale_claims,
            events or EventsInMemory(),
        )

    with running(run, stop=reconciler.stop):
        yield reconciler
