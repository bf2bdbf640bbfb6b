"""The driver's own enforcer classes by their names in the settings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims.enforcer import (
    Edits,
    EnforcerKind,
    EnforcerSettings,
    Needs,
)
from tensorfusion_dra.enforcers.hami_core import HamiCore
from tensorfusion_dra.enforcers.mps import Mps
from tensorfusion_dra.enforcers.nvidia.enforcer import Nvidia
from tensorfusion_dra.enforcers.tensor_fusion.enforcer import TensorFusion
from tensorfusion_dra.core.claims.evidence import EvidencePaths
from tensorfusion_dra.core.claims.prepared import PreparedClaim, PreparedShare
from tensorfusion_dra.core.devices.gpu import Isolation

AUTO: Final = "auto"
"""Value of the setting `enforcer`: the first of `enforcers` that is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoEnforcer:
    """Enforcer `none`: the administrator says that limits are advisory.

    Containers get no limiter. They and the node still learn the limits: from the variable of each
    share and from the limits document. Also the enforcer of claims without limits, on a node where
    `auto` finds none.
    """

    name: ClassVar[str] = "none"
    enforces_hard: ClassVar[bool] = False
    enforces_compute: ClassVar[bool] = False
    enforces_memory: ClassVar[bool] = False
    counts_by_pid: ClassVar[bool] = False
    expands_memory: ClassVar[bool] = False
    fixed: frozenset[Isolation] = frozenset()
    claims_root: str = ""

    @classmethod
    def from_settings(cls, settings: EnforcerSettings) -> "NoEnforcer":
        return cls()

    def needs(self, claim: PreparedClaim) -> Needs:
        return Needs()

    def evidence_paths(self, claim: PreparedClaim) -> EvidencePaths:
        return EvidencePaths()

    def edits(self, claim: PreparedClaim, shares: Sequence[PreparedShare]) -> Edits:
        return Edits(env={names.ENV_ISOLATION_MODE: shares[0].isolation.value})


_OWN: Final[tuple[type[EnforcerKind], ...]] = (
    Nvidia,
    TensorFusion,
    HamiCore,
    Mps,
    NoEnforcer,
)
KINDS: Final[Mapping[str, type[EnforcerKind]]] = {kind.name: kind for kind in _OWN}
DEFAULT_ORDER: Final = ",".join((Nvidia.name, TensorFusion.name, HamiCore.name, Mps.name))
"""Default of the setting `enforcers`."""
