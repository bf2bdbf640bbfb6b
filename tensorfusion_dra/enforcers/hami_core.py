"""Enforcer hami-core: a library in the container that reads its limits from the environment, once.

How HAMi-core works, and what follows for a container:

- It identifies a card by its index in the container. A card without a variable for its index gets
  the variable without an index. That one holds the smallest limit, so no card is unlimited.
- It loads itself a second time from a fixed path, and the dynamic linker ignores a library that it
  cannot find. So the library is mounted at that path, and a claim fails while the library is not
  on the host.
- Its processes count their memory in one file. The file's name is the same at every prepare,
  because processes that count in different files would get the whole limit each. The file
  identifies a process by its PID in the container, and a new process takes the place of the last
  one with its PID, whose memory no longer counts. So only one container at a time may use a
  request, unless the containers share a PID namespace.
- The limits in a file are those of its first process, so a limit cannot be changed later.

Source: Project-HAMi/HAMi-core, src/libvgpu.c and src/multiprocess/multiprocess_memory_limit.c.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims.enforcers import enforcer, limiters
from tensorfusion_dra.core.claims.enforcer import Edits, EnforcerSettings, Folder, Needs
from tensorfusion_dra.core.claims.index_limits import Way
from tensorfusion_dra.core.claims.evidence import EvidencePaths
from tensorfusion_dra.core.claims.prepared import Mount, PreparedClaim, PreparedShare
from tensorfusion_dra.core.devices.gpu import Isolation
from tensorfusion_dra.core.kubernetes.quantity import MIB

LIBRARY_IN_CONTAINER: Final = "/usr/local/vgpu/libvgpu.so"
"""Path from which HAMi-core loads itself."""

_CACHES_IN_CONTAINER: Final = "/usr/local/vgpu/claims"
_LOCKS_IN_CONTAINER: Final = "/tmp/vgpulock"  # noqa: S108 - fixed by HAMi-core

# Containers run as any user. Not sticky: where the kernel protects files in sticky folders
# (fs.protected_regular), a process could not open a file that another user created.
_CACHES_MODE: Final = 0o777


@dataclass(frozen=True, slots=True, kw_only=True)
class HamiCore:
    """HAMi-core as an enforcer.

    Attributes:
        library: libvgpu.so on the host. Running containers have it mapped and crash if it is
            overwritten, so this has to be a file of one version that never changes, such as
            /usr/local/vgpu/libvgpu.so.2.8.0.
        preload: How processes load the library.
        root: Host folder of the claims' cache files, and of the file that preloads the library.
    """

    name: ClassVar[str] = "hami-core"
    enforces_hard: ClassVar[bool] = True
    enforces_compute: ClassVar[bool] = True
    enforces_memory: ClassVar[bool] = True
    counts_by_pid: ClassVar[bool] = True
    expands_memory: ClassVar[bool] = False
    library: str
    preload: Way = Way.FILE
    root: str = "/run/tensor-fusion/hami-core"
    fixed: frozenset[Isolation] = frozenset(Isolation)

    @classmethod
    def from_settings(cls, settings: EnforcerSettings) -> "HamiCore":
        return cls(
            library=settings.values["hami-core-library"],
            preload=Way(settings.values["preload"]),
            root=settings.folder,
        )

    @property
    def claims_root(self) -> str:
        return f"{self.root}/claims"

    def needs(self, claim: PreparedClaim) -> Needs:
        """Return the library, the file that preloads it and the folder of the claim's cache files.

        Raises:
            ClaimError: The claim's limits cannot be expressed by card index.
        """
        limiters.check(claim)
        if not _limited(claim):
            return Needs()
        return Needs(
            files=(self.library,),
            folders=(Folder(path=self._caches(claim), mode=_CACHES_MODE),),
            texts=limiters.preload_files(self.preload, LIBRARY_IN_CONTAINER, self._preload_file()),
        )

    def evidence_paths(self, claim: PreparedClaim) -> EvidencePaths:
        limited = _limited(claim)
        if not limited:
            return EvidencePaths()
        folder = self._caches(claim)
        return EvidencePaths(
            files=(self.library,),
            caches={request: f"{folder}/{_cache_file(request)}" for request in limited},
        )

    def edits(self, claim: PreparedClaim, shares: Sequence[PreparedShare]) -> Edits:
        env = {names.ENV_ISOLATION_MODE: shares[0].isolation.value}
        limits = limiters.limits(shares)
        if not limits:
            return Edits(env=env)
        cache = f"{_CACHES_IN_CONTAINER}/{_cache_file(shares[0].request)}"
        env |= {
            **dict.fromkeys(names.HAMI_CORE_BYPASSES, ""),
            names.ENV_CORE_POLICY: names.CORE_POLICY_FORCE,
            names.ENV_CUDA_TASK_PRIORITY: names.CUDA_TASK_PRIORITY_LOW,
            names.ENV_CUDA_SHARED_CACHE: cache,
        }
        by_index = ((f"_{index}", limit) for index, limit in enumerate(limits))
        for suffix, limit in (("", limiters.smallest(limits)), *by_index):
            env[f"{names.ENV_CUDA_MEMORY_LIMIT}{suffix}"] = f"{limit.vram_bytes // MIB}m"
            env[f"{names.ENV_CUDA_SM_LIMIT}{suffix}"] = str(limit.sm_percent)
        if enforcer.is_simulated(shares):
            return Edits(env=env)
        loading = limiters.preload_edits(self.preload, LIBRARY_IN_CONTAINER, self._preload_file())
        # The claim's folder also for the lock: versions up to 2.8 lock a file in a folder with a
        # fixed name while a process starts. With one folder for the whole node a tenant could block
        # the processes of all other tenants.
        folders = (
            Mount(host_path=self._caches(claim), container_path=path, read_only=False)
            for path in (_CACHES_IN_CONTAINER, _LOCKS_IN_CONTAINER)
        )
        library = Mount(host_path=self.library, container_path=LIBRARY_IN_CONTAINER)
        return Edits(env={**env, **loading.env}, mounts=(library, *folders, *loading.mounts))

    def _preload_file(self) -> str:
        return f"{self.root}/ld.so.preload"

    def _caches(self, claim: PreparedClaim) -> str:
        return f"{self.claims_root}/{claim.ref.uid}"


def _limited(claim: PreparedClaim) -> Sequence[str]:
    """Return the requests with limits on real cards."""
    return [
        request
        for request, shares in enforcer.enforced(claim).items()
        if limiters.limits(shares) and not enforcer.is_simulated(shares)
    ]


def _cache_file(request: str) -> str:
    return f"{request}.cache"
