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
- Each process reads its compute limits once, from the environment or the file. Memory limits are
  read at each allocation from the file, which the first process makes from its environment. So the
  environment has the request of both, and what is lent is in the file alone (lending.py).

Evidence: the first process that loads the library writes its limits into the claim's file, and each
process registers there. So the file (cache.py) shows by which limits the library really refuses. It
has process IDs of the container, which cannot be looked up from outside, so a registered process
may have been killed by now.

Source: Project-HAMi/HAMi-core, src/libvgpu.c.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims import enforcer, index_limits, verdicts
from tensorfusion_dra.core.claims.enforcer import (
    AT_ONCE,
    Edits,
    Enforcer,
    EnforcerSettings,
    Folder,
    Needs,
    NodeAccess,
    Records,
    Sign,
)
from tensorfusion_dra.core.claims.ports import Loop
from tensorfusion_dra.core.claims.prepared import Limit, Mount, PreparedClaim, PreparedShare
from tensorfusion_dra.core.claims.verdicts import Verdict
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.core.kubernetes.quantity import MIB
from tensorfusion_dra.enforcers import preload
from tensorfusion_dra.enforcers.hami_core import lending
from tensorfusion_dra.enforcers.hami_core.cache import Cache
from tensorfusion_dra.enforcers.hami_core.declaration import HAMI_CORE
from tensorfusion_dra.enforcers.hami_core.lending import ClaimFolders, LendingLoop
from tensorfusion_dra.enforcers.preload import PreloadMethod

LIBRARY_IN_CONTAINER: Final = "/usr/local/vgpu/libvgpu.so"
"""Path from which HAMi-core loads itself."""

_CACHES_IN_CONTAINER: Final = "/usr/local/vgpu/claims"
_LOCKS_IN_CONTAINER: Final = "/tmp/vgpulock"  # noqa: S108 - fixed by HAMi-core

# Containers run as any user. Not sticky: where the kernel protects files in sticky folders
# (fs.protected_regular), a process could not open a file that another user created.
_CACHES_MODE: Final = 0o777
_LOCK_SECONDS: Final = 1.0


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
        return self._folders.claims

    def needs(self, claim: PreparedClaim) -> Needs:
        """Return the library, the file that preloads it and the folder of the claim's cache files.

        Raises:
            ClaimError: The claim's limits cannot be expressed by card index.
        """
        index_limits.check(replace(claim, shares=tuple(map(lending.in_environment, claim.shares))))
        if not self._folders.files(claim):
            return Needs()
        return Needs(
            files=(self.library,),
            folders=(Folder(path=self._folders.of_claim(claim), mode=_CACHES_MODE),),
            texts=preload.preload_files(self.method, LIBRARY_IN_CONTAINER, self._preload_file()),
        )

    def edits(self, claim: PreparedClaim, shares: Sequence[PreparedShare]) -> Edits:
        env = {names.ENV_ISOLATION_MODE: shares[0].isolation.value}
        limits = index_limits.limits(map(lending.in_environment, shares))
        if not limits:
            return Edits(env=env)
        cache = f"{_CACHES_IN_CONTAINER}/{lending.file_name(shares[0].request)}"
        # Empty, the switch in the file decides; an image could have `disable` there.
        policy = "" if lending.may_borrow(claim) else names.CORE_POLICY_FORCE
        env |= {
            **dict.fromkeys(names.HAMI_CORE_BYPASSES, ""),
            names.ENV_CORE_POLICY: policy,
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
            Mount(host_path=self._folders.of_claim(claim), container_path=path, read_only=False)
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
        # Before and after the files: they may be lifted, or limited again, while they are read.
        lifted = self._folders.lifted()
        caches = self._folders.caches(claim)
        lifted |= self._folders.lifted()
        lent = claim.ref.uid in lifted if lending.may_borrow(claim) else None
        reason = preload.library_reason(self.library)
        by_request = enforcer.enforced(claim)
        return [
            of_request(
                each.request,
                index_limits.limits(by_request[each.request]),
                caches,
                reason,
                lent=lent,
            )
            for each in shares
        ]

    def apply(self, claim: PreparedClaim, records: Records, deadline: float) -> None:
        """Write the memory limits of all claims; wait until others on its cards keep theirs."""
        if deadline == AT_ONCE or not self._folders.files(claim):
            return  # LendingLoop does it within a round
        wait_seconds = min(_LOCK_SECONDS, max(0.0, deadline - time.monotonic()))
        cards = {share.gpu_uuid for share in claim.shares}
        with self._folders.alone(wait_seconds=wait_seconds):
            above = self._folders.keep_memory_limits(records())
        for uuid in cards & above.keys():
            if above[uuid].ref.uid != claim.ref.uid:
                raise RetryableError(
                    f"claim {claim.ref}: {uuid}: found claim {above[uuid].ref} using more memory "
                    "than its limit, expected what was lent to it to be free again"
                )

    def raised(self) -> Mapping[str, int]:
        return dict.fromkeys(self._folders.lifted(), verdicts.WHOLE_PERCENT)

    def loops(self, node: NodeAccess) -> Mapping[str, Loop]:
        loop = LendingLoop(self._folders, node)
        loop.begin()
        return {"hami-core-lending": loop}

    @cached_property
    def _folders(self) -> ClaimFolders:
        return ClaimFolders(self.root)

    def _preload_file(self) -> str:
        return f"{self.root}/ld.so.preload"


def of_request(
    request: str,
    expected: Sequence[Limit],
    caches: Mapping[str, Cache],
    library_reason: str,
    *,
    lent: bool | None = None,
) -> Verdict:
    """Return the verdict about the cards of one request.

    Args:
        request: Its name.
        expected: Its limits by the index of a card in the container.
        caches: The files of the claim's requests, as read.
        library_reason: Why no process can load the library; "" if one can.
        lent: True while idle compute is lent to the claim; None if it never is, so that the switch
            of the compute limits has no effect.
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
                    f"{cache.path}: card {index}: found {found}, expected {limit}; either memory "
                    "that was lent is still in use, or the first process in the container had "
                    "other limits in its environment; start the pod again",
                )
        if lent is False and not cache.limits_compute:
            text = f"{cache.path}: found the compute limits lifted though nothing is lent"
            return verdicts.not_enforced(verdicts.LIMITS_DIFFER, f"{text}, expected them to hold")
        text = f"limits in {cache.path} as in the claim, registered processes: {cache.processes}"
        verdict = verdicts.enforced(verdicts.LIMITER_ACTIVE, text)
        if lent:
            text = f"{text}; the whole of its cards is lent to it while their other tenants idle"
            verdict = verdicts.enforced(verdicts.IDLE_COMPUTE_LENT, text)
        if cache.unlimited:
            compute = verdicts.not_enforced(
                verdicts.COMPUTE_NOT_LIMITED,
                f"{cache.path}: processes that HAMi-core never limits, as it has not found their "
                f"PID on the host: {cache.unlimited}; another one started at the same time; start "
                "the pod again",
            )
            verdict = verdicts.of_limits(verdict, compute)
        return verdict
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
