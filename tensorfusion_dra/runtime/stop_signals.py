"""Signals that ask a process to stop, kept until the process can act on them.

The kernel drops a SIGTERM that process 1 of a container neither blocks nor handles, and the pod
then waits for its whole grace period. A blocked signal stays pending until a thread waits for it.
Therefore the image's entrypoint starts every verb with these signals blocked, and the verbs that
serve block them before they import large modules, which takes most of their first second.
"""

import signal
from typing import Final

STOP_SIGNALS: Final = frozenset({signal.SIGTERM, signal.SIGINT})


def block() -> None:
    """Keep stop signals pending in this thread and the threads that it starts."""
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)


def unblock() -> None:
    """Let stop signals end the process, as they do by default."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
