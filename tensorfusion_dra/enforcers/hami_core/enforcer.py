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

Evidence: the first process that loads the library writes its limits into the claim's file, and each
process registers there. So the file shows by which limits the library really refuses. It has
process IDs of the container, which cannot be looked up from outside, so a registered process may
have been killed by now.

Layout of the file, version 1.2, 64-bit little-endian:

    offset   content
    0        i32 19920718 once a process has initialized the file
    4        u32 major version, u32 minor version
    12       lock and owner
    56       u64 number of cards
    64       16 UUIDs of 96 bytes
    1600     16 u64 memory limits in bytes; 0 for none
    1728     16 u64 compute limits in percent; 0 for none
    1856     1024 processes of 1960 bytes
    2008896  i32 number of processes

Source: Project-HAMi/HAMi-core, src/libvgpu.c, and multiprocess_memory_limit.c and .h in
src/multiprocess.
"""

import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims import enforcer, index_limits, verdicts
from tensorfusion_dra.core.claims.enforcer import (
    Edits,
    Enforcer,
    EnforcerSettings,
    Folder,
    Needs,
    Sign,
)
from tensorfusion_dra.core.claims.prepared import Limit, Mount, PreparedClaim, PreparedShare
from tensorfusion_dra.core.claims.verdicts import Verdict
from tensorfusion_dra.core.kubernetes.quantity import MIB
from tensorfusion_dra.enforcers import preload, written_files
from tensorfusion_dra.enforcers.hami_core.declaration import HAMI_CORE
from tensorfusion_dra.enforcers.preload import PreloadMethod

LIBRARY_IN_CONTAINER: Final = "/usr/local/vgpu/libvgpu.so"
"""Path from which HAMi-core loads itself."""

_CACHES_IN_CONTAINER: Final = "/usr/local/vgpu/claims"
_LOCKS_IN_CONTAINER: Final = "/tmp/vgpulock"  # noqa: S108 - fixed by HAMi-core

# Containers run as any user. Not sticky: where the kernel protects files in sticky folders
# (fs.protected_regular), a process could not open a file that another user created.
_CACHES_MODE: Final = 0o777

_FLAG: Final = 19_920_718
_START: Final = struct.Struct("<iII")
_VERSION: Final = (1, 2)
_CARDS: Final = 16
_LIMITS: Final = struct.Struct(f"<{_CARDS}Q{_CARDS}Q")
_LIMITS_AT: Final = 1_600
_BEGINNING: Final = 1_856
_COUNT: Final = struct.Struct("<i")
_COUNT_AT: Final = 2_008_896
_MAX_PROCESSES: Final = 1_024


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """The file in which the processes of one request count their memory.

    Attributes:
        reason: Why it could not be read; "" if it could, or if there is no such file yet.
        limits: By the index of a card in the container; 0 means no limit. Empty while no process
            has initialized the file.
        processes: Number of processes that are registered.
    """

    path: str
    reason: str = ""
    limits: tuple[Limit, ...] = ()
    processes: int = 0


@dataclass(frozen=True, kw_only=True)
class HamiCore(Enforcer):
    """HAMi-core as an enforcer.

    Attributes:
        library: libvgpu.so on the host. Running containers have it mapped and crash if it is
            overwritten, so this has to be a file of one version that never changes, such as
            /usr/local/vgpu/libvgpu.so.2.8.0.
        method: How processes load the library.
        root: Host folder of the claims' cache files, and of the file that preloads the library.
    """

    name = HAMI_CORE.name
    facts = HAMI_CORE.facts
    library: str
    method: PreloadMethod = PreloadMethod.FILE
    root: str = "/run/tensor-fusion/hami-core"

    @classmethod
    def from_settings(cls, settings: EnforcerSettings) -> "HamiCore":
        return cls(
            library=settings.values["hami-core-library"],
            method=PreloadMethod(settings.values["preload"]),
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
        index_limits.check(claim)
        if not _limited(claim):
            return Needs()
        return Needs(
            files=(self.library,),
            folders=(Folder(path=self._caches(claim), mode=_CACHES_MODE),),
            texts=preload.preload_files(self.method, LIBRARY_IN_CONTAINER, self._preload_file()),
        )

    def edits(self, claim: PreparedClaim, shares: Sequence[PreparedShare]) -> Edits:
        env = {names.ENV_ISOLATION_MODE: shares[0].isolation.value}
        limits = index_limits.limits(shares)
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
        for suffix, limit in (("", index_limits.smallest(limits)), *by_index):
            env[f"{names.ENV_CUDA_MEMORY_LIMIT}{suffix}"] = f"{limit.vram_bytes // MIB}m"
            env[f"{names.ENV_CUDA_SM_LIMIT}{suffix}"] = str(limit.sm_percent)
        if enforcer.is_simulated(shares):
            return Edits(env=env)
        loading = preload.preload_edits(self.method, LIBRARY_IN_CONTAINER, self._preload_file())
        # The claim's folder also for the lock: versions up to 2.8 lock a file in a folder with a
        # fixed name while a process starts. With one folder for the whole node a tenant could block
        # the processes of all other tenants.
        folders = (
            Mount(host_path=self._caches(claim), container_path=path, read_only=False)
            for path in (_CACHES_IN_CONTAINER, _LOCKS_IN_CONTAINER)
        )
        library = Mount(host_path=self.library, container_path=LIBRARY_IN_CONTAINER)
        return Edits(env={**env, **loading.env}, mounts=(library, *folders, *loading.mounts))

    def sign(self) -> Sign:
        if reason := preload.library_reason(self.library):
            return Sign(verdict=verdicts.not_enforced(verdicts.LIMITER_MISSING, reason))
        text = "the library is there; whether it works shows only in a running container"
        found = verdicts.unknown(verdicts.LIBRARY_INSTALLED, text)
        return Sign(verdict=found, advice=preload.advice(self.library))

    def judge(
        self,
        claim: PreparedClaim,
        shares: Sequence[PreparedShare],
        others: Iterable[PreparedClaim],
        *,
        is_new: bool,
    ) -> Sequence[Verdict]:
        folder = self._caches(claim)
        caches = {each: read(f"{folder}/{_cache_file(each)}") for each in _limited(claim)}
        reason = preload.library_reason(self.library)
        by_request = enforcer.enforced(claim)
        return [
            of_request(each.request, index_limits.limits(by_request[each.request]), caches, reason)
            for each in shares
        ]

    def _preload_file(self) -> str:
        return f"{self.root}/ld.so.preload"

    def _caches(self, claim: PreparedClaim) -> str:
        return f"{self.claims_root}/{claim.ref.uid}"


def _limited(claim: PreparedClaim) -> Sequence[str]:
    """Return the requests with limits on real cards."""
    return [
        request
        for request, shares in enforcer.enforced(claim).items()
        if index_limits.limits(shares) and not enforcer.is_simulated(shares)
    ]


def _cache_file(request: str) -> str:
    return f"{request}.cache"


def of_request(
    request: str, expected: Sequence[Limit], caches: Mapping[str, Cache], library_reason: str
) -> Verdict:
    """Return the verdict about the cards of one request.

    Args:
        request: Its name.
        expected: Its limits by the index of a card in the container.
        caches: The files of the claim's requests, as read.
        library_reason: Why no process can load the library; "" if one can.
    """
    cache = caches.get(request)
    if cache is None or not (cache.processes or cache.reason):
        # A container that uses several requests of its claim counts in the file of one of them.
        # Their limits are equal (core/claims/index_limits.py), so that one speaks for all.
        cache = next((each for each in caches.values() if each.processes), cache)
    if cache is not None and cache.reason:
        return verdicts.unknown(verdicts.UNREADABLE, f"{cache.path}: {cache.reason}")
    if cache is not None and cache.processes:
        for index, (limit, found) in enumerate(zip(expected, cache.limits, strict=False)):
            # HAMi-core takes 0 for no limit.
            exceeds_compute = (found.sm_percent or verdicts.WHOLE_PERCENT) > limit.sm_percent
            if exceeds_compute or not found.vram_bytes or found.vram_bytes > limit.vram_bytes:
                return verdicts.not_enforced(
                    verdicts.LIMITS_DIFFER,
                    f"{cache.path}: card {index}: found {found}, expected {limit}; the first "
                    "process in the container had other limits in its environment; start the pod "
                    "again",
                )
        return verdicts.enforced(
            verdicts.LIMITER_ACTIVE,
            f"limits in {cache.path} as in the claim, registered processes: {cache.processes}",
        )
    if library_reason:
        return verdicts.not_enforced(
            verdicts.LIMITER_MISSING,
            f"{library_reason}: no container can load HAMi-core; put it there",
        )
    return verdicts.unknown(
        verdicts.NO_PROCESS,
        "no process has registered with HAMi-core: none has used the GPU yet, or it runs without "
        "the library",
    )


def read(path: str) -> Cache:
    """Return what is in the file at this path; never raises."""
    try:
        with written_files.opened(path) as descriptor:
            beginning = os.pread(descriptor, _BEGINNING, 0)
            count = os.pread(descriptor, _COUNT.size, _COUNT_AT)
    except FileNotFoundError:
        return Cache(path=path)
    except OSError as error:
        return Cache(path=path, reason=error.strerror or str(error))
    if len(beginning) < _BEGINNING or len(count) < _COUNT.size:
        # The first process makes it as long as it has to be before it writes anything.
        return Cache(path=path)
    flag, *version = _START.unpack_from(beginning)
    if flag != _FLAG:
        return Cache(path=path)
    if tuple(version) != _VERSION:
        found, expected = (".".join(map(str, each)) for each in (version, _VERSION))
        return Cache(path=path, reason=f"found version {found}, expected {expected}")
    amounts = _LIMITS.unpack_from(beginning, _LIMITS_AT)
    (processes,) = _COUNT.unpack(count)
    return Cache(
        path=path,
        limits=tuple(
            Limit(sm_percent=percent, vram_bytes=vram_bytes)
            for vram_bytes, percent in zip(amounts[:_CARDS], amounts[_CARDS:], strict=True)
        ),
        processes=max(0, min(processes, _MAX_PROCESSES)),
    )
