"""Lending under HAMi-core: compute that is idle, and memory that nobody has reserved.

Compute. HAMi-core's limits of compute are read once by each process, but one switch in the claim's
file lifts them all, and lets them hold again within 120 ms (cache.py). So compute is lent as a
whole: to a claim that works and may borrow, while all other tenants of all its cards are idle. With
two that work, each has its limit. So at most one tenant of a card has its limits lifted.

LendingLoop reads the files of all tenants at least twice a second. A tenant works from the moment
at which a launch is seen, a process with utilization, or use by NVML, and then for IDLE_SECONDS, so
that pauses between kernels do not make limits come and go. What is not known counts as work: a file
that is new or cannot be read, a process without a PID on the host, a tenant of another enforcer, a
launch in the future. Beside a claim whose record is damaged nothing is lent.

Example: A and B have a quarter of a card each and may borrow. A works, B has done nothing for ten
seconds: A gets the card. B launches a kernel: the next round, at most ROUND_SECONDS later, lets A's
limits hold again, and A's processes read that after at most 120 ms more.

Nothing stays lifted unnoticed. Which claims are lifted is in a file that no container sees, from
before the first switch is off until after the last one is on again, and judge() compares with it. A
stop takes everything back at once. A start takes back, before the kubelet can call, what a killed
process could not. Of two instances, the one with the lock lends. Files of lifted claims stay open,
so that a tenant that removes its file cannot keep what it has borrowed.

Memory. Its limits are in the same files, and are divided by the records (core/claims/lending.py).
A limit is lowered first, but never below what is in use, as CUDA would then report an error
instead of the free memory. While a tenant uses more than its limit, no limit on its cards is
raised. The loop repeats this, so a new file has its limits within a round. A second file that no
container sees has the limits that were written last; until then they are those of the container's
environment. A tenant may forge what it uses, or make its file unreadable: then it counts as using
what it had by that file, and no more.
"""

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from tensorfusion_dra.core.claims import enforcer, index_limits
from tensorfusion_dra.core.claims import lending as lending_rules
from tensorfusion_dra.core.claims.enforcer import NodeAccess
from tensorfusion_dra.core.claims.lending import Devices
from tensorfusion_dra.core.claims.prepared import PreparedClaim, PreparedShare
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.enforcers import written_files
from tensorfusion_dra.enforcers.hami_core import cache
from tensorfusion_dra.enforcers.hami_core.cache import Cache
from tensorfusion_dra.enforcers.hami_core.declaration import HAMI_CORE
from tensorfusion_dra.enforcers.patience import HungEnforcerError, node_lock
from tensorfusion_dra.runtime.loops import LogThrottle
from tensorfusion_dra.state import atomic

ROUND_SECONDS: Final = 0.4
IDLE_SECONDS: Final = 10.0
_FUTURE_SECONDS: Final = 2
"""A launch later than this was seen before the clock was set back, and hides newer ones."""
_REFILL_SECONDS: Final = 60.0

NOBODY: Final[frozenset[str]] = frozenset()


class ClaimFolders:
    """Where HAMi-core's files of claims are on the host, and who has borrowed compute."""

    def __init__(self, root: str) -> None:
        """Args:
        root: The enforcer's folder.
        """
        self.root: Final = root
        self.claims: Final = f"{root}/claims"
        self._lifted = Path(root) / "lifted"
        self._budget = WriteBudget()
        self._memory = Path(root) / "memory-limits"
        self._recorded: Mapping[str, Sequence[int]] = {}  # by path, changed inside alone() only

    def of_claim(self, claim: PreparedClaim) -> str:
        """Return the folder that the claim's containers write to."""
        return f"{self.claims}/{claim.ref.uid}"

    def files(self, claim: PreparedClaim) -> Mapping[str, str]:
        """Return the path of the file of each request with limits on real cards."""
        folder = self.of_claim(claim)
        return {
            request: f"{folder}/{file_name(request)}"
            for request, shares in enforcer.enforced(claim).items()
            if index_limits.limits(shares) and not enforcer.is_simulated(shares)
        }

    def caches(self, claim: PreparedClaim) -> Mapping[str, Cache]:
        """Return what is in the claim's files, by request."""
        return {request: cache.read(path) for request, path in self.files(claim).items()}

    def lifted(self) -> frozenset[str]:
        """Return the UIDs of the claims whose compute limits are lifted now."""
        return frozenset(_uid(path) for path in self.lifted_files())

    def lifted_files(self) -> frozenset[str]:
        """Return the paths of the files in which the compute limits are lifted now."""
        return _lines(self._lifted)

    def record_lifted(self, paths: AbstractSet[str]) -> None:
        """Record the files in which the compute limits are lifted.

        Raises:
            RetryableError: What was recorded before remains.
        """
        self._record(self._lifted, paths)

    def _record(self, file: Path, lines: AbstractSet[str]) -> None:
        if lines == _lines(file):
            return
        try:
            # It counts in this boot only, so it need not survive a power cut.
            atomic.write(file, "\n".join(sorted(lines)).encode(), mode=0o644, durable=False)
        except OSError as error:
            raise RetryableError(f"{file}: {error.strerror or error}") from error

    def alone(self, *, wait_seconds: float) -> AbstractContextManager[None]:
        """Change memory limits inside the block; no other thread or instance does meanwhile.

        Raises:
            HungEnforcerError: Another call does for so long.
        """
        return node_lock(Path(self.root) / "limits.lock", wait_seconds=wait_seconds)

    def keep_memory_limits(self, claims: Sequence[PreparedClaim]) -> Mapping[str, PreparedClaim]:
        """Write the memory limits that the records give; return who uses more, by GPU UUID.

        Call it inside alone().

        Args:
            claims: All claims of the node; others than HAMi-core's are skipped.

        Raises:
            RetryableError: The limits cannot be recorded, so none is raised.
        """
        self._budget.keep_only({claim.ref.uid for claim in claims})
        before, held = self._held(), dict[str, Sequence[int]]()
        recorded: dict[str, Sequence[int]] = {}
        above: dict[str, PreparedClaim] = {}
        raises: list[tuple[PreparedClaim, str]] = []
        for claim in claims:
            if claim.enforcer != HAMI_CORE.name or not any(s.divides_memory for s in claim.shares):
                continue
            wanted = file_limits(claim)
            first = file_limits(replace(claim, shares=tuple(map(in_environment, claim.shares))))
            for request, path in self.files(claim).items():
                limits = recorded[path] = wanted[request]
                if self._recorded.get(path, limits) != limits:
                    self._budget.renew(claim.ref.uid)
                cards = _cards(claim, request)
                had = before.get(path, first[request])
                new, is_sure = self._lower(claim, path, limits, had, cards=len(cards))
                # A process may allocate after the last reading, so it has until the next round.
                held[path] = new if is_sure else had
                pairs = [*zip(new, limits, strict=True)]
                over = (card for card, (has, want) in zip(cards, pairs, strict=False) if has > want)
                above |= dict.fromkeys(over, claim)
                if is_sure and any(has < want for has, want in pairs):
                    raises.append((claim, path))
        # Claims whose records cannot be read now; files that no claim has are removed.
        held |= {path: before[path] for path in before.keys() - held if Path(path).parent.exists()}
        raised = {
            path: recorded[path]
            for claim, path in raises
            if all(share.gpu_uuid not in above for share in claim.shares)
            and self._budget.take(claim.ref.uid)
        }
        self._record_held({**held, **raised})
        written = {path: limits for path, limits in raised.items() if _is_written(path, limits)}
        self._record_held({**held, **written})
        self._recorded = recorded
        return above

    def _held(self) -> Mapping[str, Sequence[int]]:
        """Return the memory limits that processes may have, by the path of their file."""
        lines = (line.split(" ") for line in _lines(self._memory))
        return {
            path: [int(each) for each in limits]
            for path, *limits in lines
            if len(limits) == cache.CARDS
        }

    def _record_held(self, held: Mapping[str, Sequence[int]]) -> None:
        self._record(self._memory, {f"{path} {' '.join(map(str, held[path]))}" for path in held})

    def _lower(
        self,
        claim: PreparedClaim,
        path: str,
        limits: Sequence[int],
        before: Sequence[int],
        *,
        cards: int,
    ) -> tuple[Sequence[int], bool]:
        """Lower the memory limits in a file as far as they may be.

        A tenant may forge what it uses, and may make the file unreadable. Then it counts as using
        what it had before, and no more.

        Args:
            limits: As recorded.
            before: Those that its processes had.
            cards: Number of the container's cards; more indexes are used by nobody.

        Returns:
            Those of its processes, and whether the file had them already.
        """
        new = before
        for changes in range(2):  # a process may allocate between reading and writing
            found = cache.read(path)
            if not found.limits:
                return before, False
            has = [limit.vram_bytes for limit in found.limits]
            used = [*(found.used or before)[:cards], *[0] * (cache.CARDS - cards)]
            floors = [max(want, min(u, b)) for want, u, b in zip(limits, used, before, strict=True)]
            new = [
                # What was allocated meanwhile is in use as well. HAMi-core takes 0 for no limit.
                floor if found.used and floor > want else min(old or floor, floor)
                for old, floor, want in zip(has, floors, limits, strict=True)
            ]
            if new == has:
                return new, not changes
            if not (self._budget.take(claim.ref.uid) and _is_written(path, new)):
                return before, False
        return new, False

    def limit_compute(self, claim_uid: str, path: str) -> None:
        """Let the compute limits in a file hold, if it can be written."""
        with suppress(OSError), written_files.opened(path, access=os.O_RDWR) as found:
            if self._budget.take(claim_uid):
                cache.switch_compute_limits(found, on=True)

    def may_lift(self, file: "LiftedFile") -> bool:
        """Return True if the switch of this file may be written, which is another one than before.

        The page of a file that was written before has been charged already.
        """
        return self._budget.take(_uid(file.path))


def _is_written(path: str, limits: Sequence[int]) -> bool:
    """Write memory limits into a file; return False if that is not possible."""
    try:
        cache.set_memory_limits(path, limits)
    except OSError:  # the tenant removed it
        return False
    return True


def _lines(file: Path) -> frozenset[str]:
    """Return the lines of a file; none if there is none, or if it cannot be read."""
    try:
        return frozenset(file.read_text(encoding="utf-8").splitlines())
    except (OSError, ValueError):
        return frozenset()


def _uid(path: str) -> str:
    """Return the UID of a file's claim."""
    return Path(path).parent.name


def file_name(request: str) -> str:
    """Return the name of a request's file in the folder of its claim."""
    return f"{request}.cache"


def file_limits(claim: PreparedClaim) -> Mapping[str, Sequence[int]]:
    """Return the memory limits in the file of each request: bytes for each of HAMi-core's cards.

    A container that uses several requests counts in the file of one of them, by an index among the
    cards of all. So the files of several requests have the smallest limit at every index.
    """
    by_request = {
        request: index_limits.limits(shares) for request, shares in enforcer.enforced(claim).items()
    }
    found: dict[str, Sequence[int]] = {}
    for request, limits in by_request.items():
        if limits:
            every = [each for other in by_request.values() for each in other]
            least = index_limits.smallest(every).vram_bytes
            own = [] if len(by_request) > 1 else [limit.vram_bytes for limit in limits]
            found[request] = (own + [least] * cache.CARDS)[: cache.CARDS]
    return found


def in_environment(share: PreparedShare) -> PreparedShare:
    """Return the share with the limit with which its containers start."""
    return replace(share, limit=share.granted or share.limit) if share.limit else share


def _cards(claim: PreparedClaim, request: str) -> Sequence[str]:
    """Return the UUIDs of a container's cards by the index in a request's file, as far as known."""
    by_request = enforcer.enforced(claim)
    shares = by_request[request] if len(by_request) == 1 else claim.shares
    return index_limits.cards(share for share in shares if not share.admin_access)


class WriteBudget:
    """Bounds how often files of a claim are written because its tenant has changed them.

    A page of a file that this process writes may be charged to it, and a tenant can have a new file
    written as often as it likes. So each claim has MAX writes, and one more each minute, until its
    recorded limits change.
    """

    MAX: Final = 64

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._left: dict[str, tuple[float, float]] = {}  # writes, and their time, by claim UID

    def take(self, claim_uid: str) -> bool:
        """Return True if the claim has a write left, and count it."""
        now = self._clock()
        left, at = self._left.get(claim_uid, (float(self.MAX), now))
        left = min(self.MAX, left + (now - at) / _REFILL_SECONDS)
        may_write = left >= 1
        self._left[claim_uid] = left - may_write, now
        return may_write

    def renew(self, claim_uid: str) -> None:
        """Let a claim have all writes again."""
        self._left.pop(claim_uid, None)

    def keep_only(self, claim_uids: AbstractSet[str]) -> None:
        """Forget all other claims."""
        self._left = {uid: each for uid, each in self._left.items() if uid in claim_uids}


def may_borrow(claim: PreparedClaim) -> bool:
    """Return True if the claim's containers were started so that idle compute can be lent."""
    shares = [share for share in claim.shares if not share.admin_access]
    return (
        claim.enforcer == HAMI_CORE.name
        and not enforcer.is_simulated(shares)
        and all(share.limit and share.idle_compute for share in shares)
    )


def borrowers(
    claims: Iterable[PreparedClaim], working: AbstractSet[str], damaged: Devices
) -> frozenset[str]:
    """Return the UIDs of the claims that may use all of their cards now.

    Args:
        claims: All claims of these cards.
        working: UIDs of those that work.
        damaged: Devices of claims whose records cannot be read.
    """
    at_work: dict[str, set[str]] = {}
    for claim in claims:
        if claim.ref.uid in working:
            for device in _devices(claim):
                at_work.setdefault(device, set()).add(claim.ref.uid)
    return frozenset(
        claim.ref.uid
        for claim in claims
        if may_borrow(claim)
        and all(
            at_work.get(device) == {claim.ref.uid} and not lending_rules.includes(damaged, device)
            for device in _devices(claim)
        )
    )


def _devices(claim: PreparedClaim) -> AbstractSet[str]:
    """Return the devices of which the claim is a tenant."""
    return {share.device for share in claim.shares if not share.admin_access}


class LiftedFile:
    """An open file of a claim, in which this process lifts the compute limits."""

    def __init__(self, path: str) -> None:
        """Open the file.

        Raises:
            OSError: It cannot be opened.
        """
        self.path: Final = path
        self._stack = ExitStack()
        self._descriptor = self._stack.enter_context(written_files.opened(path, access=os.O_RDWR))
        self._found = os.fstat(self._descriptor)

    def lift(self) -> None:
        """Lift the limits until close().

        Raises:
            OSError: The file cannot be written.
        """
        cache.switch_compute_limits(self._descriptor, on=False)
        self._stack.callback(cache.switch_compute_limits, self._descriptor, on=True)

    def is_same(self, other: "LiftedFile | None") -> bool:
        """Return True if both are one file, open or not."""
        return other is not None and os.path.samestat(self._found, other._found)

    def is_lifted(self) -> bool:
        """Return True if processes that open the path now find the limits lifted."""
        try:
            found = os.stat(self.path, follow_symlinks=False)  # noqa: PTH116 - each round
            is_here = os.path.samestat(found, self._found)
            return is_here and cache.compute_is_lifted(self._descriptor)
        except OSError:
            return False

    def close(self) -> None:
        """Let the limits hold if they were lifted, whether or not the tenant removed the file.

        Raises:
            OSError: The file cannot be written; it is closed.
        """
        self._stack.close()


class LendingLoop:
    """Loop that lends idle compute, takes it back, and keeps memory limits in the files."""

    def __init__(
        self,
        folders: ClaimFolders,
        node: NodeAccess,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """Args:
        folders: Of the enforcer.
        node: Records and observed use.
        clock: In seconds; must not go back.
        wall_clock: In seconds since 1970.
        """
        self._folders = folders
        self._node = node
        self._clock = clock
        self._wall_clock = wall_clock
        self._throttle = LogThrottle()
        self._launches: dict[str, list[int]] = {}  # last seen, by claim UID
        self._working_until: dict[str, float] = {}  # by claim UID
        self._open: dict[str, LiftedFile] = {}  # by path
        self._last: dict[str, LiftedFile] = {}  # lifted last, open or not; by path

    def begin(self) -> None:
        """Take back what a killed process has lent, unless another instance lends now."""
        if self._has_claims():
            log_errors = self._throttle.warning("idle_compute_not_taken_back")
            with log_errors, suppress(HungEnforcerError), self._alone():
                self._take_back()

    def stop(self) -> None:
        """Do nothing: NodeAccess.wait_for_stop() ends run() before any other part stops."""

    def run(self) -> None:
        """Lend until the process stops, then take everything back."""
        while not self._node.wait_for_stop(ROUND_SECONDS):
            if not self._has_claims():
                continue
            log_errors = self._throttle.warning("idle_compute_not_lent")
            with log_errors, suppress(HungEnforcerError), self._alone():  # hung: another one lends
                self._take_back()
                try:
                    while not self._node.wait_for_stop(ROUND_SECONDS):
                        self.check()
                finally:
                    self._lift(NOBODY, ())

    def check(self) -> None:
        """Do one round.

        Raises:
            RetryableError: The records cannot be read now, or what is lent cannot be recorded.
        """
        claims = self._node.records()
        devices = {device for claim in claims if may_borrow(claim) for device in _devices(claim)}
        tenants = [claim for claim in claims if not devices.isdisjoint(_devices(claim))]
        working = self._working(tenants)
        damaged = lending_rules.united(self._node.damaged().values())
        self._lift(borrowers(tenants, working, damaged), tenants)
        with suppress(HungEnforcerError), self._folders.alone(wait_seconds=0):
            self._folders.keep_memory_limits(self._node.records())

    def _working(self, claims: Sequence[PreparedClaim]) -> AbstractSet[str]:
        """Return the UIDs of the claims that work, or have until a moment ago."""
        now, uids = self._clock(), {claim.ref.uid for claim in claims}
        observed = self._node.working()
        for claim in claims:
            uid = claim.ref.uid
            if self._works(claim) or observed is None or uid in observed:
                self._working_until[uid] = now + IDLE_SECONDS
        for gone in self._working_until.keys() - uids:
            del self._working_until[gone]
            self._launches.pop(gone, None)
        self._last = {path: file for path, file in self._last.items() if _uid(path) in uids}
        return {uid for uid, until in self._working_until.items() if now < until}

    def _works(self, claim: PreparedClaim) -> bool:
        """Return True if the claim's files show work, or do not show that there is none."""
        shares = [share for share in claim.shares if not share.admin_access]
        if claim.enforcer != HAMI_CORE.name or not all(share.limit for share in shares):
            return True
        caches = self._folders.caches(claim).values()
        launches = [each.launched_at for each in caches]
        is_new = launches != self._launches.get(claim.ref.uid)
        self._launches[claim.ref.uid] = launches
        for each in caches:
            if not each.limits_compute and each.path not in self._open:
                self._folders.limit_compute(claim.ref.uid, each.path)
        latest = self._wall_clock() + _FUTURE_SECONDS
        return is_new or any(
            each.reason or each.is_busy or each.launched_at > latest for each in caches
        )

    def _take_back(self) -> None:
        """Let the compute limits hold that a killed process has lifted.

        Raises:
            RetryableError: That cannot be recorded.
        """
        for path in self._folders.lifted_files():
            self._folders.limit_compute(_uid(path), path)
        self._lift(NOBODY, ())

    def _lift(self, uids: AbstractSet[str], claims: Iterable[PreparedClaim]) -> None:
        """Lift the compute limits of these claims, and of no others.

        Raises:
            RetryableError: That cannot be recorded, so nothing more is lifted.
        """
        paths = {
            path
            for claim in claims
            if claim.ref.uid in uids
            for path in self._folders.files(claim).values()
        }
        for path in [*self._open]:
            if path not in paths or not self._open[path].is_lifted():
                with suppress(OSError):
                    self._open.pop(path).close()
        with ExitStack() as stack:
            opened = {}
            for path in paths - self._open.keys():
                with suppress(OSError):
                    file = LiftedFile(path)
                    if file.is_same(self._last.get(path)) or self._folders.may_lift(file):
                        self._last[path] = opened[path] = file
                        stack.callback(file.close)
                    else:
                        file.close()
            self._folders.record_lifted(self._open.keys() | opened.keys())
            stack.pop_all()
        for path, file in opened.items():
            try:
                file.lift()
                self._open[path] = file
            except OSError:  # the tenant made it too short
                file.close()
        self._folders.record_lifted(self._open.keys())

    def _has_claims(self) -> bool:
        """Return True if a claim was prepared for HAMi-core in this boot."""
        return Path(self._folders.claims).exists()

    def _alone(self) -> AbstractContextManager[None]:
        """Be the only instance that lends.

        Raises:
            HungEnforcerError: Another one lends.
        """
        return node_lock(Path(self._folders.root) / "lending.lock", wait_seconds=0)
