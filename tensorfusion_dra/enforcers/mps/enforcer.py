"""Enforcer mps: NVIDIA's Multi-Process Service, by which the NVIDIA driver limits each process.

What follows for limits:

- Each process is limited on its own: a container with two processes may use twice its memory.
- A process that does not reach the MPS daemon runs without MPS, and so without limits. Therefore a
  claim fails while the daemon does not listen: its control socket has to accept a connection. The
  socket's file alone proves nothing, because the daemon leaves it behind when it ends. Where
  tenants are not trusted, the cards have to be in compute mode EXCLUSIVE_PROCESS, in which only
  MPS may open them.
- A process that sees fewer cards than its memory limits name loses all memory limits, and launchers
  of distributed programs show each process one card. So a claim with limits has one card.

A container reaches the daemon through the daemon's pipe folder and needs the daemon's /dev/shm. It
does not need the daemon's log folder, which shows the process IDs of other tenants.

Source: Multi-Process Service guide (environment variables), nvidia-cuda-mps-control(1), NVIDIA's
Dynamo documentation (per-GPU limits with MPS), and the mounts that NVIDIA's own drivers for
Kubernetes make. The socket's type was seen with the daemon of driver 535 (`ss -xl`), and in the
connect() of a CUDA program.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims import enforcer, index_limits, verdicts
from tensorfusion_dra.core.claims.enforcer import (
    Edits,
    Enforcer,
    EnforcerSettings,
    Needs,
    Sign,
)
from tensorfusion_dra.core.claims.prepared import Mount, PreparedClaim, PreparedShare
from tensorfusion_dra.core.claims.verdicts import Verdict
from tensorfusion_dra.core.errors import ClaimError
from tensorfusion_dra.core.kubernetes.quantity import MIB
from tensorfusion_dra.enforcers.mps.declaration import MPS
from tensorfusion_dra.state import unix_sockets

_PIPES_IN_CONTAINER: Final = "/tmp/nvidia-mps"  # noqa: S108 - the service's default
_SHM_IN_CONTAINER: Final = "/dev/shm"  # noqa: S108 - where POSIX shared memory is
_CONTROL: Final = "control"
"""The daemon's socket (SOCK_SEQPACKET) in its pipe folder; open to all users."""


@dataclass(frozen=True, kw_only=True)
class Mps(Enforcer):
    """NVIDIA MPS as an enforcer.

    Attributes:
        pipes: The daemon's CUDA_MPS_PIPE_DIRECTORY on the host.
        shm: Host path of the daemon's /dev/shm. Containers get it in place of their own; a tmpfs
            that only the daemon uses keeps them out of the host's /dev/shm.
    """

    name = MPS.name
    facts = MPS.facts
    pipes: str = "/run/nvidia/mps/pipe"
    shm: str = "/run/nvidia/mps/shm"

    @classmethod
    def from_settings(cls, settings: EnforcerSettings) -> "Mps":
        root = settings.values["mps-root"]
        return cls(pipes=f"{root}/pipe", shm=f"{root}/shm")

    def needs(self, claim: PreparedClaim) -> Needs:
        """Return the daemon's control socket and its /dev/shm.

        Raises:
            ClaimError: A container of the claim could run without its limits or with other ones.
        """
        limited = [
            shares
            for shares in enforcer.enforced(claim).values()
            if any(share.limit for share in shares)
        ]
        if not limited:
            return Needs()
        cards = {share.gpu_uuid for share in claim.shares}
        if len(cards) > 1:
            raise ClaimError(
                f"claim {claim.ref}: found {len(cards)} cards, expected one: with MPS a process "
                "that does not see all of them would be without a memory limit"
            )
        index_limits.check(claim)
        if all(enforcer.is_simulated(shares) for shares in limited):
            return Needs()
        return Needs(files=(self.shm,), sockets=(self._socket,))

    def edits(self, claim: PreparedClaim, shares: Sequence[PreparedShare]) -> Edits:
        env = {names.ENV_ISOLATION_MODE: shares[0].isolation.value}
        limits = index_limits.limits(shares)
        if not limits:
            return Edits(env=env)
        env |= {
            names.ENV_MPS_PIPE_FOLDER: _PIPES_IN_CONTAINER,
            names.ENV_MPS_THREAD_PERCENTAGE: str(limits[0].sm_percent),
            names.ENV_MPS_MEMORY_LIMIT: f"0={limits[0].vram_bytes // MIB}M",
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

    def sign(self) -> Sign:
        if reason := unix_sockets.reason(self._socket):
            text = f"no MPS daemon answers at {self._socket}: {reason}"
            return Sign(verdict=verdicts.not_enforced(verdicts.DAEMON_SILENT, text))
        text = f"the MPS daemon answers at {self._socket}"
        return Sign(verdict=verdicts.enforced(verdicts.ENFORCER_ALIVE, text))

    def judge(
        self,
        claim: PreparedClaim,
        shares: Sequence[PreparedShare],
        others: Iterable[PreparedClaim],
        *,
        is_new: bool,
    ) -> Sequence[Verdict]:
        if reason := unix_sockets.reason(self._socket):
            found = verdicts.not_enforced(
                verdicts.DAEMON_SILENT,
                f"{self._socket}: {reason}: processes that start now run without limits; "
                "start nvidia-cuda-mps-control -d on this node",
            )
        else:
            found = verdicts.unknown(
                verdicts.CLIENTS_HIDDEN,
                f"the MPS daemon answers at {self._socket}; whether the container's processes are "
                "its clients only its tool shows: run get_client_list in nvidia-cuda-mps-control "
                "on the node",
            )
        return [found] * len(shares)

    @property
    def _socket(self) -> str:
        return f"{self.pipes}/{_CONTROL}"
