"""Enforcers whose sign a test sets."""

from collections.abc import Callable
from copy import copy
from typing import Final, TypeVar

from tensorfusion_dra.core.claims import verdicts
from tensorfusion_dra.core.claims.enforcer import Enforcer, Sign
from tensorfusion_dra.enforcers.tensor_fusion.enforcer import HYPERVISOR_MISSING

E = TypeVar("E", bound=Enforcer)

ALIVE: Final = Sign(verdict=verdicts.enforced(verdicts.ENFORCER_ALIVE, "device plugin answers"))
NOT_LOOKED_FOR: Final = Sign(verdict=verdicts.unknown(verdicts.NO_SIGNS, "not looked for"))
NO_HYPERVISOR: Final = Sign(
    verdict=verdicts.not_enforced(
        HYPERVISOR_MISSING, "no sign of a hypervisor (device plugin: not found)"
    ),
    may_be_missing=True,
)
NO_LIMITER: Final = Sign(
    verdict=verdicts.not_enforced(verdicts.LIMITER_MISSING, "/libcuda_limiter.so: not found")
)


def signing(enforcer: E, sign: Callable[[], Sign]) -> E:
    """Return a copy of the enforcer with this sign."""
    found = copy(enforcer)
    object.__setattr__(found, "sign", sign)
    return found
