"""Verdict under HAMi-core: a library in the container that counts in a file of its claim.

The first process that loads the library writes its limits into the file; each process registers in
it. So the file is there only once a process has loaded the library, and it has the limits by which
the library really refuses. It has process IDs of the container, which cannot be looked up from
outside, so a registered process may have been killed by now.
"""

from collections.abc import Mapping
from typing import Final

from tensorfusion_dra.core.claims.enforcement import verdict
from tensorfusion_dra.core.claims.enforcement.signs import Cache, Signs
from tensorfusion_dra.core.claims.enforcement.soft_limiter import shown
from tensorfusion_dra.core.claims.enforcement.verdict import Verdict
from tensorfusion_dra.core.claims.limits import Limit

_WHOLE_PERCENT: Final = 100


def judge(request: str, expected: tuple[Limit, ...], signs: Signs) -> Verdict:
    """Return the verdict about the cards of one request.

    Args:
        request: Name of the request.
        expected: The request's limits by the index of a card in the container.
        signs: What was read.
    """
    cache = _cache(request, signs.caches)
    if cache is not None and cache.trouble:
        return verdict.unknown(verdict.UNREADABLE, f"{cache.path}: {cache.trouble}")
    if cache is not None and cache.processes:
        return _of_limits(cache, expected)
    missing = [f"{file.path}: {file.trouble}" for file in signs.files if file.trouble]
    if missing:
        return verdict.not_enforced(
            verdict.LIMITER_MISSING,
            f"{missing[0]}: no container can load HAMi-core; put it there",
        )
    return verdict.unknown(
        verdict.NO_PROCESS,
        "no process has registered with HAMi-core: none has used the GPU yet, or it runs without "
        "the library",
    )


def _cache(request: str, caches: Mapping[str, Cache]) -> Cache | None:
    """Return the file of a request.

    A container that uses several requests of its claim counts in the file of one of them. Their
    limits are equal (enforcers/by_index.py), so that one speaks for all.
    """
    own = caches.get(request)
    if own is not None and (own.processes or own.trouble):
        return own
    return next((cache for cache in caches.values() if cache.processes), own)


def _of_limits(cache: Cache, expected: tuple[Limit, ...]) -> Verdict:
    for index, (limit, found) in enumerate(zip(expected, cache.limits, strict=False)):
        if _exceeds(found, limit):
            return verdict.not_enforced(
                verdict.LIMITS_DIFFER,
                f"{cache.path}: card {index}: found {shown(found)}, expected {shown(limit)}; the "
                "first process in the container had other limits in its environment; start the "
                "pod anew",
            )
    return verdict.enforced(
        verdict.LIMITER_ACTIVE,
        f"limits in {cache.path} as in the claim, registered processes: {cache.processes}",
    )


def _exceeds(found: Limit, limit: Limit) -> bool:
    """Return True if more is allowed than the limit; HAMi-core takes 0 for no limit."""
    percent = found.sm_percent or _WHOLE_PERCENT
    return not found.vram_bytes or found.vram_bytes > limit.vram_bytes or percent > limit.sm_percent
