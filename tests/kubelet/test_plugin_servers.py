"""An instance's sockets are rebound if they vanish, and removed when no call is in flight."""

import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import grpc
import pytest
from structlog.testing import capture_logs

from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.errors import FatalError
from tensorfusion_dra.kubelet import plugin_servers, sockets
from tensorfusion_dra.kubelet.dra import DraService
from tensorfusion_dra.kubelet.health import HealthService
from tensorfusion_dra.kubelet.plugin_servers import PluginServers
from tensorfusion_dra.kubelet.registration import Registration
from tensorfusion_dra.runtime.calls_in_flight import CallsInFlight
from tests.support.kubelet import PluginClient
from tests.support.prepared_node import Setup, put_claim, share_result
from tests.support.waiting import FOREVER, PATIENCE_SECONDS, eventually


def fail(error: FatalError) -> None:
    raise AssertionError(error)


class Instance:
    """One instance on its sockets; reads of claims wait while go_on is cleared."""

    def __init__(self, folder: Path) -> None:
        self.setup = Setup(folder)
        self.paths = sockets.paths(
            registry_folder=folder / "r", data_folder=folder / "d", pod_uid="one"
        )
        self.registration = Registration(str(self.paths.dra))
        self.servers = PluginServers(
            self.paths,
            self.registration,
            DraService(self.setup.preparer, CallsInFlight(), fail),
            HealthService(self.setup.catalog),
        )
        self.stop_now = Event()
        self.stopping = Event()
        self.fetching, self.go_on = Event(), Event()
        self.go_on.set()
        fetch = self.setup.claims.fetch

        def slow_fetch(ref: ClaimRef, *, wait_seconds: float) -> Any:
            self.fetching.set()
            self.go_on.wait(PATIENCE_SECONDS)
            return fetch(ref, wait_seconds=wait_seconds)

        self.setup.claims.fetch = slow_fetch  # type: ignore[method-assign]

    def stop(self, drain_seconds: float = 5) -> None:
        self.servers.stop(drain_seconds=drain_seconds, stop_now=self.stop_now.is_set)

    def socket_names(self) -> list[str]:
        folder = self.paths.dra.parent.parent
        return sorted(path.name for path in folder.rglob("*") if path.is_socket())


@pytest.fixture
def instance() -> Iterator[Instance]:
    # A cancelled call may still write while the folder is removed.
    with tempfile.TemporaryDirectory(prefix="tf-", ignore_cleanup_errors=True) as folder:
        made = Instance(Path(folder))
        made.servers.serve()
        made.servers.announce()
        yield made
        made.go_on.set()
        made.stop()
        made.setup.ledger.close()


BOTH = ["dra-one.sock", "tensor-fusion.ai.dra-driver-one-reg.sock"]


@contextmanager
def call_in_flight(instance: Instance, ref: ClaimRef) -> Iterator[list[Any]]:
    """Keep a prepare call in flight until go_on is set; yield a list for its answer or error."""
    answers: list[Any] = []

    def call() -> None:
        with PluginClient(instance.paths.dra) as kubelet:
            try:
                answers.append(kubelet.prepare(ref))
            except grpc.RpcError as error:
                answers.append(error)

    instance.fetching.clear()
    instance.go_on.clear()
    calling = Thread(target=call)
    calling.start()
    try:
        assert instance.fetching.wait(PATIENCE_SECONDS)
        yield answers
    finally:
        instance.go_on.set()
        calling.join(PATIENCE_SECONDS)


@contextmanager
def stopping(instance: Instance, drain_seconds: float = FOREVER) -> Iterator[Thread]:
    thread = Thread(target=instance.stop, args=(drain_seconds,))
    thread.start()
    yield thread
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()


def test_both_sockets_stay_until_the_last_call_is_answered(instance: Instance) -> None:
    ref = put_claim(instance.setup, "a", share_result())
    with call_in_flight(instance, ref) as answers, stopping(instance) as thread:
        thread.join(0.5)
        assert thread.is_alive()
        assert instance.socket_names() == BOTH

        instance.go_on.set()
        thread.join(PATIENCE_SECONDS)

    assert answers[0].claims[ref.uid].error == ""
    assert instance.socket_names() == []


def test_call_that_begins_during_the_drain_is_answered(instance: Instance) -> None:
    first, second = (
        put_claim(instance.setup, "a", share_result()),
        put_claim(instance.setup, "b", share_result()),
    )
    with PluginClient(instance.paths.dra) as kubelet:
        instance.setup.prepare(second)
        with call_in_flight(instance, first) as answers, stopping(instance) as thread:
            thread.join(0.3)

            late = kubelet.unprepare(second)
            instance.go_on.set()

    assert late.claims[second.uid].error == ""
    assert answers[0].claims[first.uid].error == ""


def test_calls_longer_than_the_drain_are_cancelled_and_counted(instance: Instance) -> None:
    ref = put_claim(instance.setup, "a", share_result())
    with call_in_flight(instance, ref) as answers, capture_logs() as logs:
        instance.stop(drain_seconds=0.3)
        assert eventually(lambda: bool(answers))

        assert answers[0].code() in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}
        assert instance.socket_names() == []

    (line,) = [line for line in logs if line["event"] == "calls_cancelled"]
    assert line["calls"] == 1


def test_open_health_streams_do_not_delay_the_stop(instance: Instance) -> None:
    with PluginClient(instance.paths.dra) as kubelet:
        reports = kubelet.watch_health()
        next(reports)

        with stopping(instance) as thread:
            thread.join(PATIENCE_SECONDS)
            assert not thread.is_alive()

        assert list(reports) == []


@pytest.fixture
def kept(instance: Instance, monkeypatch: pytest.MonkeyPatch) -> Iterator[Instance]:
    monkeypatch.setattr(plugin_servers, "_LOOK_SECONDS", 0.02)
    keeping = Thread(target=instance.servers.keep, args=(instance.stopping,))
    keeping.start()
    yield instance
    instance.stopping.set()
    keeping.join(PATIENCE_SECONDS)
    assert not keeping.is_alive()


def test_vanished_registration_socket_is_bound_again(kept: Instance) -> None:
    kept.paths.registration.unlink()
    assert eventually(kept.paths.registration.is_socket)

    with PluginClient(kept.paths.registration) as kubelet:
        assert kubelet.plugin_info().endpoint == str(kept.paths.dra)


def test_vanished_dra_socket_is_bound_again_and_its_calls_go_on(kept: Instance) -> None:
    first, second = (
        put_claim(kept.setup, "a", share_result()),
        put_claim(kept.setup, "b", share_result()),
    )
    with call_in_flight(kept, first) as answers:
        kept.paths.dra.unlink()
        assert eventually(kept.paths.dra.is_socket)

        kept.go_on.set()
        with PluginClient(kept.paths.dra) as kubelet:
            late = kubelet.unprepare(second)
        assert eventually(lambda: bool(answers))

    assert late.claims[second.uid].error == ""
    assert answers[0].claims[first.uid].error == ""


def test_foreign_socket_at_our_path_stays_and_is_logged_once(kept: Instance) -> None:
    path = kept.paths.registration
    with socket.socket(socket.AF_UNIX) as other, capture_logs() as logs:
        other.bind(str(path) + "x")
        other.listen()
        path.with_name(path.name + "x").rename(path)
        assert eventually(lambda: bool(logs))
        assert not eventually(lambda: len(logs) > 1, seconds=0.5)

        assert path.is_socket()
        path.unlink()

    assert [line["event"] for line in logs[:1]] == ["socket_bind_failed"]
    assert "another process serves this socket" in logs[0]["error"]
    assert eventually(path.is_socket)


def test_kubelet_that_missed_the_socket_gets_a_new_one(
    kept: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = kept.paths.registration.stat().st_ino
    monkeypatch.setattr(plugin_servers, "_SILENCE_SECONDS", 0.2)

    assert eventually(lambda: inode(kept.paths.registration) not in (0, before))

    # The lock of those who bind: the socket is not replaced under the kubelet's call.
    with (
        sockets.exclusive(kept.paths.dra.parent),
        PluginClient(kept.paths.registration) as kubelet,
    ):
        kubelet.notify(registered=True)
    # A replacement may have waited for the lock; there is none after it.
    assert eventually(lambda: stays(kept.paths.registration))


def stays(path: Path) -> bool:
    now = inode(path)
    return now != 0 and not eventually(lambda: inode(path) != now, seconds=0.5)


def inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return 0
