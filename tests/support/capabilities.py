"""The rights that the manifests leave the driver: root without any capability."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_VERSION_3: Final = 0x20080522
_LIBC: Final = ctypes.CDLL(None, use_errno=True)

_EFFECTIVE: Final = (0, 3)
"""Places of the effective sets, which two structures of effective, permitted, inheritable have."""


@contextmanager
def without_capabilities() -> Iterator[None]:
    """Take all effective capabilities from this thread for a while; who has none stays as it is."""
    header, sets = (ctypes.c_uint32 * 2)(_VERSION_3, 0), (ctypes.c_uint32 * 6)()
    _call("capget", header, sets)
    before = bytes(sets)
    for place in _EFFECTIVE:
        sets[place] = 0
    _call("capset", header, sets)
    try:
        yield
    finally:
        _call("capset", header, ctypes.create_string_buffer(before, len(before)))


def give_to_a_container(path: Path, mode: int) -> None:
    """Have a folder as its container left it: of another user, where a test may arrange that."""
    path.chmod(mode)
    if os.geteuid() == 0:
        os.chown(path, 1000, 1000)


def _call(name: str, *arguments: object) -> None:
    if getattr(_LIBC, name)(*arguments):
        raise OSError(ctypes.get_errno(), name)
