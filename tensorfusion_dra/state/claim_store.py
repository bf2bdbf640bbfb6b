"""The prepared claims of this node: one file a claim, read and written under one lock.

Two instances may use the store at the same time, and each may be killed, or lose power, at any
moment. The lock file counts the changes, so that an instance knows from one number whether the
records that it has decoded are still those of the disk; else it reads the folder again.

A change is made in three steps, of which only the first one holds the lock:

1. Write the record to `<uid>.new`, without waiting for the disk, or unlink a removed record. From
   now on every transaction of every instance sees it.
2. Flush the file, then the folder. Several calls do this at the same time.
3. Rename `<uid>.new` to `<uid>.json`, unless it has been replaced since: then flush that one. This
   rename need not be flushed: a start finishes a `.new` in the same way.

transaction() returns after the third step, and only then is the kubelet answered. What a block has
read with get() is flushed too: another instance may have written it a moment ago.

So a power cut loses nothing that was answered. It may lose a record, or bring a removed one back,
of which the kubelet was told nothing. It cannot keep the record of a claim B that got the room of a
removed claim A, and bring A back: B is answered after a flush of the folder that began after A's
file was unlinked. Nor does a change need room where it has to work on a full disk: to unlink a
file, and to make the lock file longer, take none.

A record that is damaged or missing never frees its share. While this process knows the record,
check() writes it again. Else the claim counts as damaged, also if only its other files show that
there was a record, until the API server says that this claim is gone. devices_of() finds in these
files which devices it has a share of, and admit.py and lending.py treat these as full until the
record is put again or removed.
"""

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Final

import structlog

from tensorfusion_dra.core.claims import lending
from tensorfusion_dra.core.claims.lending import Devices, LendingRules
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.errors import NoRoomError, RetryableError
from tensorfusion_dra.state import atomic, claim_records
from tensorfusion_dra.state.claim_records import NEW, WRITTEN, FoundRecords
from tensorfusion_dra.state.file_lock import FileLock

log = structlog.get_logger()

FOLDER: Final = "claims"
LOCK: Final = "claims.lock"
_WAIT_SECONDS: Final = 5.0
"""Longest wait for a thread or another instance; well below the kubelet's 45 s."""
_MODE: Final = 0o600
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """The records after this number of changes; a change makes a new object."""

    changes: int
    claims: Mapping[str, PreparedClaim]
    damaged: Mapping[str, Devices]


class Transaction:
    """The records, and changes of them that are written at the end of the block.

    Attributes:
        by_uid, damaged: As in _Known, with the changes so far.
    """

    def __init__(self, known: _Known, rules: LendingRules) -> None:
        self._before, self._rules = known, rules
        self.by_uid: Final = dict(known.claims)
        self.damaged: Final = dict(known.damaged)
        self.read: Final[set[str]] = set()
        self.written: Final[dict[str, None]] = {}  # UIDs, in the order of writing
        self.removed: Final[set[str]] = set()
        self.rebuilt = 0  # damaged records that were put again

    def get(self, claim_uid: str) -> PreparedClaim | None:
        """Return the record of a claim; None if there is none, or if it is damaged."""
        self.read.add(claim_uid)
        return self.by_uid.get(claim_uid)

    def put(self, claim: PreparedClaim) -> PreparedClaim:
        """Add the record, or replace an older one of the same UID, and divide its devices again.

        Return it with its limits. A new one comes after all claims on its devices.
        """
        uid = claim.ref.uid
        devices = {share.device for share in claim.shares}
        before = self._taken_out(uid)
        if not claim.sequence:
            last = max((other.sequence for other in self._tenants(devices)), default=0)
            claim = replace(claim, sequence=last + 1)
        self.by_uid[uid] = claim
        self.removed.discard(uid)
        self.rebuilt += uid in self._before.damaged
        self._divide(*before, devices)
        # After those of other claims: what these are granted for good holds without this one.
        self.written.pop(uid, None)
        self.written[uid] = None
        return self.by_uid[uid]

    def remove(self, claim_uid: str) -> None:
        """Remove the record, damaged or not, and divide its devices again.

        Also if there is none: another call may have removed it without a flush yet.
        """
        self.written.pop(claim_uid, None)
        self.removed.add(claim_uid)
        self._divide(*self._taken_out(claim_uid))

    def changed(self) -> Sequence[PreparedClaim]:
        """Return the claims that were recorded before, and whose limits the block has changed."""
        before = self._before.claims
        return [
            claim
            for uid, claim in self.by_uid.items()
            if claim is not before.get(uid, claim)
            and [share.limit for share in claim.shares]
            != [share.limit for share in before[uid].shares]
        ]

    def _taken_out(self, claim_uid: str) -> tuple[Devices, Devices]:
        """Remove a record; return its devices if it was damaged, and those of its shares."""
        claim = self.by_uid.pop(claim_uid, None)
        devices = {share.device for share in claim.shares} if claim else set()
        return self.damaged.pop(claim_uid, frozenset()), devices

    def _tenants(self, devices: Devices) -> list[PreparedClaim]:
        """Return the claims that have a share of one of the devices."""
        claims = list(self.by_uid.values())
        if devices is None:
            return claims
        return [each for each in claims if any(s.device in devices for s in each.shares)]

    def _divide(self, *several: Devices) -> None:
        devices = lending.united(several)
        concerned = self._tenants(devices)
        divided = lending.divided(concerned, self._rules, devices, self.damaged.values())
        for old, new in zip(concerned, divided, strict=True):
            self.by_uid[new.ref.uid] = new
            if [share.granted for share in new.shares] != [share.granted for share in old.shares]:
                self.written[new.ref.uid] = None


class ClaimStore:
    """Every prepared claim of this node; safe for all threads, and for two instances.

    Every method raises:
        NoRoomError: The disk is full.
        RetryableError: The disk is read-only or broken, or another process has the lock.
        FatalError: A newer release has written a record.
    """

    def __init__(
        self,
        folder: Path,
        *,
        rules: LendingRules,
        devices_of: Callable[[str], Devices] = lambda _: None,
        with_files: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        """Open the store in this folder, or create one, and finish what a crash has left.

        Args:
            folder: The driver's data folder.
            rules: By which limits are divided.
            devices_of: Returns the devices of a claim by its UID, from other files than its record;
                None if they do not say so.
            with_files: Returns the UIDs of the claims that have such files.

        Raises:
            FatalError: A newer release has written a record.
        """
        self._folder = folder / FOLDER
        self._rules, self._devices_of, self._with_files = rules, devices_of, with_files
        self._mutex = Lock()  # guards all below; _known is replaced as a whole
        self._known: _Known | None = None
        self._dismissed: set[str] = set()  # UIDs whose files count for no share
        self._counted = 0  # 1 while a change has been counted that _known does not have yet
        self._unflushed: set[str] = set()  # UIDs whose `.new` is not finished
        self.restored = 0
        with self._errors():
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._folder.mkdir(exist_ok=True, mode=0o700)
            atomic.sync_folder(folder)
            self._lock = FileLock(folder / LOCK, wait_seconds=_WAIT_SECONDS)
        try:
            with self._locked():
                self._known, found = self._scanned()
                # Nobody writes while this instance has the lock.
                for path in found.partial:
                    log.warning("unanswered_record_removed", path=str(path))
                    path.unlink()
                for path in atomic.unfinished(self._folder, prefix="", suffix=NEW):
                    path.unlink()
            for uid in found.unflushed:
                self._finish(uid)
        except BaseException:
            self._lock.close()
            raise

    def get(self, claim_uid: str) -> PreparedClaim | None:
        """Return the record of a claim; None if there is none, or if it is damaged.

        Waits for nobody, except for the flush of a record that was put a moment ago: whoever is
        answered from it may rely on it.
        """
        found = self._current().claims.get(claim_uid)
        if claim_uid in self._unflushed:
            self._finish(claim_uid)
        return found

    def claims(self) -> Sequence[PreparedClaim]:
        """Return every recorded claim, sorted by UID; waits for nobody if nothing has changed."""
        return sorted(self._current().claims.values(), key=lambda claim: claim.ref.uid)

    def damaged(self) -> Mapping[str, Devices]:
        """Return the devices of the claims whose records are damaged or missing, by UID."""
        return self._current().damaged

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Run a block while nobody else runs one: its changes survive a power cut.

        They are made at the end of the block, so an error in it changes nothing. Other blocks may
        run while these changes are flushed to the disk.
        """
        with self._locked():
            step = Transaction(self._current_in_lock(), self._rules)
            yield step
            if step.written or step.removed:
                self._write(step)
            unflushed = (step.read | step.written.keys()) & self._unflushed
        for uid in unflushed:
            self._finish(uid)
        if step.removed:
            with self._errors():
                atomic.sync_folder(self._folder)

    def check(self) -> None:
        """Write the records again whose files are missing or damaged."""
        with self.transaction() as step:
            for claim in step.by_uid.values():
                if not self._is_stored(claim):
                    log.warning("record_restored", claim=str(claim.ref), claim_uid=claim.ref.uid)
                    step.written[claim.ref.uid] = None
                    self.restored += 1

    def dismiss(self, claim_uid: str) -> None:
        """Stop counting a claim of which only files are left, because it is gone at the API
        server."""
        with self.transaction() as step:
            if not (self._folder / f"{claim_uid}{WRITTEN}").exists():
                self._dismissed.add(claim_uid)
                if claim_uid in step.damaged:
                    step.remove(claim_uid)

    def close(self) -> None:
        """Close the lock file; nothing is left to write."""
        with self._mutex:
            self._known = None
            self._lock.close()

    def _current(self) -> _Known:
        known = self._known
        with self._errors():
            # A change of this instance counts once all of it is written.
            if known is not None and known.changes + self._counted == self._lock.changes():
                return known
        with self._locked():
            return self._current_in_lock()

    def _current_in_lock(self) -> _Known:
        if self._known is None or self._known.changes != self._lock.changes():
            self._known, _ = self._scanned()
        return self._known

    def _scanned(self) -> tuple[_Known, FoundRecords]:
        found = claim_records.read_folder(self._folder)
        self._unflushed = set(found.unflushed)
        damaged = {uid: self._devices_of(uid) for uid in found.damaged}
        others = {*self._with_files()} - self._dismissed
        for uid in sorted(others - found.claims.keys() - damaged.keys()):
            if (devices := self._devices_of(uid)) is not None:
                damaged[uid] = devices
        claims = lending.divided(list(found.claims.values()), self._rules, damaged=damaged.values())
        known = _Known(
            changes=self._lock.changes(),
            claims={claim.ref.uid: claim for claim in claims},
            damaged=damaged,
        )
        return known, found

    def _write(self, step: Transaction) -> None:
        self._counted = 1
        try:
            # Before the first change: whoever is killed after it has counted it.
            known = _Known(
                changes=self._lock.count_change(),
                claims=step.by_uid,
                damaged=step.damaged,
            )
            try:
                self._write_records(step)
            except FileNotFoundError:  # somebody has removed the folder, with all records
                self._folder.mkdir(mode=0o700)
                atomic.sync_folder(self._folder.parent)
                step.written.update(dict.fromkeys(step.by_uid))
                self._write_records(step)
            for uid in step.removed:
                (self._folder / f"{uid}{NEW}").unlink(missing_ok=True)
                (self._folder / f"{uid}{WRITTEN}").unlink(missing_ok=True)
        except BaseException:
            self._known = None
            raise
        else:
            self._unflushed = (self._unflushed | step.written.keys()) - step.removed
            self._dismissed -= step.written.keys()
            self.restored += step.rebuilt
            self._known = known
        finally:
            self._counted = 0

    def _write_records(self, step: Transaction) -> None:
        for uid in step.written:
            path, content = self._folder / f"{uid}{NEW}", claim_records.content(step.by_uid[uid])
            atomic.write(path, content, mode=_MODE, durable=False)

    def _finish(self, uid: str) -> None:
        """Return once the record would survive a power cut, or is removed."""
        new = self._folder / f"{uid}{NEW}"
        is_finished = False
        while not is_finished:
            with self._errors():
                try:
                    descriptor = os.open(new, os.O_RDONLY | os.O_CLOEXEC)
                except FileNotFoundError:  # another call has finished it, or removed it
                    return
                try:
                    self._flush(new, descriptor)
                    with self._locked():
                        # Else it was put again meanwhile, and that one is to be flushed.
                        is_finished = self._is_at(new, descriptor)
                        if is_finished:
                            new.rename(self._folder / f"{uid}{WRITTEN}")
                            self._unflushed.discard(uid)
                finally:
                    os.close(descriptor)

    def _flush(self, new: Path, descriptor: int) -> None:
        try:
            os.fsync(descriptor)
            atomic.sync_folder(self._folder)
        except OSError:
            # Linux reports such an error once and forgets the data, so a second flush would prove
            # nothing. Without the record, no call is answered from it.
            with suppress(RetryableError), self._locked():
                if self._is_at(new, descriptor):
                    self._lock.count_change()
                    new.unlink()
            raise

    def _is_at(self, path: Path, descriptor: int) -> bool:
        """Return True if this is the file at the path; it stays open, so no other has its inode."""
        try:
            return os.path.samestat(path.stat(), os.fstat(descriptor))
        except FileNotFoundError:
            return False

    def _is_stored(self, claim: PreparedClaim) -> bool:
        for suffix in (NEW, WRITTEN):
            try:
                found = (self._folder / f"{claim.ref.uid}{suffix}").read_bytes()
            except FileNotFoundError:
                continue
            except OSError:
                return False
            return found == claim_records.content(claim)
        return False

    @contextmanager
    def _locked(self) -> Iterator[None]:
        # With a timeout: the thread that holds the mutex may itself wait for another process, and a
        # queue of such waits would exceed the kubelet's deadline.
        if not self._mutex.acquire(timeout=_WAIT_SECONDS):
            raise RetryableError(f"claim store {self._folder}: busy for {_WAIT_SECONDS} s")
        try:
            with self._errors(), self._lock.exclusive():
                yield
        finally:
            self._mutex.release()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            other = f"{error.filename}: " if error.filename else ""
            text = f"claim store {self._folder}: {other}{error.strerror or error}"
            raise (NoRoomError if error.errno in _FULL else RetryableError)(text) from error


def read(folder: Path) -> FoundRecords:
    """Return the records in a driver's data folder, beside a node plugin that may be running.

    Nothing is changed. The limits of the claims are to be computed: see lending.divided().

    Raises:
        RetryableError: They cannot be read, or the node plugin holds the lock.
        FatalError: Another release wrote them.
    """
    try:
        if not (folder / LOCK).exists():
            return FoundRecords()
        with closing(FileLock(folder / LOCK, wait_seconds=_WAIT_SECONDS)) as lock, lock.exclusive():
            return claim_records.read_folder(folder / FOLDER)
    except OSError as error:
        text = f"claim store {folder / FOLDER}: {error.filename or ''}: {error.strerror or error}"
        raise RetryableError(text) from error
