"""Clients that connect to a server before it has accepted any of them."""

import selectors
import socket
from contextlib import ExitStack


def connected_at_once(port: int, clients: int) -> int:
    """Return how many of these clients are connected without a second attempt."""
    with ExitStack() as opened, selectors.DefaultSelector() as pending:
        for _ in range(clients):
            client = opened.enter_context(socket.socket())
            client.settimeout(0)
            client.connect_ex(("127.0.0.1", port))
            pending.register(client, selectors.EVENT_WRITE)
        return len(pending.select(timeout=0))
