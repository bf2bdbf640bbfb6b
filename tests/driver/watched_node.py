"""A watch over limits whose clock and signs a test sets."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.enforcement.signs import (
    Daemon,
    FileSign,
    NodeSigns,
    Places,
    SharedMemory,
    Signs,
)
from tensorfusion_dra.core.claims.enforcers.enforcer import Enforcer
from tensorfusion_dra.core.claims.enforcers.hami_core import HamiCore
from tensorfusion_dra.core.claims.enforcers.mps import Mps
from tensorfusion_dra.core.claims.enforcers.tensor_fusion import TensorFusion
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.driver.enforcement_watch import (
    LOOK_SECONDS,
    EnforcementAnnouncer,
    EnforcementWatch,
)
from tensorfusion_dra.state import saved_state
from tensorfusion_dra.state.saved_state import SavedState
from tests.support.builders.prepared_claims import POD, limit, prepared_claim, prepared_share
from tests.support.ports import EventsInMemory

ENFORCERS: Final[Mapping[str, Enforcer]] = {
    "tensor-fusion": TensorFusion(),
    "hami-core": HamiCore(library="/usr/local/vgpu/libvgpu.so.1"),
    "mps": Mps(),
}
CLAIM: Final = prepared_claim(prepared_share(0, limit(25, 20)), enforcer="tensor-fusion")
START: Final = datetime(2026, 3, 1, tzinfo=UTC)
HEARTBEAT: Final = 1_700_000_000


class SignsInMemory:
    """Signs of a hypervisor that serves every pod, until a test changes something."""

    def __init__(self) -> None:
        self.heartbeat = HEARTBEAT
        self.processes = 1
        self.found = True
        self.trouble_of_daemon = ""
        self.read: list[Places] = []

    def of_claim(self, places: Places) -> Signs:
        self.read.append(places)
        memory = SharedMemory(
            path=places.shared_memory,
            found=self.found,
            heartbeat=self.heartbeat,
            limits={"GPU-0": limit(25, 20)},
            processes=self.processes,
        )
        daemon = Daemon(path=places.socket, trouble=self.trouble_of_daemon)
        return Signs(read_at=HEARTBEAT, shared_memory=memory, daemon=daemon)

    def of_node(self) -> NodeSigns:
        hypervisor = "device plugin answers" if self.heartbeat == HEARTBEAT else ""
        files = (FileSign(path="/libcuda_limiter.so"),)
        return NodeSigns(read_at=HEARTBEAT, files=files, hypervisor=hypervisor, asked=("nothing",))


class Setup:
    """A watch with a clock that a test moves; each Setup on one folder is one process."""

    def __init__(self, folder: Path, enforcers: Mapping[str, Enforcer] = ENFORCERS) -> None:
        self.seconds = 0.0
        self.signs = SignsInMemory()
        self.events = EventsInMemory()
        self.reported: list[str] = []
        self.announcer = EnforcementAnnouncer(self.events)
        self.watch = EnforcementWatch(
            self.signs,
            enforcers,
            SavedState(folder, saved_state.LIMITS),
            clock=lambda: self.seconds,
            now=self.now,
        )

    def now(self) -> datetime:
        return START + timedelta(seconds=self.seconds)

    def look(self, after_seconds: float = LOOK_SECONDS) -> None:
        self.seconds += after_seconds
        self.watch.look(lambda claim: self.reported.append(claim.ref.name), self.announcer)
        self.announcer.write_events()

    def states(self, claim: PreparedClaim = CLAIM) -> list[tuple[str, str]]:
        standing = self.watch.standing(claim)
        return [(each.verdict.state.value, each.verdict.reason) for each in standing]


def named(name: str, **changes: Any) -> PreparedClaim:
    ref = ClaimRef(namespace="team-a", name=name, uid=f"uid-{name}")
    pod = replace(POD, name=f"pod-{name}", uid=f"pod-uid-{name}")
    return replace(CLAIM, **{"ref": ref, "pods": (pod,), **changes})


def prepared(setup: Setup, claim: PreparedClaim = CLAIM) -> None:
    """Prepare a claim and write its status."""
    setup.watch.note(claim)
    setup.watch.standing(claim)
