"""Ports on loopback that are free now and stay so until a server binds them."""

import random
import socket
from contextlib import suppress
from typing import Final

LOOPBACK: Final = "127.0.0.1"

_PORTS: Final = range(20_000, 30_000)
"""Below the ports that Linux gives to clients (net.ipv4.ip_local_port_range, from 32768 on)."""


def port_of_no_client() -> int:
    """Return a free port that the kernel gives to no client, so that a server can bind it later."""
    for port in random.sample(_PORTS, len(_PORTS)):
        with suppress(OSError), socket.create_server((LOOPBACK, port)):
            return port
    raise OSError(f"found no free port on {LOOPBACK} from {_PORTS[0]} to {_PORTS[-1]}")
