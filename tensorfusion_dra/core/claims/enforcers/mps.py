"""NVIDIA's Multi-Process Service (MPS): the driver itself enforces limits, of each process.

What that means for limits:

- They hold for every process on its own: a container of two processes may take twice its memory.
- A process that does not reach the service's daemon runs without it, hence without limits. So a
  claim fails while the daemon does not listen. Where tenants are not trusted, the cards have to
  be in the compute mode EXCLUSIVE_PROCESS, in which only the service may open them.
- A process that sees fewer cards than its memory limits name loses all of them, and launchers of
  distributed programs show each process one card. So a claim with limits has one card, unless
  an administrator says that programs here leave CUDA_VISIBLE_DEVICES alone.

A container reaches the daemon through the daemon's pipe folder and needs the daemon's /dev/shm.
It has no use for the daemon's log folder, in which other tenants' process ids are told.

Source: Multi-Process Service guide (environment variables), nvidia-cuda-mps-control(1), NVIDIA's
Dynamo documentation (per-GPU limits with MPS), and the mounts that NVIDIA's own drivers for
Kubernetes make.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims.enforcers import by_index, enforcer
from tensorfusion_dra.core.claims.enforcers.enforcer import Edits, Needs
from tensorfusion_dra.core.claims.mounts import Mount
from tensorfusion_dra.core.claims.prepared import PreparedClaim, PreparedShare
from tensorfusion_dra.core.devices.sharing import Isolation
from tensorfusion_dra.core.errors import ClaimError
from tensorfusion_dra.core.kubernetes.quantity import MIB

_PIPES_IN_CONTAINER: Final = "/tmp/nvidia-mps"  # noqa: S108 - the service's default
_SHM_IN_CONTAINER: Final = "/dev/shm"  # noqa: S108 - where POSIX shared memory is
_CONTROL: Final = "control"
"""The daemon's end of the pipes, in its folder from its start on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mps:
    """See enforcer.Enforcer.

    Attributes:
        pipes: The daemon's CUDA_MPS_PIPE_DIRECTORY on the host.
        shm: What the daemon has as its /dev/shm, on the host. Containers get it in place of
            their own; a tmpfs for the daemon alone keeps them out of the host's.
        several_cards: A request may have limits on several cards.
    """

    name: ClassVar[str] = "mps"
    enforces_hard: ClassVar[bool] = True
    expands_memory: ClassVar[bool] = False
    pipes: str = "/run/nvidia/mps/pipe"
    shm: str = "/run/nvidia/mps/shm"
    several_cards: bool = False
    fixed: frozenset[Isolation] = frozenset(Isolation)
    claims_root: str = ""

    def needs(self, claim: PreparedClaim) -> Needs:
        """See enforcer.Enforcer.

        Raises:
            ClaimError: Some container of it could be without its limits, or have others.
        """
        limited = [
            shares
            for shares in enforcer.enforced(claim).values()
            if any(share.limit for share in shares)
        ]
        if not limited:
            return Needs()
        self._check(claim)
        if all(enforcer.is_simulated(shares) for shares in limited):
            return Needs()
        return Needs(files=(f"{self.pipes}/{_CONTROL}", self.shm))

    def edits(self, claim: PreparedClaim, shares: Sequence[PreparedShare]) -> Edits:
        """See enforcer.Enforcer."""
        env = {names.ENV_ISOLATION_MODE: shares[0].isolation.value}
        limits = by_index.limits(shares)
        if not limits:
            return Edits(env=env)
        env |= {
            names.ENV_MPS_PIPE_FOLDER: _PIPES_IN_CONTAINER,
            # One percentage for all cards, so the smallest.
            names.ENV_MPS_THREAD_PERCENTAGE: str(by_index.smallest(limits).sm_percent),
            names.ENV_MPS_MEMORY_LIMIT: ",".join(
                f"{index}={limit.vram_bytes // MIB}M" for index, limit in enumerate(limits)
            ),
        }
        if enforcer.is_simulated(shares):
            return Edits(env=env)
        return Edits(
            env=env,
            mounts=(
                Mount(host_path=self.pipes, container_path=_PIPES_IN_CONTAINER, read_only=False),
                Mount(host_path=self.shm, container_path=_SHM_IN_CONTAINER, read_only=False),
            ),
        )

    def _check(self, claim: PreparedClaim) -> None:
        cards = {share.gpu_uuid for share in claim.shares}
        requests = {share.request for share in claim.shares}
        if len(cards) > 1 and (len(requests) > 1 or not self.several_cards):
            raise ClaimError(
                f"claim {claim.ref}: found {len(cards)} cards, expected one: with MPS a process "
                "that does not see all of them would be without a memory limit"
            )
        by_index.check(claim)
