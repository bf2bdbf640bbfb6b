"""An instance's sockets are rebound if they vanish, and removed when no call is in flight."""

import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any

import grpc
import pytest
from structlog.testing import capture_logs

from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.kubelet import plugin_servers, sockets
from tensorfusion_dra.runtime.calls import MAX_READING, MAX_WAITING_FOR_A_CLAIM
from tests.kubelet.conftest import Instance
from tests.support.kubelet import PluginClient
from tests.support.prepared_node import put_claim, share_result
from tests.support.threads import running
from tests.support.waiting import FOREVER, PATIENCE_SECONDS, eventually

BOTH = ["dra-one.sock", "tensor-fusion.ai.dra-driver-one-reg.sock"]


@contextmanager
def calls_in_flight(instance: Instance, *refs: ClaimRef) -> Iterator[dict[int, Any]]:
    """Prepare the claims in calls of their own; yield answers or errors by position.

    Reads of claims wait until go_on is set.
    """
    answers: dict[int, Any] = {}

    def call(number: int, ref: ClaimRef) -> None:
        with PluginClient(instance.paths.dra) as kubelet:
            try:
                answers[number] = kubelet.prepare(ref, seconds=60)
            except grpc.RpcError as error:
                answers[number] = error

    instance.go_on.clear()
    with ExitStack() as calls:
        for each in enumerate(refs):
            calls.enter_context(running(partial(call, *each), stop=instance.go_on.set))
        assert eventually(lambda: bool(instance.reading))
        yield answers


def stopping(instance: Instance) -> AbstractContextManager[Thread]:
    """Stop the instance during the block, however long its calls take."""
    return running(lambda: instance.stop(FOREVER), stop=lambda: None)


def put_two(instance: Instance) -> list[ClaimRef]:
    return [put_claim(instance.setup, name, share_result()) for name in "ab"]


def test_both_sockets_stay_and_new_calls_are_answered_until_the_last_call_is(
    instance: Instance,
) -> None:
    first, second = put_two(instance)
    with (
        PluginClient(instance.paths.dra) as kubelet,
        calls_in_flight(instance, first) as answers,
        stopping(instance) as thread,
    ):
        thread.join(0.3)
        late = kubelet.unprepare(second)
        assert thread.is_alive()
        assert instance.socket_names() == BOTH

        instance.go_on.set()
        thread.join(PATIENCE_SECONDS)

    assert late.claims[second.uid].error == ""
    assert answers[0].claims[first.uid].error == ""
    assert instance.socket_names() == []


def test_calls_longer_than_the_drain_are_cancelled_and_counted(instance: Instance) -> None:
    ref = put_claim(instance.setup, "a", share_result())
    with calls_in_flight(instance, ref) as answers, capture_logs() as logs:
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


EXCESS = 20
"""Number of calls beyond a bound."""


@pytest.mark.parametrize(
    ("claims", "calls", "reason"),
    [
        (MAX_READING + EXCESS, 1, f"{MAX_READING} other calls wait for the API server already"),
        (
            1,
            1 + MAX_WAITING_FOR_A_CLAIM + EXCESS,
            f"{MAX_WAITING_FOR_A_CLAIM} other calls wait for another call's claim already",
        ),
    ],
    ids=["each for its read", "all for one claim"],
)
def test_waiting_calls_leave_workers_for_calls_that_need_no_read(
    instance: Instance, claims: int, calls: int, reason: str
) -> None:
    known, *new = (
        put_claim(instance.setup, f"claim-{number}", share_result(tflops="1", vram="512Mi"))
        for number in range(1 + claims)
    )
    instance.setup.prepare(known)

    with calls_in_flight(instance, *new * calls) as answers:
        assert eventually(lambda: len(answers) == EXCESS)
        refused = [answers[number].claims for number in list(answers)]
        with PluginClient(instance.paths.dra) as kubelet:
            assert next(kubelet.watch_health()).devices
            assert kubelet.unprepare(known).claims[known.uid].error == ""
        instance.servers.check()

    assert {claim.error.endswith(reason) for found in refused for claim in found.values()} == {True}
    assert all(
        not claim.error
        for number in list(answers)[EXCESS:]
        for claim in answers[number].claims.values()
    )


@pytest.fixture
def kept(instance: Instance, monkeypatch: pytest.MonkeyPatch) -> Iterator[Instance]:
    monkeypatch.setattr(plugin_servers, "_POLL_SECONDS", 0.02)
    stopping = Event()
    with running(lambda: instance.servers.keep(stopping), stop=stopping.set):
        yield instance


def test_vanished_registration_socket_is_bound_again(kept: Instance) -> None:
    kept.paths.registration.unlink()
    assert eventually(kept.paths.registration.is_socket)

    with PluginClient(kept.paths.registration) as kubelet:
        assert kubelet.plugin_info().endpoint == str(kept.paths.dra)


def test_vanished_dra_socket_is_bound_again_and_its_calls_go_on(kept: Instance) -> None:
    first, second = put_two(kept)
    with calls_in_flight(kept, first) as answers:
        kept.paths.dra.unlink()
        assert eventually(kept.paths.dra.is_socket)

        kept.go_on.set()
        with PluginClient(kept.paths.dra) as kubelet:
            late = kubelet.unprepare(second)
        assert eventually(lambda: bool(answers))

    assert late.claims[second.uid].error == ""
    assert answers[0].claims[first.uid].error == ""


def test_other_socket_at_our_path_stays_and_is_logged_once(kept: Instance) -> None:
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

    with capture_logs() as logs:
        assert eventually(lambda: inode(kept.paths.registration) not in (0, before))
    assert "kubelet_awaited" in [line["event"] for line in logs]

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
