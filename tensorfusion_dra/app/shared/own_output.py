"""Standard output of verbs that print a document, kept free of what packages print."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_STDOUT: Final = 1
_STDERR: Final = 2


@contextmanager
def only() -> Iterator[None]:
    """Send standard output to standard error meanwhile, that of child processes too.

    For calls of providers and enforcers of other packages: a line of theirs in `-o json` would make
    it unreadable.
    """
    sys.stdout.flush()
    kept = os.dup(_STDOUT)
    os.dup2(_STDERR, _STDOUT)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, _STDOUT)
        os.close(kept)
