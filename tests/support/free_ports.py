"""Ports on loopback that a test may bind more than once."""

import random
import socket
from contextlib import suppress


def port_of_no_client() -> int:
    """Return a free port that the kernel gives to no client, so that a server finds it again."""
    for port in random.sample(range(20_000, 30_000), 10_000):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("found no free port from 20000 to 29999")
