"""Enforcer tensor-fusion: Tensor Fusion's own limiter and hypervisor, by isolation mode.

- `soft`: the limiter library in the container reads its limits from shared memory that the
  hypervisor on the node writes, so they can change while the container runs.
- `hard`: another limiter reads its limits from the environment, once. It is not public and comes
  with the image of Tensor Fusion's own workers, so this enforcer mounts none.
- `shared`: there is no limiter.

Source: NexusGPU/tensor-fusion, internal/utils/compose.go.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims import limits
from tensorfusion_dra.core.claims.enforcers import enforcer, limiters
from tensorfusion_dra.core.claims.enforcer import Edits, EnforcerSettings, Folder, Needs
from tensorfusion_dra.core.claims.index_limits import Way
from tensorfusion_dra.core.claims.evidence import EvidencePaths
from tensorfusion_dra.core.claims.limits import Limit
from tensorfusion_dra.core.claims.prepared import Mount, PreparedClaim, PreparedShare
from tensorfusion_dra.core.devices.gpu import Isolation
from tensorfusion_dra.core.kubernetes import untyped_json
from tensorfusion_dra.core.kubernetes.quantity import MIB

LIMITER_FILE: Final = "libcuda_limiter.so"
SHM_FILE: Final = "shm"
"""The hypervisor's file in the folder of a pod."""
REGISTERED_FOLDER: Final = ".tensorfusion-dra"
"""Beside the folders of namespaces: a file by pod UID, with the folder that the pod has mounted."""

_LIMITER_IN_CONTAINER: Final = f"/tensor-fusion-limiter/{LIMITER_FILE}"
_SHM_IN_CONTAINER: Final = "/run/tensor-fusion/shm"
_SHM_MODE: Final = 0o755


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFusion:
    """Tensor Fusion's limiter as an enforcer.

    Attributes:
        root: The hypervisor's folder on the host, which contains the limiter library.
        hypervisor_ip: Address at which containers reach the hypervisor; "" leaves it to the pod.
        hypervisor_port: The hypervisor's HTTP port.
        preload: How processes load the limiter.
    """

    name: ClassVar[str] = "tensor-fusion"
    enforces_hard: ClassVar[bool] = False
    enforces_compute: ClassVar[bool] = True
    enforces_memory: ClassVar[bool] = True
    counts_by_pid: ClassVar[bool] = False
    expands_memory: ClassVar[bool] = True
    root: str = "/run/tensor-fusion"
    hypervisor_ip: str = ""
    hypervisor_port: int = 8001
    preload: Way = Way.FILE
    fixed: frozenset[Isolation] = frozenset({Isolation.HARD})
    claims_root: str = ""

    @classmethod
    def from_settings(cls, settings: EnforcerSettings) -> "TensorFusion":
        return cls(
            root=settings.values["tensor-fusion-root"],
            hypervisor_ip=settings.values["hypervisor-ip"],
            hypervisor_port=int(settings.values["hypervisor-port"]),
            preload=Way(settings.values["preload"]),
        )

    def needs(self, claim: PreparedClaim) -> Needs:
        limited = [s for shares in enforcer.enforced(claim).values() for s in shares if s.limit]
        if not any(s.isolation is Isolation.SOFT for s in limited) or enforcer.is_simulated(
            limited
        ):
            return Needs()
        return Needs(
            files=(f"{self.root}/{LIMITER_FILE}",),
            folders=(Folder(path=self._shm_folder(claim), mode=_SHM_MODE),),
            texts=limiters.preload_files(self.preload, _LIMITER_IN_CONTAINER, self._preload_file()),
        )

    def evidence_paths(self, claim: PreparedClaim) -> EvidencePaths:
        needs = self.needs(claim)
        if not needs.folders:
            return EvidencePaths()
        registered = (
            f"{self.root}/shm/{REGISTERED_FOLDER}/{claim.pods[0].uid}" if claim.pods else ""
        )
        return EvidencePaths(
            files=needs.files,
            shared_memory=f"{self._shm_folder(claim)}/{SHM_FILE}",
            registered_folder=registered,
        )

    def edits(self, claim: PreparedClaim, shares: Sequence[PreparedShare]) -> Edits:
        isolation = shares[0].isolation
        env = {names.ENV_ISOLATION_MODE: isolation.value, **dict.fromkeys(names.ENV_BYPASSES, "")}
        limited = [share for share in shares if share.limit is not None]
        if not limited:
            return Edits(env={names.ENV_ISOLATION_MODE: isolation.value})
        env |= _limit_env(claim, limited)
        if isolation is not Isolation.SOFT:
            return Edits(env=env)
        env |= {
            names.ENV_SHM_PATH: f"{_SHM_IN_CONTAINER}/{SHM_FILE}",
            names.ENV_SHM_FOLDER: _SHM_IN_CONTAINER,
            names.ENV_POD_NAMESPACE: claim.ref.namespace,
        }
        if claim.pods:
            env[names.ENV_POD_NAME] = claim.pods[0].name
        if self.hypervisor_ip:
            env[names.ENV_HYPERVISOR_IP] = self.hypervisor_ip
            env[names.ENV_HYPERVISOR_PORT] = str(self.hypervisor_port)
        if enforcer.is_simulated(limited):
            return Edits(env=env)
        loading = limiters.preload_edits(self.preload, _LIMITER_IN_CONTAINER, self._preload_file())
        return Edits(
            env={**env, **loading.env},
            mounts=(
                Mount(
                    host_path=f"{self.root}/{LIMITER_FILE}", container_path=_LIMITER_IN_CONTAINER
                ),
                Mount(
                    host_path=self._shm_folder(claim),
                    container_path=_SHM_IN_CONTAINER,
                    read_only=False,
                ),
                *loading.mounts,
            ),
        )

    def _preload_file(self) -> str:
        """Return the file that names the limiter, apart from those of the hypervisor."""
        return f"{self.root}/preload/ld.so.preload"

    def _shm_folder(self, claim: PreparedClaim) -> str:
        """Return the hypervisor's folder for the pod, or for the claim if it has no pod.

        Pods that share a claim share the folder of the first pod (docs/adr/0012): the kubelet does
        not call the driver for the later ones.
        """
        owner = claim.pods[0].name if claim.pods else claim.ref.uid
        return f"{self.root}/shm/{claim.ref.namespace}/{owner}"


def _limit_env(claim: PreparedClaim, shares: Sequence[PreparedShare]) -> dict[str, str]:
    """Return the limit variables for the containers of one request.

    A container may use one request of the claim or all of them. With all of them, the last of the
    variables with the same name wins. So the maps by UUID of every request name all cards of the
    claim, and no card is ever without a limit. If several requests share a card, the map of each
    request has that request's own amounts.

    The scalar limits are the smallest of all cards of requests that consume the same amounts.
    Example: a pod's `gpu-count: 4` is four such requests. If 50 TFLOPS are 17 % of one card and
    77 % of another, each request sets 17 %, because any of them may be the last.
    """
    own = _limits_by_uuid(shares)
    every = {**_limits_by_uuid(claim.shares), **own}
    alike = [
        limit
        for others in enforcer.enforced(claim).values()
        if others[0].consumed == shares[0].consumed
        for limit in _limits_by_uuid(others).values()
    ]
    memory_mib = min(limit.vram_bytes for limit in alike) // MIB
    return {
        names.ENV_SM_PERCENT_LIMIT: str(min(limit.sm_percent for limit in alike)),
        names.ENV_MEMORY_LIMIT: str(memory_mib),
        names.ENV_MEMORY_LIMIT_OLD: str(memory_mib),
        names.ENV_UP_LIMIT_BY_UUID: untyped_json.compact_json(
            {uuid: limit.sm_percent for uuid, limit in every.items()}
        ),
        names.ENV_MEM_LIMIT_BY_UUID: untyped_json.compact_json(
            {uuid: limit.vram_bytes for uuid, limit in every.items()}
        ),
    }


def _limits_by_uuid(shares: Iterable[PreparedShare]) -> Mapping[str, Limit]:
    return limits.by_uuid((share.gpu_uuid, share.limit) for share in shares)
