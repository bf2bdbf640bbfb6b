"""Enforcer none: the administrator says that limits are advisory.

Containers get no limiter. They and the node still learn the limits: from the variable of each share
and from the limits document. It is also the enforcer of claims without limits, on a node where
`auto` finds none.
"""

from collections.abc import Sequence
from typing import Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims import verdicts
from tensorfusion_dra.core.claims.enforcer import (
    Edits,
    Enforcer,
    EnforcerFacts,
    EnforcerSettings,
    Needs,
    Sign,
)
from tensorfusion_dra.core.claims.prepared import PreparedClaim, PreparedShare
from tensorfusion_dra.core.claims.verdicts import Verdict
from tensorfusion_dra.enforcers.declaration import Declaration

DECLARATION: Final = Declaration(
    name="none",
    path="none:NoEnforcer",
    facts=EnforcerFacts(
        counts_by_pid=False,
        fixed_compute=frozenset(),
        fixed_memory=frozenset(),
        mixed=frozenset(),
        remedy="leave out setting enforcer",
    ),
    in_auto=False,
)


class NoEnforcer(Enforcer):
    """No enforcer."""

    name = DECLARATION.name
    facts = DECLARATION.facts

    @classmethod
    def from_settings(cls, settings: EnforcerSettings) -> "NoEnforcer":
        return cls()

    def needs(self, claim: PreparedClaim) -> Needs:
        return Needs()

    def edits(self, claim: PreparedClaim, shares: Sequence[PreparedShare]) -> Edits:
        return Edits(env={names.ENV_ISOLATION_MODE: shares[0].isolation.value})

    def of_record(self, share: PreparedShare) -> Verdict:
        return verdicts.not_enforced(verdicts.NO_ENFORCER, verdicts.ADVISORY)

    def sign(self) -> Sign:
        found = verdicts.not_enforced(verdicts.NO_ENFORCER, verdicts.ADVISORY)
        return Sign(verdict=found, may_be_missing=True)
