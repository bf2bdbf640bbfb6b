"""Enforcer that passes a claim's limits to a library in the container."""

from collections.abc import Sequence
from dataclasses import dataclass

from tensorfusion_dra.extend import (
    Edits,
    Enforcer,
    EnforcerFacts,
    EnforcerSettings,
    Mount,
    Needs,
    PreparedClaim,
    PreparedShare,
    enforced,
    is_simulated,
    limits_by_index,
)

LIBRARY_IN_CONTAINER = "/usr/local/example-provider/limiter.so"


@dataclass(frozen=True)
class Limiter(Enforcer):
    """A library that reads its limits from the environment, once.

    Attributes:
        library: Its path on the host.
    """

    name = "example-provider"
    facts = EnforcerFacts(enforces_hard=True, remedy="put limiter.so into the enforcer's folder")
    library: str

    @classmethod
    def from_settings(cls, settings: EnforcerSettings) -> "Limiter":
        """Return the enforcer of a node."""
        return cls(library=f"{settings.folder}/limiter.so")

    def needs(self, claim: PreparedClaim) -> Needs:
        """Return the library, which has to be on the host."""
        return Needs(files=(self.library,)) if self._is_limited(claim) else Needs()

    def edits(self, claim: PreparedClaim, shares: Sequence[PreparedShare]) -> Edits:
        """Return a limit for each card of the request, by its index in the container."""
        limits = limits_by_index(shares)
        env = {
            f"EXAMPLE_LIMIT_{index}": f"{limit.sm_percent},{limit.vram_bytes}"
            for index, limit in enumerate(limits)
        }
        if not limits or is_simulated(shares):
            return Edits(env=env)
        env["LD_PRELOAD"] = LIBRARY_IN_CONTAINER
        mount = Mount(host_path=self.library, container_path=LIBRARY_IN_CONTAINER)
        return Edits(env=env, mounts=(mount,))

    def _is_limited(self, claim: PreparedClaim) -> bool:
        return any(
            limits_by_index(shares) and not is_simulated(shares)
            for shares in enforced(claim).values()
        )
