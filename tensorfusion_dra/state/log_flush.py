"""Flush of the ledger's log to the disk, one for all transactions that were committed before it.

SQLite appends each commit to its write-ahead log, but does not flush it (synchronous = NORMAL): a
power cut may lose the latest commits, and never damages the ledger. A transaction counts as durable
once the log was flushed after its commit. One flush is enough for all threads that wait at that
time (group commit):

    thread 1    commit 1, flush ────────┐
    thread 2      commit 2, wait ───────┤ flush ──────┐
    thread 3        commit 3, wait ─────┘ wait for it ┘

Thread 1's flush may have begun before commit 2, so thread 2 flushes again, for thread 3 as well.
Other threads run their transactions during a flush.
"""

import os
from pathlib import Path
from threading import Condition


class LogFlush:
    """The flushes of one open database; safe for all threads."""

    def __init__(self, log: Path) -> None:
        """Open the log and flush it, with everything that is committed now.

        SQLite creates the log when it opens the database, and keeps the file until it is closed.

        Raises:
            OSError: The log cannot be opened or flushed.
        """
        self._changed = Condition()  # guards all below
        self._commits = 0
        self._durable = 0  # every commit up to this one is on the disk
        self._is_flushing = False
        self._failure: OSError | None = None
        self._descriptor = os.open(log, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fdatasync(self._descriptor)
        except BaseException:
            os.close(self._descriptor)
            raise

    def count_commit(self) -> int:
        """Return the number of the commit that was just made, for wait_durable()."""
        with self._changed:
            self._commits += 1
            return self._commits

    def wait_durable(self, commit: int) -> None:
        """Return once the commit would survive a power cut.

        Raises:
            OSError: The log could not be flushed, now or earlier. What the disk has is unknown
                then: Linux reports such an error once and forgets the data. So no later flush
                counts either, and the database has to be opened again.
        """
        while True:
            with self._changed:
                while self._is_flushing and self._durable < commit and self._failure is None:
                    self._changed.wait()
                if self._durable >= commit:
                    return
                if self._failure is not None:
                    raise OSError(self._failure.errno, self._failure.strerror)
                self._is_flushing = True
                covered = self._commits
            failure = None
            try:
                os.fdatasync(self._descriptor)
            except OSError as error:
                failure = error
            with self._changed:
                self._is_flushing = False
                if failure is None:
                    self._durable = max(self._durable, covered)
                else:
                    self._failure = failure
                self._changed.notify_all()

    def close(self) -> None:
        """Flush what is committed, for the threads that still wait, and close the log.

        Raises:
            OSError: The log could not be flushed.
        """
        try:
            self.wait_durable(self._commits)
        finally:
            os.close(self._descriptor)
