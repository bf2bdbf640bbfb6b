"""A request ends within its bounds of time and bytes, whatever the server sends."""

import itertools
from collections.abc import Callable, Iterable
from pathlib import Path
from threading import Thread

import pytest

from tensorfusion_dra.cluster import api as cluster_api
from tensorfusion_dra.cluster import connections
from tensorfusion_dra.cluster.api import Api
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.driver.ports.cluster import UnreadableError
from tests.support.answers import SLICES_PATH
from tests.support.raw_server import chunk, head, served

MIB = 2**20
CHUNKED = head("Transfer-Encoding: chunked")

Answer = Callable[[], Iterable[bytes]]


def outcome_of(request: Callable[[], object]) -> object:
    """Return the result or the error of a request, which must end within a minute."""
    found: list[object] = []

    def run() -> None:
        try:
            found.append(request())
        except RetryableError as error:
            found.append(error)

    thread = Thread(target=run, daemon=True)
    thread.start()
    thread.join(60)
    assert found, "the request goes on for ever"
    return found[0]


@pytest.mark.parametrize(
    "answer",
    [
        lambda: itertools.chain([b"HTTP/1.1 200 "], itertools.repeat(b"x")),
        lambda: itertools.chain([head()[:-2], b"X: "], itertools.repeat(b"x")),
        lambda: itertools.chain([head("Content-Length: 99999")], itertools.repeat(b" ")),
        lambda: itertools.chain([CHUNKED], itertools.repeat(chunk(b" "))),
        lambda: itertools.chain([CHUNKED, b"1;"], itertools.repeat(b"x")),
        lambda: itertools.chain([head()], itertools.repeat(b" ")),
        lambda: itertools.chain(
            [head("Content-Length: 99999", status=500)], itertools.repeat(b"x")
        ),
        lambda: itertools.repeat(b"HTTP/1.1 100 Continue\r\n\r\n"),
    ],
    ids=["status", "header", "body", "chunks", "chunk-size", "until-closed", "error", "continue"],
)
def test_response_that_drips_bytes_times_out(tmp_path: Path, answer: Answer) -> None:
    with served(answer, pause_seconds=0.05) as server:
        api = Api(server.kubeconfig(tmp_path))
        api.connect()

        outcome = outcome_of(lambda: api.call("GET", SLICES_PATH, wait_seconds=1.5))

    assert str(outcome) == f"GET {SLICES_PATH}: no answer within the time"
    assert len(server.requests) == 1


def test_watch_event_that_drips_bytes_times_out(tmp_path: Path) -> None:
    pieces = itertools.chain([CHUNKED], itertools.repeat(chunk(b'{"a":')))
    with served(lambda: pieces, pause_seconds=0.05) as server:
        api = Api(server.kubeconfig(tmp_path))
        api.connect()

        def follow() -> object:
            with api.watch(SLICES_PATH, query={}, silent_seconds=1.5) as stream:
                return list(stream)

        outcome = outcome_of(follow)

    assert str(outcome) == f"WATCH {SLICES_PATH}: no answer within the time"


def test_watch_with_regular_events_outlives_the_silence_limit(tmp_path: Path) -> None:
    event = chunk(b'{"type": "BOOKMARK"}\n')
    pieces = [CHUNKED, *[event] * 20, chunk(b"")]
    with served(lambda: pieces, pause_seconds=0.15) as server:
        api = Api(server.kubeconfig(tmp_path))
        api.connect()
        with api.watch(SLICES_PATH, query={}, silent_seconds=2) as stream:
            events = list(stream)

    assert len(events) == 20


@pytest.mark.parametrize(
    "answer",
    [
        lambda: [head(f"Content-Length: {10**13}"), *[b" " * 65536] * 10_000],
        lambda: [CHUNKED, *[chunk(b" " * 65536)] * 10_000],
        lambda: [CHUNKED, b"fffffffffff\r\n", *[b" " * 65536] * 10_000],
        lambda: [head(), *[b" " * 65536] * 10_000],
    ],
    ids=["length", "chunks", "one-chunk", "until-closed"],
)
def test_endless_response_is_rejected_after_bounded_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Answer
) -> None:
    monkeypatch.setattr(connections, "_MOST_ANSWER_BYTES", MIB)
    with served(answer) as server:
        api = Api(server.kubeconfig(tmp_path))

        outcome = outcome_of(lambda: api.call("GET", SLICES_PATH, wait_seconds=60))

    assert isinstance(outcome, UnreadableError)
    assert str(outcome).endswith(f"answer: found more than {MIB} bytes")
    assert server.bytes_sent < 20 * MIB  # includes bytes in the sockets' buffers
    assert len(server.requests) == 1


@pytest.mark.parametrize("size", [65536, 1])
def test_endless_watch_event_is_rejected_after_bounded_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(cluster_api, "_MOST_EVENT_BYTES", 65536)
    pieces = [CHUNKED, *[chunk(b"x" * size) * (65536 // size)] * 1000]
    with served(lambda: pieces) as server:
        api = Api(server.kubeconfig(tmp_path))

        def follow() -> object:
            with api.watch(SLICES_PATH, query={}, silent_seconds=60) as stream:
                return list(stream)

        outcome = outcome_of(follow)

    assert isinstance(outcome, UnreadableError)
    assert server.bytes_sent < 20 * MIB


def test_only_the_beginning_of_an_error_response_is_read(tmp_path: Path) -> None:
    pieces = [head(f"Content-Length: {10**13}", status=500), *[b"no! " * 16384] * 10_000]
    with served(lambda: pieces) as server:
        api = Api(server.kubeconfig(tmp_path))

        outcome = outcome_of(lambda: api.call("GET", SLICES_PATH, wait_seconds=60))

    assert str(outcome).startswith(f"GET {SLICES_PATH}: 500: no! no! no! ")
    assert server.bytes_sent < 20 * MIB


def test_secret_cut_in_two_is_not_shown(tmp_path: Path) -> None:
    text = b"said" + b" " * 65500 + b"Bearer s3cr3t-t0k3n-that-is-longer-than-the-rest-of-the-text"
    pieces = [head(f"Content-Length: {10**6}", status=500), text, b" " * 65536]
    with served(lambda: pieces) as server:
        api = Api(server.kubeconfig(tmp_path))

        outcome = outcome_of(lambda: api.call("GET", SLICES_PATH, wait_seconds=60))

    assert "s3cr3t" not in str(outcome)


@pytest.mark.parametrize("nested", [b'{"a":' * 200 + b"1" + b"}" * 200, b"[" * 100_000])
def test_deeply_nested_responses_and_events_are_unreadable(tmp_path: Path, nested: bytes) -> None:
    with served(lambda: [CHUNKED, chunk(nested + b"\n"), chunk(b"")]) as server:
        api = Api(server.kubeconfig(tmp_path))

        with pytest.raises(UnreadableError, match="found no JSON"):
            api.call("GET", SLICES_PATH)
        with (
            pytest.raises(UnreadableError, match="levels of nesting"),
            api.watch(SLICES_PATH, query={}, silent_seconds=10) as stream,
        ):
            list(stream)


def test_error_with_deeply_nested_message_keeps_its_status(tmp_path: Path) -> None:
    body = b'{"message": ' + b"[" * 30_000
    with served(lambda: [head(f"Content-Length: {len(body)}", status=422), body]) as server:
        api = Api(server.kubeconfig(tmp_path))

        outcome = outcome_of(lambda: api.call("GET", SLICES_PATH))

    assert f"GET {SLICES_PATH}: 422: " in str(outcome)
