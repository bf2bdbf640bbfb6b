"""An instance's sockets are rebound if they vanish, and removed when no call is in flight."""

import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from threading import Thread
from typing import Any

import grpc
import pytest

from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.kubelet import plugin_servers, sockets
from tensorfusion_dra.runtime.calls import MAX_READING, MAX_WAITING_FOR_A_CLAIM
from tests.kubelet.conftest import Instance
from tests.support.kubelet import PluginClient
from tests.support.logs import capture_logs
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
    return running(lambda: instance.stop(FOREVER), stop=instance.go_on.set)


def test_both_sockets_stay_and_new_calls_are_answered_until_the_last_call_is(
    instance: Instance,
) -> None:
    first, second = (put_claim(instance.setup, name, share_result()) for name in "ab")
    with calls_in_flight(instance, first) as answers, stopping(instance):
        assert instance.draining.wait(PATIENCE_SECONDS)
        with PluginClient(instance.paths.dra) as kubelet:
            late = kubelet.unprepare(second)
        assert (instance.socket_names(), answers) == (BOTH, {})

    assert late.claims[second.uid].error == answers[0].claims[first.uid].error == ""
    assert instance.socket_names() == []


def test_calls_longer_than_the_drain_are_cancelled_and_counted(instance: Instance) -> None:
    ref = put_claim(instance.setup, "a", share_result())
    with calls_in_flight(instance, ref) as answers, capture_logs() as logs:
        instance.stop(drain_seconds=0.3)
        assert eventually(lambda: bool(answers))

        assert answers[0].code() in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}
        assert instance.socket_names() == []

    assert [line["calls"] for line in logs if line["event"] == "calls_cancelled"] == [1]


def test_open_health_streams_do_not_delay_the_stop(instance: Instance) -> None:
    with PluginClient(instance.paths.dra) as kubelet:
        reports = kubelet.watch_health()
        next(reports)

        with stopping(instance):
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
        with PluginClient(instance.paths.dra) as kubelet:
            assert next(kubelet.watch_health()).devices
            assert kubelet.unprepare(known).claims[known.uid].error == ""
        instance.servers.check()

    errors = [claim.error for answer in answers.values() for claim in answer.claims.values()]
    assert all(error.endswith(reason) for error in errors[:EXCESS])
    assert not any(errors[EXCESS:])


@pytest.fixture
def kept(instance: Instance) -> Iterator[Instance]:
    with running(lambda: instance.servers.keep(instance.rounds), stop=instance.rounds.set):
        yield instance


def test_vanished_registration_socket_is_bound_again(kept: Instance) -> None:
    kept.paths.registration.unlink()
    assert eventually(kept.paths.registration.is_socket)

    with PluginClient(kept.paths.registration) as kubelet:
        assert kubelet.plugin_info().endpoint == str(kept.paths.dra)


def test_vanished_dra_socket_is_bound_again_and_its_calls_go_on(kept: Instance) -> None:
    first, second = (put_claim(kept.setup, name, share_result()) for name in "ab")
    with calls_in_flight(kept, first) as answers:
        kept.paths.dra.unlink()
        assert eventually(kept.paths.dra.is_socket)

        with PluginClient(kept.paths.dra) as kubelet:
            late = kubelet.unprepare(second)

    assert late.claims[second.uid].error == answers[0].claims[first.uid].error == ""


def test_other_socket_at_our_path_stays_and_is_logged_once(kept: Instance) -> None:
    path = kept.paths.registration
    with socket.socket(socket.AF_UNIX) as other, capture_logs() as logs:
        other.bind(str(path) + "x")
        other.listen()
        path.with_name(path.name + "x").rename(path)
        assert eventually(lambda: bool(logs))
        kept.await_rounds(3)

        assert path.is_socket()
        (line,) = logs
        path.unlink()

    assert line["event"] == "socket_bind_failed"
    assert "another process serves this socket" in line["error"]
    assert eventually(path.is_socket)


def test_kubelet_that_missed_the_socket_gets_a_new_one(
    kept: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = kept.paths.registration
    before = path.stat().st_ino

    with capture_logs() as logs:
        monkeypatch.setattr(plugin_servers, "_SILENCE_SECONDS", 0.2)
        assert eventually(lambda: path.is_socket() and path.stat().st_ino != before)
    assert "kubelet_awaited" in [line["event"] for line in logs]

    # The lock of those who bind: the socket is not replaced under the kubelet's call.
    with sockets.exclusive(kept.paths.dra.parent), PluginClient(path) as kubelet:
        kubelet.notify(registered=True)
    kept.await_rounds(1)  # a replacement may have waited for the lock; there is none after it
    last = path.stat().st_ino
    kept.await_rounds(3)
    assert path.stat().st_ino == last
