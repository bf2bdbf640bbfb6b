"""Requests to the API server: connections, bounds, malformed answers, retries and outages."""

import gc
import itertools
import json
import os
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from dra_simulator.api.faults import HalfOpen, Refuse
from dra_simulator.apiserver import ApiServer
from dra_simulator.rest import CLAIMS, Client
from tensorfusion_dra.cluster import api as cluster_api
from tensorfusion_dra.cluster import watch
from tensorfusion_dra.cluster.api import Api, Exchanges
from tensorfusion_dra.cluster.objects import ApiClaims
from tensorfusion_dra.cluster.slices import ApiSlices
from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.errors import (
    MissingPermissionError,
    RetryableError,
    StatusError,
    UnreadableError,
)
from tensorfusion_dra.core.observed import ApiServerView
from tests.support import objects, raw_server
from tests.support.answers import SLICES_PATH, Answers, failing, nothing
from tests.support.logs import capture_logs
from tests.support.raw_server import HANG_UP, RawServer, chunk, head
from tests.support.threads import running
from tests.support.virtual_time import VirtualClock, VirtualTime
from tests.support.waiting import PATIENCE_SECONDS, eventually

EMPTY = head("Content-Length: 2") + b"{}"


@contextmanager
def served(
    folder: Path, answer: Callable[[], Iterable[bytes]], *, pause_seconds: float = 0.0
) -> Iterator[tuple[RawServer, Api]]:
    """Run a server that gives this answer to each request, and yield it with a client of it."""
    with raw_server.served(answer, pause_seconds=pause_seconds) as server:
        api = Api(server.kubeconfig(folder), user_agent="agent/1")
        api.connect()
        yield server, api


def call_at_a_time(api: Api, number: int) -> None:
    """Send this number of requests, each in a thread of its own."""
    with ThreadPoolExecutor(number) as threads:
        assert list(threads.map(lambda _: api.call("GET", SLICES_PATH), range(number))) == (
            [{}] * number
        )


def together(number: int) -> Callable[[], Iterable[bytes]]:
    """Return a server's answer that waits until this number of requests has arrived."""
    arrived = Barrier(number, timeout=PATIENCE_SECONDS)

    def answer() -> Iterable[bytes]:
        arrived.wait()
        return [EMPTY]

    return answer


def test_requests_use_one_connection(tmp_path: Path) -> None:
    with served(tmp_path, lambda: [EMPTY]) as (server, api):
        for _ in range(5):
            api.call("GET", SLICES_PATH, query={"fieldSelector": "spec.driver=a b,c!=d"})

        assert server.accepted == 1
        assert (
            server.requests
            == [f"GET {SLICES_PATH}?fieldSelector=spec.driver%3Da%20b%2Cc%21%3Dd HTTP/1.1"] * 5
        )
        assert server.headers == {
            "host": f"127.0.0.1:{server.server_address[1]}",
            "user-agent": "agent/1",
            "accept": "application/json",
            "accept-encoding": "identity",
        }


def test_64_requests_at_a_time_keep_their_connections(tmp_path: Path) -> None:
    with served(tmp_path, together(64)) as (server, api):
        for _ in range(2):
            call_at_a_time(api, 64)

        assert server.accepted == 64


def test_login_that_was_rejected_leaves_no_connections(tmp_path: Path) -> None:
    with served(tmp_path, together(4)) as (server, api):
        call_at_a_time(api, 4)
        server.answer = lambda: [head("Content-Length: 2", status=401), b"{}"]

        failing(api)

        assert eventually(lambda: server.connected == 0)


def test_idle_connection_ends_with_its_api(server: ApiServer, tmp_path: Path) -> None:
    """In whichever order the garbage collector ends a cycle's objects; it warns of open sockets."""
    client = Api(server.kubeconfig(tmp_path / "kubeconfig"))
    client.call("GET", SLICES_PATH)
    idle = client.connect().idle
    assert idle is not None
    opened = idle[0].sock
    cycle: list[Any] = [client]
    cycle.append(cycle)
    del client, idle
    gc.collect()  # while the socket has another user, so that it comes before the connection
    descriptor = opened.fileno()
    del opened, cycle
    gc.collect()

    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


@pytest.mark.parametrize("method", ["GET", "PATCH"])
def test_connection_that_ended_while_idle_is_not_used(tmp_path: Path, method: str) -> None:
    with served(tmp_path, lambda: [EMPTY, HANG_UP]) as (server, api):
        for _ in range(3):
            assert api.call(method, SLICES_PATH, body={"a": "b"}) == {}
            assert eventually(lambda: server.connected == 0)

        assert server.accepted == len(server.requests) == 3
        assert server.headers["content-type"] == "application/json"


CLOSED = "connection closed before the end of the answer"


@pytest.mark.parametrize(
    ("method", "answer", "tries", "error"),
    [
        ("GET", [HANG_UP], 2, CLOSED),
        ("DELETE", [HANG_UP], 2, CLOSED),
        ("POST", [HANG_UP], 1, CLOSED),
        ("GET", [head("Content-Length: 3"), b"{}", HANG_UP], 1, CLOSED),
        ("GET", [b"SSH-2.0-OpenSSH\r\n\r\n"], 1, r"SSH-2\.0-OpenSSH"),
    ],
    ids=["read", "deletion", "write", "half an answer", "no HTTP"],
)
def test_request_is_repeated_once_if_it_may_be_and_no_answer_has_begun(
    tmp_path: Path, method: str, answer: list[bytes], tries: int, error: str
) -> None:
    with served(tmp_path, lambda: answer) as (server, api):
        with pytest.raises(RetryableError, match=error):
            api.call(method, SLICES_PATH)

        assert server.accepted == len(server.requests) == tries


def test_path_with_a_line_break_is_not_sent(tmp_path: Path) -> None:
    with served(tmp_path, lambda: [EMPTY]) as (server, api):
        with pytest.raises(RetryableError, match="can't contain control characters"):
            api.call("GET", "/a HTTP/1.1\r\nHost: b")

        assert server.requests == []


MIB = 2**20
CHUNKED = head("Transfer-Encoding: chunked")

Answer = Callable[[], Iterable[bytes]]
Read = Callable[[Api, float], object]


def get(api: Api, seconds: float = 60) -> object:
    return api.call("GET", SLICES_PATH, wait_seconds=seconds)


def follow(api: Api, seconds: float = 60) -> list[Any]:
    return list(api.watch(SLICES_PATH, query={}, silent_seconds=seconds))


@pytest.mark.parametrize(
    ("read", "verb", "begins", "drips"),
    [
        (get, "GET", [b"HTTP/1.1 200 "], b"x"),
        (get, "GET", [head()[:-2], b"X: "], b"x"),
        (get, "GET", [head("Content-Length: 99999")], b" "),
        (get, "GET", [CHUNKED], chunk(b" ")),
        (get, "GET", [CHUNKED, b"1;"], b"x"),
        (get, "GET", [head()], b" "),
        (get, "GET", [head("Content-Length: 99999", status=500)], b"x"),
        (get, "GET", [], b"HTTP/1.1 100 Continue\r\n\r\n"),
        (follow, "WATCH", [CHUNKED], chunk(b'{"a":')),
    ],
    ids=[
        *("status", "header", "body", "chunks", "chunk-size", "until-closed", "error", "continue"),
        "event",
    ],
)
def test_answer_that_drips_bytes_times_out(
    tmp_path: Path, read: Read, verb: str, begins: list[bytes], drips: bytes
) -> None:
    pieces = itertools.chain(begins, itertools.repeat(drips))
    expected = f"^{verb} {SLICES_PATH}: no answer within the time$"
    with served(tmp_path, lambda: pieces, pause_seconds=0.05) as (server, api):
        with pytest.raises(RetryableError, match=expected):
            read(api, 0.8)

        assert len(server.requests) == 1


def test_watch_with_regular_events_outlives_the_silence_limit(tmp_path: Path) -> None:
    event = chunk(b'{"type": "BOOKMARK"}\n')
    pieces = [CHUNKED, *[event] * 20, chunk(b"")]
    with served(tmp_path, lambda: pieces, pause_seconds=0.15) as (_, api):
        assert len(follow(api, 2)) == 20


@pytest.mark.parametrize(
    ("read", "answer", "found"),
    [
        (get, [head(f"Content-Length: {10**13}"), *[b" " * 65536] * 10_000], "answer"),
        (get, [CHUNKED, *[chunk(b" " * 65536)] * 10_000], "answer"),
        (get, [CHUNKED, b"fffffffffff\r\n", *[b" " * 65536] * 10_000], "answer"),
        (get, [head(), *[b" " * 65536] * 10_000], "answer"),
        (follow, [CHUNKED, *[chunk(b"x" * 65536)] * 1000], "event"),
        (follow, [CHUNKED, *[chunk(b"x") * 4096] * 1000], "event"),
    ],
    ids=["length", "chunks", "one-chunk", "until-closed", "event", "event in small chunks"],
)
def test_endless_answer_is_rejected_after_bounded_bytes(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    read: Read,
    answer: list[bytes],
    found: str,
) -> None:
    monkeypatch.setattr(cluster_api, "MAX_OBJECT_BYTES", 2**17)
    monkeypatch.setattr(cluster_api, "_MAX_EVENT_BYTES", 2**17)
    error = f"{found}: found more than {2**17} bytes$"
    with (
        served(tmp_path, lambda: answer) as (server, api),
        pytest.raises(UnreadableError, match=error),
    ):
        read(api, 60)

    assert server.bytes_sent < 20 * MIB  # includes bytes in the sockets' buffers
    assert len(server.requests) == 1


SECRET = b"Bearer s3cr3t-t0k3n-that-is-longer-than-the-rest-of-the-text"


@pytest.mark.parametrize(
    ("status", "pieces", "shown"),
    [
        (500, [b"no! " * 16384] * 10_000, "no! no! no! "),
        (500, [b"said" + b" " * 65500 + SECRET, b" " * 65536], "said"),
        (422, [b'{"message": ' + b"[" * 30_000], '{"message": [[['),
    ],
    ids=["endless", "secret cut in two", "deeply nested"],
)
def test_only_the_beginning_of_an_error_response_is_read(
    tmp_path: Path, status: int, pieces: list[bytes], shown: str
) -> None:
    length = head(f"Content-Length: {sum(map(len, pieces))}", status=status)
    with served(tmp_path, lambda: [length, *pieces]) as (server, api):
        error = str(failing(api, 60))

    assert error.startswith(f"GET {SLICES_PATH}: {status}: {shown}")
    assert "s3cr3t" not in error
    assert server.bytes_sent < 20 * MIB


@pytest.mark.parametrize("nested", [b'{"a":' * 200 + b"1" + b"}" * 200, b"[" * 100_000])
def test_deeply_nested_responses_and_events_are_unreadable(tmp_path: Path, nested: bytes) -> None:
    with served(tmp_path, lambda: [CHUNKED, chunk(nested + b"\n"), chunk(b"")]) as (_, api):
        with pytest.raises(UnreadableError, match=r"found more than 100 levels|found 100000 elem"):
            get(api)
        assert follow(api) == []


NOW = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("answer", "code", "error"),
    [
        ([EMPTY], "200", ""),
        ([head("Content-Length: 4", status=503), b"busy"], "503", "GET /a: 503: busy"),
        ([head("Content-Length: 3"), b"{", HANG_UP], "none", f"GET /a: {CLOSED}"),
    ],
    ids=["answered", "refused", "body that does not arrive"],
)
def test_request_is_recorded_once_with_its_code_and_error(
    tmp_path: Path, answer: list[bytes], code: str, error: str
) -> None:
    with served(tmp_path, lambda: answer) as (_, api), suppress(RetryableError):
        api.call("GET", "/a")

    view = api.exchanges.view()
    assert (view.requests, view.last_error) == ({("get", "other", code): 1}, error)


def test_watch_is_recorded_once_and_each_of_its_events_is_a_success(api: Api) -> None:
    query = {"allowWatchBookmarks": "true", "resourceVersion": "0"}
    watched = api.watch(SLICES_PATH, query=query, silent_seconds=30)
    next(watched)
    first = api.exchanges.view()
    next(watched)

    view = api.exchanges.view()
    assert view.requests == {("watch", "resourceslices", "200"): 1}
    assert first.last_success_at not in (None, view.last_success_at)


@pytest.mark.parametrize("status", [None, 401, 403, 429, 500, 503])
def test_api_server_is_failing_until_the_next_success(status: int | None) -> None:
    times = itertools.count()
    exchanges = Exchanges(now=lambda: NOW + timedelta(days=next(times)))
    assert exchanges.view() == ApiServerView()

    exchanges.record("GET", "/x", 404, "GET /x: 404: not found")
    assert not exchanges.view().is_failing
    exchanges.record("WATCH", "/x", status, "no luck")
    view = exchanges.view()
    assert (view.is_failing, view.last_error) == (True, "no luck")
    exchanges.record_event()

    view = exchanges.view()
    assert (view.is_failing, view.last_success_at) == (False, NOW + timedelta(days=2))


RESOURCES = "/apis/resource.k8s.io/v1"


@pytest.mark.parametrize(
    ("method", "path", "verb", "resource"),
    [
        ("GET", "/apis/resource.k8s.io", "get", "groups"),
        ("GET", f"{RESOURCES}/resourceslices", "list", "resourceslices"),
        ("WATCH", f"{RESOURCES}/resourceslices", "watch", "resourceslices"),
        ("POST", f"{RESOURCES}/resourceslices", "create", "resourceslices"),
        ("PUT", f"{RESOURCES}/resourceslices/a", "update", "resourceslices"),
        ("DELETE", f"{RESOURCES}/resourceslices/a", "delete", "resourceslices"),
        ("GET", f"{RESOURCES}/namespaces/d/resourceclaims/c", "get", "resourceclaims"),
        (
            "PATCH",
            f"{RESOURCES}/namespaces/d/resourceclaims/c/status",
            "patch",
            "resourceclaims/status",
        ),
        ("GET", "/api/v1/nodes/node-01", "get", "nodes"),
        ("GET", "/api/v1/pods", "list", "pods"),
        ("GET", "/api/v1/namespaces/d/pods/p", "get", "pods"),
        ("POST", "/api/v1/namespaces/d/events", "create", "events"),
        ("GET", "/apis/tensor-fusion.ai/v1/gpupools", "list", "gpupools"),
        # Names of namespaces and objects may look like resources.
        ("GET", "/api/v1/namespaces/pods/pods/nodes", "get", "pods"),
        ("GET", "/version", "get", "other"),
        ("GET", "/api/v1/secrets/a", "get", "other"),
        ("BREW", "/api/v1/nodes/a", "other", "nodes"),
    ],
)
def test_verb_and_resource_of_a_request(method: str, path: str, verb: str, resource: str) -> None:
    exchanges = Exchanges()

    for status in (200, 503, None):
        exchanges.record(method, path, status, "text")

    assert exchanges.view().requests == {
        (verb, resource, code): 1 for code in ("200", "503", "none")
    }


TOKEN = "s3cr3t-t0k3n-of-the-node-plugin"
JWT = "eyJhbGciOiJSUzI1NiIsImtpZCI6IjEifQ.eyJzdWIiOiJzeXN0ZW0ifQ.c2lnbmF0dXJl"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"Authorization: Bearer " + TOKEN.encode(), "Authorization: <hidden>"),
        (b"request had " + TOKEN.encode() + b" in it", "request had <hidden> in it"),
        (b'{"message": "token ' + JWT.encode() + b' expired"}', "token <hidden> expired"),
        (b"Authorization: Basic dXNlcjpwYXNzd29yZA==", "Authorization: <hidden>"),
        (b"x" * 290 + TOKEN.encode(), "x" * 290 + "<hidden>"),
        (
            b"red \x1b[31m\x00\r\n\tnext \xff\xe2\x80\xae line",
            "red \\x1b[31m\\x00 next \ufffd\\u202e line",
        ),
        (b'{"message": {"not": "text"}}', "{'not': 'text'}"),
        (b"y" * 10_000, "y" * 297 + "..."),
    ],
)
def test_server_error_text_is_one_printable_line_without_secrets(
    answers: Answers, tmp_path: Path, body: bytes, expected: str
) -> None:
    api = Api(answers.kubeconfig(tmp_path, {"token": TOKEN}))
    answers.status, answers.body = 500, body

    assert str(failing(api)) == f"GET {SLICES_PATH}: 500: {expected}"


MALFORMED: list[Any] = [
    {},
    {"metadata": None},
    {"metadata": []},
    {"metadata": {"resourceVersion": "1"}, "items": [None]},
    {"metadata": {"resourceVersion": "1"}, "items": ["text"]},
    {"metadata": {"resourceVersion": "1"}, "items": 5},
]


@pytest.mark.parametrize("document", MALFORMED)
def test_malformed_lists_are_retried(
    answers: Answers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, document: Any
) -> None:
    monkeypatch.setattr(watch, "_FIRST_DELAY_SECONDS", 0.01)
    api = Api(answers.kubeconfig(tmp_path, {"token": TOKEN}))
    answers.body = json.dumps(document).encode()
    following = ApiSlices(api, node_name="node-01").watch(on_change=nothing, on_return=nothing)
    with capture_logs() as logs, running(following.run, stop=following.stop):
        if document.get("items"):
            with pytest.raises(RetryableError):
                ApiSlices(api, node_name="node-01").fetch()
        requested = len(answers.tokens)
        assert eventually(lambda: len(answers.tokens) > requested + 2)

    assert {line["event"] for line in logs} <= {"watch_retried"}


@pytest.mark.parametrize(
    "line",
    [
        {"type": "MODIFIED"},
        {"type": "MODIFIED", "object": "text"},
        {"type": "MODIFIED", "object": {"metadata": None}},
        {"type": "ERROR", "object": "text"},
        {"type": "ERROR", "object": {"code": "x"}},
        {"type": "BOOKMARK", "object": {"metadata": []}},
        {},
    ],
)
def test_malformed_events_end_the_watch_but_not_the_process(line: Any) -> None:
    with suppress(RetryableError):
        assert watch._version_of(line) == ""


NO_ANSWER = RetryableError("no answer within the time")
NOT_FOUND = StatusError("404: page not found", 404)

FORBIDDEN = StatusError("403: no right", 403)  # which is not tried again


@pytest.mark.parametrize(
    ("errors", "named"),
    [
        ([NOT_FOUND, NO_ANSWER], NOT_FOUND),
        ([NO_ANSWER], NO_ANSWER),
        ([NOT_FOUND, FORBIDDEN], FORBIDDEN),
    ],
)
def test_newest_answer_is_named_and_without_any_the_last_error(
    errors: list[RetryableError], named: RetryableError
) -> None:
    """The last error comes again until the time is over."""
    left = itertools.chain(errors, itertools.repeat(errors[-1]))

    class FailingApi(Api):
        def call(self, *_args: Any, **_more: Any) -> dict[str, Any]:
            raise next(left)

    with pytest.raises(RetryableError, match=rf"^claim a: {named}$"):
        FailingApi(None).read("claim a", "/claims/a", dict, wait_seconds=0.5)


REF = ClaimRef(namespace="default", name="a", uid="uid-a")


@pytest.mark.parametrize(("seconds", "requests"), [(1, 1), (-0.1, 0)])
def test_silent_server_costs_one_timeout_and_no_time_no_request(
    server: ApiServer, api: Api, seconds: float, requests: int
) -> None:
    server.faults.add("list", "resourceslices", HalfOpen())

    with pytest.raises(RetryableError, match=rf"^GET {SLICES_PATH}: no answer within the time$"):
        api.call("GET", SLICES_PATH, wait_seconds=seconds)

    assert server.requests.count("list", "resourceslices") == requests


def test_refused_connection_is_reported_briefly(server: ApiServer, api: Api) -> None:
    server.stop()

    with pytest.raises(RetryableError, match=rf"^GET {SLICES_PATH}: Connection refused$"):
        api.call("GET", SLICES_PATH)

    server.start()


@pytest.mark.parametrize(
    ("status", "after", "passed"), [(429, 7, 7), (503, 7, 7), (429, 86400, 120)]
)
def test_retry_after_is_passed_to_the_caller_up_to_two_minutes(
    server: ApiServer, api: Api, status: int, after: int, passed: int
) -> None:
    server.faults.add("list", "resourceslices", Refuse(status, "slow down", after))

    error = failing(api)

    assert (error.status, error.after_seconds) == (status, passed)


@pytest.mark.parametrize(
    ("fault", "seconds", "error", "requests"),
    [
        (Refuse(429, "", 1), 3.5, "429", range(3, 5)),
        (Refuse(403, "no right"), 10, "403", range(1, 2)),
        # It fails long before the kubelet's deadline, within 15 s: the first four pauses take at
        # least 1.5 s, and each later one takes a second.
        (HalfOpen(), 44, "no answer within the time", range(2, 20)),
    ],
    ids=["asked to wait", "missing permission", "silence"],
)
def test_claim_is_read_again_as_often_as_it_makes_sense(
    server: ApiServer,
    api: Api,
    monkeypatch: pytest.MonkeyPatch,
    *,
    fault: Refuse | HalfOpen,
    seconds: float,
    error: str,
    requests: range,
) -> None:
    monkeypatch.setattr(cluster_api, "time", VirtualClock())
    monkeypatch.setattr(cluster_api, "_TRY_SECONDS", 0.1)
    server.faults.add("get", "resourceclaims", fault)

    with pytest.raises(RetryableError, match=f"claim default/a: .*{error}"):
        ApiClaims(api).fetch(REF, wait_seconds=seconds)

    assert server.requests.count("get", "resourceclaims") in requests


def test_claim_is_read_on_a_new_connection_if_the_old_one_is_dead(
    server: ApiServer, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_api, "_TRY_SECONDS", 0.5)
    created = Client(server.url).create(CLAIMS, objects.claim(name="a"))
    server.faults.add("get", "resourceclaims", HalfOpen(), times=1)

    found = ApiClaims(api).fetch(REF, wait_seconds=10)

    assert found["metadata"]["uid"] == created["metadata"]["uid"]


@pytest.mark.parametrize(
    "body", [b'{"metadata": {', b"<html>", b"[" * 2000, b"[]", b'"text"', b"null", b"\xff", b""]
)
def test_malformed_claim_is_requested_once(answers: Answers, tmp_path: Path, body: bytes) -> None:
    api = Api(answers.kubeconfig(tmp_path))
    answers.body = body

    with pytest.raises(
        UnreadableError, match=r"^claim default/a: GET .*/resourceclaims/a: (object: )?found "
    ):
        ApiClaims(api).fetch(REF, wait_seconds=30)

    assert len(answers.tokens) == 1


def test_missing_permission_on_slices_is_named(server: ApiServer, api: Api) -> None:
    server.faults.add("list", "resourceslices", Refuse(403, "forbidden"))

    with pytest.raises(MissingPermissionError, match="403") as caught:
        ApiSlices(api, node_name="node-01").fetch()

    assert "resourceslices" in caught.value.permission


@pytest.mark.parametrize("fault", [Refuse(500), Refuse(403, "no right"), Refuse(429, "", 60)])
def test_server_failing_for_an_hour_gets_a_request_every_15_seconds_at_most(
    server: ApiServer, api: Api, monkeypatch: pytest.MonkeyPatch, fault: Refuse
) -> None:
    virtual = VirtualTime(hours=1)
    monkeypatch.setattr(watch, "Event", virtual.event)
    server.faults.add("list", "resourceslices", fault)
    following = ApiSlices(api, node_name="node-01").watch(on_change=nothing, on_return=nothing)

    with capture_logs() as logs:
        following.run()

    least = fault.retry_after_seconds or 15
    assert server.requests.count("list", "resourceslices") <= 3600 / least + 10
    assert len(logs) == 1


@pytest.mark.parametrize("end", [list, Generator.close], ids=["by its last byte", "by its reader"])
def test_watch_that_is_just_ending_can_be_cut(
    api: Api, end: Callable[[Generator[bytes, None, None]], object]
) -> None:
    answer = api.send("GET", SLICES_PATH)
    pieces = answer.pieces()
    assert next(pieces)
    end(pieces)

    answer.cut()

    assert api.call("GET", SLICES_PATH)["items"] == []
