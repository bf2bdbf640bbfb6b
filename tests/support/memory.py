"""Memory that a block of a test takes, also while threads of a test's server are at work."""

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def at_most(max_bytes: int) -> Iterator[None]:
    """Check what the block takes at its peak, beside what was there before; needs tracing on."""
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    yield
    _, peak = tracemalloc.get_traced_memory()
    assert peak - before < max_bytes
