"""Question whether an HTTP server of this node is healthy.

Prepares wait for the answer if the settings require an enforcer, so the whole question is bounded:
one wait to connect, one for the first bytes, which have the status. http.client has no such bound.
It reads all headers, and its timeout starts again with each piece: a server that sends a byte now
and then would hold up a prepare for as long as it likes.
"""

import socket
from typing import Final

_WAIT_SECONDS: Final = 1.0
_HEALTHY: Final = b" 200 "
_ANSWER_BYTES: Final = 64


def trouble(host: str, port: int, path: str) -> str:
    """Return why an HTTP server does not answer a GET of this path with 200; "" if it does."""
    try:
        with socket.create_connection((host, port), timeout=_WAIT_SECONDS) as client:
            client.sendall(f"GET {path} HTTP/1.0\r\nHost: {host}\r\n\r\n".encode())
            answer = client.recv(_ANSWER_BYTES)
    except TimeoutError:
        return f"no answer within {_WAIT_SECONDS:g} s"
    except OSError as error:
        return error.strerror or str(error)
    first = answer.partition(b"\r\n")[0] + b" "
    if first.startswith(b"HTTP/") and _HEALTHY in first:
        return ""
    return f"found {first[:40].decode('ascii', errors='replace').strip()!r}, expected 200"
