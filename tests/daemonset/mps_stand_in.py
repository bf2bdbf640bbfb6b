"""Stand-in for nvidia-cuda-mps-control: the daemon (-f) and the command that talks to it.

It answers as the daemon of driver 535 was seen to: a SOCK_SEQPACKET socket that stays after the
daemon, M for an unknown unit, no error for an unknown value, and exit status 1 of the command
without a daemon. The
daemon writes its arguments and the commands that it gets to the file $MPS_STAND_IN_LOG.
"""

import os
import re
import socket
import sys
from pathlib import Path


def control() -> Path:
    """Return the path of the daemon's socket."""
    return Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"]) / "control"


def note(text: str) -> None:
    with Path(os.environ["MPS_STAND_IN_LOG"]).open("a") as log:
        log.write(f"{text}\n")


def serve() -> None:
    """Answer commands until one of them is to quit."""
    percentage = float(os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE") or 100)
    memory: dict[str, str] = {}
    ended = False
    control().unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(str(control()))
        server.listen(128)
        while not ended:
            connection, _ = server.accept()
            with connection:
                while not ended and (command := connection.recv(4096).decode()):
                    note(command)
                    answer = ""
                    match command.split():
                        case ["get_default_active_thread_percentage"]:
                            answer = f"{percentage}\n"
                        case ["set_default_device_pinned_mem_limit", card, value]:
                            if number := re.match(r"[1-9][0-9]*", value):
                                unit = "G" if value[number.end() :].startswith("G") else "M"
                                memory[card] = f"{number[0]}{unit}\n"
                        case ["get_default_device_pinned_mem_limit", card]:
                            answer = memory.get(card, "")
                        case ["quit", *_]:
                            ended = True
                    connection.send(answer.encode() or b"\0")


def ask() -> int:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        try:
            connection.connect(str(control()))
        except OSError:
            sys.stderr.write("Cannot find MPS control daemon process\n")
            return 1
        for line in sys.stdin:
            connection.send(line.strip().encode())
            sys.stdout.write(connection.recv(4096).decode().strip("\0"))
    return 0


def main() -> int:
    if sys.argv[1:2] != ["-f"]:
        return ask()
    if os.environ.get("MPS_STAND_IN_FAILS"):
        sys.stderr.write("no room for the daemon\n")
        return 1
    note(f"started with {sys.argv[1:]} as {os.getpid()}")
    serve()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
