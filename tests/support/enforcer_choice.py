"""The choice of an enforcer on a node on which enforcers come and go."""

from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from tensorfusion_dra.core.claims import verdicts
from tensorfusion_dra.core.claims.enforcer import Enforcer, Sign
from tensorfusion_dra.core.claims.verdicts import Verdict
from tensorfusion_dra.enforcers.choice import CHECK_SECONDS, EnforcerChooser
from tensorfusion_dra.enforcers.none import NoEnforcer
from tensorfusion_dra.enforcers.nvidia.enforcer import Nvidia
from tests.support.ports import EventsInMemory
from tests.support.prepared_node import (
    HAMI_CORE,
    MPS,
    TENSOR_FUSION,
)
from tests.support.signs import signing

ABSENT: Final = {
    "nvidia": verdicts.not_enforced(
        verdicts.DRIVER_CANNOT_LIMIT,
        "/run/tensor-fusion/nvidia/memory-limits/socket: found No such file or directory, expected "
        "the container memory-limits",
    ),
    "tensor-fusion": verdicts.not_enforced(
        verdicts.LIMITER_MISSING, "/run/tensor-fusion/libcuda_limiter.so: not found"
    ),
    "hami-core": verdicts.not_enforced(
        verdicts.LIMITER_MISSING, "/usr/local/vgpu/libvgpu.so.1: not found"
    ),
    "mps": verdicts.not_enforced(
        verdicts.DAEMON_SILENT,
        "no MPS daemon answers at /run/nvidia/mps/pipe/control: No such file or directory",
    ),
}
INSTALLED: Final = verdicts.unknown(verdicts.LIBRARY_INSTALLED, "the library is there")
ANSWERS: Final = verdicts.enforced(
    verdicts.ENFORCER_ALIVE, "the MPS daemon answers at /run/nvidia/mps/pipe/control"
)
KINDS: Final = {each.name: each for each in (Nvidia(), TENSOR_FUSION, HAMI_CORE, MPS, NoEnforcer())}
NOW: Final = datetime(2026, 3, 1, tzinfo=UTC)


class Chooser:
    """A chooser with a clock that a test moves, on a node on which enforcers come and go.

    Attributes:
        present: Names of the enforcers that are there.
        dispensable: Names of those without which claims are prepared.
        read: Names of the enforcers whose signs were read.
    """

    def __init__(self, *candidates: str, is_auto: bool = True, **more: Any) -> None:
        self.seconds, self.time = 0.0, NOW
        self.present: set[str] = set()
        self.absent = dict(ABSENT)
        self.dispensable: set[str] = set()
        self.read: list[str] = []
        self.events = EventsInMemory()
        self.changes = 0
        kinds = (KINDS[name] for name in candidates or ABSENT)
        self.chooser = EnforcerChooser(
            {kind.name: signing(kind, partial(self._sign, kind)) for kind in kinds},
            is_auto=is_auto,
            on_change=self._changed,
            now=lambda: self.time,
            clock=lambda: self.seconds,
            **{"is_required": False, **more},
        )

    def _sign(self, enforcer: Enforcer) -> Sign:
        self.read.append(enforcer.name)
        if isinstance(enforcer, NoEnforcer):
            return enforcer.sign()
        if enforcer.name not in self.present:
            return Sign(
                verdict=self.absent[enforcer.name], may_be_missing=enforcer.name in self.dispensable
            )
        return Sign(verdict=INSTALLED if enforcer.name == "hami-core" else ANSWERS)

    def _changed(self) -> None:
        self.changes += 1

    def chosen(self, *present: str) -> str:
        self.present = {*present}
        return self.chooser.of_new_claim().enforcer

    def current(self) -> Verdict:
        assert self.chooser.current is not None
        return self.chooser.current.verdict

    def check(self, *present: str, after: float = CHECK_SECONDS) -> None:
        self.present = {*present}
        self.seconds += after
        self.chooser.check(self.events.warn)
