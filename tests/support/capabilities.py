"""The rights that the manifests leave the driver: root without any capability."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_VERSION_3: Final = 0x20080522
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Sets(ctypes.Structure):
    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    )


@contextmanager
def without_capabilities() -> Iterator[None]:
    """Take all effective capabilities from this thread for a while; who has none stays as it is."""
    header = _Header(version=_VERSION_3, pid=0)
    sets = (_Sets * 2)()
    _call("capget", header, sets)
    before = [each.effective for each in sets]
    for each in sets:
        each.effective = 0
    _call("capset", header, sets)
    try:
        yield
    finally:
        for each, effective in zip(sets, before, strict=True):
            each.effective = effective
        _call("capset", header, sets)


def give_to_a_container(path: Path, mode: int) -> None:
    """Have a folder as its container left it: of another user, where a test may arrange that."""
    path.chmod(mode)
    if os.geteuid() == 0:
        os.chown(path, 1000, 1000)


def _call(name: str, header: _Header, sets: object) -> None:
    if getattr(_LIBC, name)(ctypes.byref(header), sets):
        raise OSError(ctypes.get_errno(), name)
