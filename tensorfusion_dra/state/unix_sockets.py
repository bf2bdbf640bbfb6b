"""Unix sockets of other programs: whether a process behind one accepts connections."""

import errno
import os
import socket
import stat
from pathlib import Path
from typing import Final

_REASONS: Final = {
    0: "",
    errno.ECONNREFUSED: "found a socket of an ended process, expected a running one",
    errno.EAGAIN: "found a process that accepts no connections, expected one that does",
}
_TYPES: Final = (socket.SOCK_SEQPACKET, socket.SOCK_STREAM)
"""Types that accept connections. NVIDIA's MPS control daemon has sockets of the first type."""


def reason(path: str) -> str:
    """Return why nothing accepts connections on a socket; "" if a process does.

    Connect and close the connection at once; send nothing and never wait. A socket's file is no
    evidence: it stays after its process was killed, and that of the MPS control daemon stays after
    a proper `quit` as well. Only a connection shows whether a process listens. It works through a
    read-only mount and from another network namespace.

    Args:
        path: Of the socket's file; at most 107 bytes, which is the kernel's limit.
    """
    try:
        if not stat.S_ISSOCK(Path(path).stat().st_mode):
            return "found no socket, expected one that a process listens on"
        for kind in _TYPES:
            with socket.socket(socket.AF_UNIX, kind) as connection:
                # Without this, connect() would wait while the queue of a hung process is full.
                connection.settimeout(0)
                found = connection.connect_ex(path)
            if found != errno.EPROTOTYPE:  # that of another type
                return _REASONS.get(found, os.strerror(found))
    except OSError as error:
        return error.strerror or str(error)
    return "found a datagram socket, expected one with connections"
