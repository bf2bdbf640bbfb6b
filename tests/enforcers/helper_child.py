"""A process behind an enforcer: serves until it is killed. Its argument names it and its place.

It prints a line once it serves, so that a test knows when to stop it.
"""

import socket
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any, cast

import grpc

from tensorfusion_dra.app.memory_limits import LimitsServer
from tensorfusion_dra.runtime.supervisor import Supervisor


class Limits:
    """Limits that are always as wanted."""

    def check_driver(self) -> None:
        pass

    def check(self) -> list[str]:
        return [""]

    def set(self, pod: str, limits: Mapping[str, int], beside: object) -> list[str]:
        return [*limits]

    def get(self, pod: str, gpus: list[str]) -> dict[str, tuple[int, int]]:
        return dict.fromkeys(gpus, (1, 1))


def main(kind: str, place: str) -> None:
    if kind == "memory-limits":
        supervisor = Supervisor()
        served = LimitsServer(cast("Any", Limits()), Path(place))
        print("serving", flush=True)  # noqa: T201
        served.run(supervisor)
    elif kind == "device-plugin":
        server = grpc.server(ThreadPoolExecutor(2))
        for number in range(16):
            server.add_insecure_port(f"unix:{place}/tensor-fusion-index-{number}.sock")
        server.start()
        print("serving", flush=True)  # noqa: T201
        Event().wait()
    else:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as daemon:
            daemon.bind(place)
            daemon.listen(2)
            print("serving", flush=True)  # noqa: T201
            while True:
                daemon.accept()[0].close()


if __name__ == "__main__":
    main(*sys.argv[1:])
