"""Enforcer nvidia: memory limits of cgroups that the NVIDIA driver keeps, from release 615 on.

Nothing is loaded into the container, so no process of it can leave its limit. Setting a limit needs
root on the host with CAP_SYS_ADMIN, which the node plugin does not have; the container
`memory-limits` beside it has (docs/adr/0047). What is set, and when:

- At each prepare, the pod's cgroup gets the sum of the pod's claims by card. It is there by then,
  because the kubelet makes it first, and it bounds all containers together, also after restarts.
- When a container starts, a hook of the CDI spec has the container's own cgroup limited, so that
  programs see the limit as the card's memory. A hook that fails keeps the container from starting.

A claim belongs to one pod: the kubelet does not call the driver for a second one, whose cgroup
would stay without a limit. The hook refuses containers of another pod.

Compute is not limited. Memory is lent in isolation `soft`: limits change while containers run, but
the NVIDIA driver lowers none below the present use (driver/pod_limits.py).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims import limits
from tensorfusion_dra.core.claims.enforcer import (
    Edits,
    EnforcerSettings,
    Hook,
    Needs,
    TextFile,
)
from tensorfusion_dra.core.claims.evidence import EvidencePaths
from tensorfusion_dra.core.claims.prepared import PreparedClaim, PreparedShare
from tensorfusion_dra.core.devices.gpu import Isolation
from tensorfusion_dra.core.errors import ClaimError

FOLDER: Final = "memory-limits"
"""Folder in which the container memory-limits serves; for root alone."""
SOCKET: Final = "socket"
REQUESTS: Final = "requests"
"""Pipe from the hooks; each line is <pid> <pod UID> <GPU UUID>=<bytes>,... <cgroup>."""

# Any POSIX shell: the hook runs on the host, where there may be no Python. It is an argument of the
# shell, since /run may be mounted with noexec.
_HOOK: Final = """\
# Has the memory limits of a container's cgroup set before the container starts.
# usage: sh hook.sh FOLDER POD_UID GPU_UUID=BYTES,... <STATE (OCI runtime specification)
set -eu
fail() { echo "tensorfusion-dra: memory limits: $*" >&2; exit 1; }

pid=$(tr -d ' \\t' | tr ',{}' '\\n\\n\\n' | sed -n 's/^"pid":\\([0-9]*\\)$/\\1/p')
[ -n "$pid" ] || fail "found no pid in the container's state, expected one"
cgroup=$(sed -n 's/^0:://p' "/proc/$pid/cgroup")
[ -n "$cgroup" ] || fail "found no cgroup2 of process $pid, expected one"
answer="$1/$pid.answer"
rm -f "$answer"
[ -p "$1/requests" ] || fail "$1/requests: found no pipe, expected container memory-limits to run"
# For reading too: opening it for writing alone would wait while nobody reads.
exec 3<>"$1/requests"
echo "$pid $2 $3 $cgroup" >&3
tries=0
until [ -e "$answer" ]; do
    tries=$((tries + 1))
    [ "$tries" -le 80 ] || fail "found no answer in 8 s, expected container memory-limits to run"
    sleep 0.1
done
text=$(cat "$answer")
rm -f "$answer"
[ "$text" = ok ] || fail "$text"
"""
HOOK_SECONDS: Final = 15
NO_LIMIT: Final = 2**64 - 1
"""The limit that removes a limit (NVML_DEVICE_MEMORY_LIMIT_MAX)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nvidia:
    """The NVIDIA driver as an enforcer.

    Attributes:
        root: Host folder of the hook, and above that of the socket.
    """

    name: ClassVar[str] = "nvidia"
    enforces_hard: ClassVar[bool] = True
    enforces_compute: ClassVar[bool] = False
    enforces_memory: ClassVar[bool] = True
    counts_by_pid: ClassVar[bool] = False
    expands_memory: ClassVar[bool] = False
    root: str = "/run/tensor-fusion/nvidia"
    fixed: frozenset[Isolation] = frozenset({Isolation.HARD})
    claims_root: str = ""

    @classmethod
    def from_settings(cls, settings: EnforcerSettings) -> "Nvidia":
        return cls(root=settings.folder)

    def needs(self, claim: PreparedClaim) -> Needs:
        """Return the socket of the container memory-limits, and the hook.

        Raises:
            ClaimError: Several pods share the claim.
        """
        if not memory_limits([claim]):
            return Needs()
        if len(claim.pods) > 1:
            raise ClaimError(
                f"claim {claim.ref}: found {len(claim.pods)} pods, expected one: enforcer nvidia "
                "limits the cgroup of one pod"
            )
        hook = TextFile(path=self._hook, text=_HOOK)
        return Needs(sockets=(self.socket,), texts=(hook,))

    def evidence_paths(self, claim: PreparedClaim) -> EvidencePaths:
        uuids = tuple(memory_limits([claim]))
        if not uuids:
            return EvidencePaths()
        pod_uid = claim.pods[0].uid if claim.pods else ""
        return EvidencePaths(socket=self.socket, limited_pod=pod_uid, gpu_uuids=uuids)

    def edits(self, claim: PreparedClaim, shares: Sequence[PreparedShare]) -> Edits:
        env = {names.ENV_ISOLATION_MODE: shares[0].isolation.value}
        of_request = {share.gpu_uuid for share in shares}
        # The claim's whole amount of each card: its containers share the pod's limit anyway.
        granted = memory_limits([claim])
        wanted = ",".join(f"{uuid}={granted[uuid]}" for uuid in granted if uuid in of_request)
        if not wanted or not claim.pods:
            return Edits(env=env)
        args = ("sh", self._hook, f"{self.root}/{FOLDER}", claim.pods[0].uid, wanted)
        hook = Hook(name="createRuntime", path="/bin/sh", args=args, timeout_seconds=HOOK_SECONDS)
        return Edits(env=env, hooks=(hook,))

    @property
    def _hook(self) -> str:
        return f"{self.root}/hook.sh"

    @property
    def socket(self) -> str:
        """Socket of the container memory-limits on the host."""
        return f"{self.root}/{FOLDER}/{SOCKET}"


def memory_limits(claims: Iterable[PreparedClaim]) -> Mapping[str, int]:
    """Return the memory that claims of this enforcer may use together, in bytes by GPU UUID.

    Simulated cards are left out, and so are claims of other enforcers.
    """
    shares = [
        share
        for claim in claims
        if claim.enforcer == Nvidia.name
        for share in claim.shares
        if share.device_nodes
    ]
    granted = limits.by_uuid((share.gpu_uuid, share.limit) for share in shares)
    return {uuid: limit.vram_bytes for uuid, limit in granted.items()}
