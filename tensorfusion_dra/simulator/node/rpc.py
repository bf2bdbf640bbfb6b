"""What can be told of a plugin's socket and of a call that failed on it."""

import socket
from typing import Final

import grpc

_PROBE_SECONDS: Final = 0.1


def is_served(endpoint: str) -> bool:
    """Whether somebody listens on the socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(_PROBE_SECONDS)
        try:
            probe.connect(endpoint)
        except TimeoutError:
            return True
        except OSError:
            return False
    return True


def rpc_code(error: Exception) -> grpc.StatusCode | None:
    """Why a call failed; None if it was not made."""
    # grpcio's errors are its calls as well, which its types do not tell.
    found: grpc.StatusCode | None = error.code() if hasattr(error, "code") else None
    return found


def rpc_text(error: Exception) -> str:
    """A failed call as Go prints it."""
    code = rpc_code(error)
    if code is None or not hasattr(error, "details"):
        return str(error)
    name = "".join(part.capitalize() for part in code.name.split("_"))
    return f"rpc error: code = {name} desc = {error.details()}"
