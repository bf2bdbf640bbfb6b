"""A thread that runs one call at a time, even if calls raise or hang."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tensorfusion_dra.runtime.single_call_thread import OverdueError, SingleCallThread
from tests.support.waiting import FOREVER, PATIENCE_SECONDS


@pytest.fixture
def thread() -> SingleCallThread:
    return SingleCallThread("tried")


@pytest.mark.parametrize("error", [ValueError("wrong"), TimeoutError("its own")])
def test_error_of_the_call_is_raised_in_the_caller(
    thread: SingleCallThread, error: Exception
) -> None:
    def call() -> None:
        raise error

    with pytest.raises(type(error), match=str(error)):
        thread.run(call, wait_seconds=FOREVER)
    assert thread.run(lambda: "and then", wait_seconds=FOREVER) == "and then"


def test_call_that_is_handed_over_runs_while_the_caller_goes_on(thread: SingleCallThread) -> None:
    gate = threading.Event()

    first = thread.submit(lambda: gate.wait(PATIENCE_SECONDS))
    assert first is not None
    assert thread.submit(lambda: True) is None
    gate.set()

    assert first.result(PATIENCE_SECONDS)


def test_callers_share_one_thread_and_their_calls_never_overlap(thread: SingleCallThread) -> None:
    inside = threading.Lock()

    def call() -> tuple[int, bool]:
        if not inside.acquire(blocking=False):
            return threading.get_ident(), False
        threading.Event().wait(0.001)  # long enough for another call to start
        inside.release()
        return threading.get_ident(), True

    with ThreadPoolExecutor(8) as callers:
        seen = set(callers.map(lambda _: thread.run(call, wait_seconds=FOREVER), range(100)))

    ((ident, exclusive),) = seen
    assert exclusive
    assert ident != threading.get_ident()


def test_hanging_call_times_out_and_starts_no_second_thread(thread: SingleCallThread) -> None:
    go = threading.Event()
    before = threading.active_count()

    for _ in range(5):
        with pytest.raises(OverdueError):
            thread.run(go.wait, wait_seconds=0.05)

    assert threading.active_count() == before + 1
    go.set()
    assert thread.run(lambda: "free", wait_seconds=FOREVER) == "free"
