"""Stand in for nvidia-cuda-mps-control: the socket of the daemon, and nothing behind it.

usage: python mps_stand_in.py -f        runs until `quit`, like the daemon in the foreground
       echo quit | python mps_stand_in.py

CUDA_MPS_PIPE_DIRECTORY names the folder of the socket `control`.
"""

import os
import socket
import sys
from pathlib import Path


def main() -> int:
    """Serve, or pass a command on."""
    path = Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"]) / "control"
    if sys.argv[1:] == ["-f"]:
        serve(path)
        return 0
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(str(path))
        connection.sendall(sys.stdin.readline().strip().encode())
    return 0


def serve(path: Path) -> None:
    """Accept connections until one of them says quit."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(str(path))
        server.listen()
        command = b""
        while command != b"quit":
            connection, _ = server.accept()
            with connection:
                command = connection.recv(4096)
    path.unlink()


if __name__ == "__main__":
    sys.exit(main())
