"""The token of requests: asked for now and then, by one thread at a time."""

from threading import Event, Thread

import pytest

from tensorfusion_dra.cluster import credentials
from tensorfusion_dra.cluster.credentials import Credentials
from tests.support.virtual_time import VirtualClock
from tests.support.waiting import PATIENCE_SECONDS


def test_token_is_asked_for_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = VirtualClock()
    monkeypatch.setattr(credentials, "time", clock)
    tokens = iter(["Bearer a", "Bearer b"])
    asked = Credentials(lambda: next(tokens))

    lines = set()
    for _ in range(8):
        lines.add(asked.line(wait_seconds=1))
        clock.sleep(0.125)
    assert lines == {b"Authorization: Bearer a\r\n"}

    assert asked.line(wait_seconds=1) == b"Authorization: Bearer b\r\n"


@pytest.mark.parametrize("value", [None, "", "\n"])
def test_request_without_credentials_has_no_header(value: str | None) -> None:
    assert Credentials(lambda: value).line(wait_seconds=1) == b""


def test_line_break_after_a_token_is_left_out() -> None:
    assert Credentials(lambda: "Bearer a\n").line(wait_seconds=1) == b"Authorization: Bearer a\r\n"


def test_line_break_in_a_token_is_refused_without_the_token() -> None:
    asked = Credentials(lambda: "Bearer s3cr3t\r\nX-Remote-User: root")

    with pytest.raises(ValueError, match="control character") as caught:
        asked.line(wait_seconds=1)

    assert "s3cr3t" not in str(caught.value)


def test_latest_two_tokens_are_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "_ASK_SECONDS", 0.0)
    values = iter(["Bearer a", "Bearer b", "Bearer b", "Basic c"])
    asked = Credentials(lambda: next(values))
    for _ in range(4):
        asked.line(wait_seconds=1)

    assert asked.secrets() == {"b", "c"}


def test_failure_is_asked_for_again() -> None:
    outcomes = iter([ValueError("no token yet"), None])

    def read() -> str:
        error = next(outcomes)
        if error is not None:
            raise error
        return "Bearer a"

    asked = Credentials(read)
    with pytest.raises(ValueError, match="no token yet"):
        asked.line(wait_seconds=1)

    assert asked.line(wait_seconds=1) == b"Authorization: Bearer a\r\n"


def test_renewal_happens_once_and_others_wait_for_it_within_their_time() -> None:
    asked, ready = Event(), Event()
    reads = []

    def read() -> str:
        reads.append("read")
        asked.set()
        assert ready.wait(PATIENCE_SECONDS)
        return "Bearer a"

    shared = Credentials(read)
    lines: list[bytes] = []
    threads = [
        Thread(target=lambda: lines.append(shared.line(wait_seconds=PATIENCE_SECONDS)))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    assert asked.wait(PATIENCE_SECONDS)

    with pytest.raises(TimeoutError):
        shared.line(wait_seconds=0.01)
    ready.set()
    for thread in threads:
        thread.join()

    assert lines == [b"Authorization: Bearer a\r\n"] * 3
    assert reads == ["read"]
