"""A slow API server takes no workers from calls that do not need it."""

import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from tensorfusion_dra.cluster.api import RetriedReads
from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.runtime.waiting_calls import MOST_READING, MOST_WAITING_FOR_A_CLAIM
from tests.kubelet.test_plugin_servers import Instance
from tests.support.kubelet import PluginClient
from tests.support.prepared_node import put_claim, share_result
from tests.support.waiting import eventually

EXCESS = 20
"""Number of calls beyond a bound."""


class SlowServer:
    """API server that delays every read of a claim until go_on is set, and counts the reads."""

    def __init__(self, instance: Instance) -> None:
        self._fetch = instance.setup.claims.fetch
        self._reads = RetriedReads()
        self._guard = threading.Lock()  # guards waiting
        self.waiting = 0
        self.go_on = threading.Event()
        instance.setup.claims.fetch = self.fetch  # type: ignore[method-assign]

    def fetch(self, ref: ClaimRef, *, wait_seconds: float) -> Any:
        def request(_seconds: float) -> Any:
            with self._guard:
                self.waiting += 1
            assert self.go_on.wait(60)
            return self._fetch(ref, wait_seconds=wait_seconds)

        return self._reads.with_retries(f"claim {ref}", request, wait_seconds=wait_seconds)


@pytest.fixture
def instance() -> Iterator[Instance]:
    with tempfile.TemporaryDirectory(prefix="tf-") as folder:
        made = Instance(Path(folder))
        made.servers.serve()
        made.servers.announce()
        yield made
        made.stop()
        made.setup.ledger.close()


@contextmanager
def calls(instance: Instance, refs: list[ClaimRef]) -> Iterator[dict[int, Any]]:
    """Prepare all claims at the same time; yield answers or errors by position, as they arrive."""
    answers: dict[int, Any] = {}

    def call(number: int, ref: ClaimRef) -> None:
        try:
            answers[number] = kubelet.prepare(ref, seconds=60)
        except grpc.RpcError as error:
            answers[number] = error

    with PluginClient(instance.paths.dra) as kubelet:
        threads = [threading.Thread(target=call, args=each) for each in enumerate(refs)]
        for thread in threads:
            thread.start()
        yield answers
        for thread in threads:
            thread.join(60)


def check_that_other_calls_are_answered(instance: Instance, known: ClaimRef) -> None:
    with PluginClient(instance.paths.dra) as kubelet:
        reports = kubelet.watch_health()
        assert next(reports).devices
        assert kubelet.unprepare(known).claims[known.uid].error == ""
    instance.servers.check()


def test_hanging_reads_leave_workers_for_other_calls(instance: Instance) -> None:
    known = put_claim(instance.setup, "known", share_result())
    instance.setup.prepare(known)
    slow = SlowServer(instance)
    new = [
        put_claim(instance.setup, f"new-{number}", share_result())
        for number in range(MOST_READING + EXCESS)
    ]

    with calls(instance, new) as answers:
        try:
            assert eventually(lambda: slow.waiting == MOST_READING)
            assert eventually(lambda: len(answers) == EXCESS)
            refused = [answers[number].claims[new[number].uid].error for number in answers]
            check_that_other_calls_are_answered(instance, known)
        finally:
            slow.go_on.set()

    expected = f"{MOST_READING} other calls wait for the API server already"
    assert all(text.endswith(expected) for text in refused)


def test_calls_waiting_for_one_claim_leave_workers_for_other_calls(
    instance: Instance,
) -> None:
    known = put_claim(instance.setup, "known", share_result())
    instance.setup.prepare(known)
    slow = SlowServer(instance)
    shared = put_claim(instance.setup, "shared", share_result())

    with calls(instance, [shared] * (1 + MOST_WAITING_FOR_A_CLAIM + EXCESS)) as answers:
        try:
            assert eventually(lambda: len(answers) == EXCESS)
            refused = [answers[number].claims[shared.uid].error for number in answers]
            assert slow.waiting == 1
            check_that_other_calls_are_answered(instance, known)
        finally:
            slow.go_on.set()

    expected = f"{MOST_WAITING_FOR_A_CLAIM} other calls wait for another call's claim already"
    assert all(text.endswith(expected) for text in refused)
    assert all(not answers[number].claims[shared.uid].error for number in list(answers)[EXCESS:])
