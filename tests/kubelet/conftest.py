"""One instance of the node plugin on its sockets."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.kubelet import sockets
from tensorfusion_dra.kubelet.dra import DraService, HealthService
from tensorfusion_dra.kubelet.plugin_servers import PluginServers
from tensorfusion_dra.runtime.calls import MAX_READING, CallsInFlight, WaitingCalls
from tests.support.prepared_node import Setup
from tests.support.waiting import PATIENCE_SECONDS, eventually


class Rounds(Event):
    """The end of a loop, which makes no pauses meanwhile and counts its rounds."""

    begun = 0

    def wait(self, timeout: float | None = None) -> bool:
        self.begun += 1
        return super().wait(0.005)


class Instance:
    """One instance on its sockets; reads of claims wait while go_on is cleared.

    Attributes:
        fatal: Errors that would end the process.
        reading: Claims whose reads were sent to the API server, in order.
    """

    def __init__(self, folder: Path) -> None:
        self.setup = Setup(folder)
        self.paths = sockets.paths(
            registry_folder=folder / "r", data_folder=folder / "d", pod_uid="one"
        )
        self.draining = Event()
        self.rounds = Rounds()
        self.fatal: list[Exception] = []
        self.servers = PluginServers(
            self.paths,
            DraService(self.setup.preparer, CallsInFlight(), self.fatal.append),
            HealthService(self.setup.catalog),
        )
        self.reading: list[str] = []
        self.go_on = Event()
        self.go_on.set()
        fetch = self.setup.claims.fetch
        reading = WaitingCalls(MAX_READING, reason="wait for the API server")

        def slow_fetch(ref: ClaimRef, *, wait_seconds: float) -> Any:
            with reading.slot(f"claim {ref}"):
                self.reading.append(ref.name)
                self.go_on.wait(PATIENCE_SECONDS)
                return fetch(ref, wait_seconds=wait_seconds)

        self.setup.claims.fetch = slow_fetch  # type: ignore[method-assign]

    def stop(self, drain_seconds: float = 5) -> None:
        """Stop; draining is set once the calls in flight are waited for."""

        def stop_now() -> bool:
            self.draining.set()
            return False

        self.servers.stop(drain_seconds=drain_seconds, stop_now=stop_now)

    def await_rounds(self, count: int) -> None:
        """Wait until the sockets have been looked after this number of times."""
        last = self.rounds.begun + count
        assert eventually(lambda: self.rounds.begun > last)

    def socket_names(self) -> list[str]:
        folder = self.paths.dra.parent.parent
        return sorted(path.name for path in folder.rglob("*") if path.is_socket())


@pytest.fixture
def instance() -> Iterator[Instance]:
    # Pytest's own paths are too long for a socket. A cancelled call may still write while the
    # folder is removed.
    with tempfile.TemporaryDirectory(prefix="tf-", ignore_cleanup_errors=True) as folder:
        made = Instance(Path(folder))
        made.servers.serve()
        made.servers.announce()
        yield made
        made.go_on.set()
        made.stop()
