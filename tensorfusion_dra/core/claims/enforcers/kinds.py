"""Enforcer classes by their names in the settings."""

from collections.abc import Mapping
from typing import Final

from tensorfusion_dra.core.claims.enforcers.hami_core import HamiCore
from tensorfusion_dra.core.claims.enforcers.mps import Mps
from tensorfusion_dra.core.claims.enforcers.tensor_fusion import TensorFusion

Kind = type[TensorFusion] | type[HamiCore] | type[Mps]

KINDS: Final[Mapping[str, Kind]] = {kind.name: kind for kind in (TensorFusion, HamiCore, Mps)}
