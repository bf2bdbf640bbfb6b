"""State of a plugin's socket, and the code and text of failed calls."""

import socket
from typing import Final

import grpc

_PROBE_SECONDS: Final = 0.1


def is_served(endpoint: str) -> bool:
    """Return True if a process listens on the socket."""
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
    """Return the gRPC status code of an error; None if the call was not sent."""
    # grpcio's errors are also its calls, which its type stubs do not declare.
    found: grpc.StatusCode | None = error.code() if hasattr(error, "code") else None
    return found


def rpc_text(error: Exception) -> str:
    """Return the text of a failed call in the format of grpc-go."""
    code = rpc_code(error)
    if code is None or not hasattr(error, "details"):
        return str(error)
    name = "".join(part.capitalize() for part in code.name.split("_"))
    return f"rpc error: code = {name} desc = {error.details()}"
