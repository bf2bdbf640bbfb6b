"""The driver's own enforcer classes by their names in the settings."""

from collections.abc import Mapping
from typing import Final

from tensorfusion_dra.core.claims.enforcers.enforcer import EnforcerKind
from tensorfusion_dra.core.claims.enforcers.hami_core import HamiCore
from tensorfusion_dra.core.claims.enforcers.mps import Mps
from tensorfusion_dra.core.claims.enforcers.tensor_fusion import TensorFusion

_OWN: Final[tuple[type[EnforcerKind], ...]] = (TensorFusion, HamiCore, Mps)
KINDS: Final[Mapping[str, type[EnforcerKind]]] = {kind.name: kind for kind in _OWN}
