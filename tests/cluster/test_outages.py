"""What an API server, a proxy or a network can do to a call, and what it costs."""

import json
import os
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from kubernetes.client.rest import RESTResponse
from structlog.testing import capture_logs
from urllib3 import HTTPResponse, connection_from_url
from urllib3.connection import HTTPConnection

from tensorfusion_dra.cluster import retries, watch
from tensorfusion_dra.cluster.api import Api, StatusError, WatchStream
from tensorfusion_dra.cluster.claims import Claims
from tensorfusion_dra.cluster.resource_api import ResourceApi
from tensorfusion_dra.cluster.slice_watch import SliceWatch
from tensorfusion_dra.cluster.slices import Slices
from tensorfusion_dra.core.claim import ClaimRef
from tensorfusion_dra.core.errors import InputError, RetryableError
from tensorfusion_dra.driver.ports.cluster import MissingRightError
from tensorfusion_dra.simulator.api.faults import HalfOpen, Refuse
from tensorfusion_dra.simulator.apiserver import ApiServer
from tests.support.virtual_time import VirtualTime
from tests.support.waiting import eventually

SLICES_PATH = "/apis/resource.k8s.io/v1/resourceslices"
REF = ClaimRef(namespace="default", name="a", uid="uid-a")


def nothing() -> None:
    """For who only watches the watch."""


def failing(api: Api, wait_seconds: float = 5) -> StatusError:
    with pytest.raises(StatusError) as caught:
        api.call("GET", SLICES_PATH, wait_seconds=wait_seconds)
    return caught.value


def test_a_server_that_says_nothing_costs_the_time_once(server: ApiServer, api: Api) -> None:
    server.faults.add("list", "resourceslices", HalfOpen())
    started = time.monotonic()

    with pytest.raises(RetryableError, match=rf"^GET {SLICES_PATH}: no answer within the time$"):
        api.call("GET", SLICES_PATH, wait_seconds=1)

    assert time.monotonic() - started < 1.9


def test_a_server_that_is_not_there_is_said_in_a_few_words(server: ApiServer, api: Api) -> None:
    server.stop()

    with pytest.raises(RetryableError, match=rf"^GET {SLICES_PATH}: Connection refused$"):
        api.call("GET", SLICES_PATH)

    server.start()


def test_a_connection_that_the_server_closed_meanwhile_is_no_failure(
    server: ApiServer, api: Api
) -> None:
    api.call("GET", SLICES_PATH)
    server.stop()
    server.start()

    assert api.call("GET", SLICES_PATH)["items"] == []


@pytest.mark.parametrize("status", [429, 503])
def test_a_server_that_asks_for_a_pause_is_heard(server: ApiServer, api: Api, status: int) -> None:
    server.faults.add("list", "resourceslices", Refuse(status, "slow down", 7))

    error = failing(api)

    assert error.status == status
    assert error.after_seconds == 7


def test_a_pause_of_a_day_is_not_kept(server: ApiServer, api: Api) -> None:
    server.faults.add("list", "resourceslices", Refuse(429, "", 86400))

    assert failing(api).after_seconds == 120


def test_a_claim_that_is_read_in_an_overload_waits_as_asked(
    server: ApiServer, resource_api: ResourceApi
) -> None:
    server.faults.add("get", "resourceclaims", Refuse(429, "", 1))
    started = time.monotonic()

    with pytest.raises(RetryableError, match=r"claim default/a: .*429"):
        Claims(resource_api).fetch(REF, wait_seconds=3.5)

    assert 2 <= server.requests.count("get", "resourceclaims") <= 4
    assert time.monotonic() - started < 3.5


def test_a_missing_right_is_not_waited_for(server: ApiServer, resource_api: ResourceApi) -> None:
    server.faults.add("get", "resourceclaims", Refuse(403, "no right"))

    with pytest.raises(RetryableError, match=r"claim default/a: .*403"):
        Claims(resource_api).fetch(REF, wait_seconds=10)

    assert server.requests.count("get", "resourceclaims") == 1


def test_a_claim_is_read_on_a_new_connection_when_the_old_one_is_dead(
    server: ApiServer, resource_api: ResourceApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "_TRY_SECONDS", 0.5)
    created = resource_api.api.call(
        "POST",
        "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims",
        body={
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": "a", "namespace": "default"},
            "spec": {"devices": {"requests": [{"name": "g", "exactly": {"deviceClassName": "c"}}]}},
        },
    )
    server.faults.add("get", "resourceclaims", HalfOpen(), times=1)

    assert Claims(resource_api).fetch(REF, wait_seconds=10) == created


def test_a_claim_that_cannot_be_read_fails_long_before_the_kubelet_gives_up(
    server: ApiServer, resource_api: ResourceApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "_ALL_SECONDS", 1.5)
    monkeypatch.setattr(retries, "_TRY_SECONDS", 0.5)
    server.faults.add("get", "resourceclaims", HalfOpen())
    started = time.monotonic()

    with pytest.raises(RetryableError, match="no answer within the time"):
        Claims(resource_api).fetch(REF, wait_seconds=44)

    assert time.monotonic() - started < 3


def test_slices_that_may_not_be_written_name_the_right(
    server: ApiServer, resource_api: ResourceApi
) -> None:
    server.faults.add("list", "resourceslices", Refuse(403, "forbidden"))

    with pytest.raises(MissingRightError) as caught:
        Slices(resource_api, node_name="node-01").fetch()

    assert "resourceslices" in caught.value.right


@pytest.mark.parametrize("fault", [Refuse(500), Refuse(403, "no right"), Refuse(429, "", 60)])
def test_a_server_that_fails_for_six_hours_is_asked_at_most_every_fifteen_seconds(
    server: ApiServer, resource_api: ResourceApi, monkeypatch: pytest.MonkeyPatch, fault: Refuse
) -> None:
    virtual = VirtualTime(hours=6)
    monkeypatch.setattr(watch, "Event", virtual.event)
    server.faults.add("list", "resourceslices", fault)
    following = SliceWatch(resource_api, selector="", on_change=nothing, on_return=nothing)

    with capture_logs() as logs:
        following.run()

    least = fault.retry_after_seconds or {500: 15, 403: 60}[fault.code]
    assert server.requests.count("list", "resourceslices") <= 6 * 3600 / least + 10
    assert len(logs) == 1


class Answers(ThreadingHTTPServer):
    """An HTTP server that answers every request alike.

    Attributes:
        status, body: Of its answers.
        tokens: What each request said under Authorization.
    """

    daemon_threads = True

    def __init__(self) -> None:
        self.status = 200
        self.body = b"{}"
        self.tokens: list[str] = []
        super().__init__(("127.0.0.1", 0), _Handler)

    def kubeconfig(self, folder: Path, token: str) -> Path:
        path = folder / "kubeconfig"
        cluster = {"server": f"http://127.0.0.1:{self.server_address[1]}"}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": {"token": token}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        path.write_text(json.dumps(document))
        return path


class _Handler(BaseHTTPRequestHandler):
    server: Answers

    def do_GET(self) -> None:
        self.server.tokens.append(self.headers.get("Authorization", ""))
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(self.server.body)))
        self.end_headers()
        self.wfile.write(self.server.body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        pass


@pytest.fixture
def answers() -> Iterator[Answers]:
    with Answers() as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join(5)


def test_a_token_that_is_refused_is_read_again(answers: Answers, tmp_path: Path) -> None:
    api = Api(answers.kubeconfig(tmp_path, "first-token"))
    api.call("GET", SLICES_PATH)
    answers.kubeconfig(tmp_path, "second-token")
    answers.status = 401
    failing(api)
    answers.status = 200

    api.call("GET", SLICES_PATH)

    assert answers.tokens == ["Bearer first-token", "Bearer first-token", "Bearer second-token"]


def test_a_kubeconfig_that_breaks_later_is_waited_for(answers: Answers, tmp_path: Path) -> None:
    path = answers.kubeconfig(tmp_path, "first-token")
    api = Api(path)
    api.call("GET", SLICES_PATH)
    answers.status = 401
    failing(api)
    path.write_text("{")

    with pytest.raises(RetryableError, match="kubeconfig"):
        api.call("GET", SLICES_PATH)


def test_a_kubeconfig_that_is_broken_at_first_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "kubeconfig").write_text("{")

    with pytest.raises(InputError, match="kubeconfig"):
        Api(tmp_path / "kubeconfig").call("GET", SLICES_PATH)


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
        (b"red \x1b[31m\x00\r\n\tnext \xff\xe2\x80\xae line", "red ?[31m? next \ufffd? line"),
        (b'{"message": {"not": "text"}}', "{'not': 'text'}"),
        (b"y" * 10_000, "y" * 297 + "..."),
    ],
)
def test_what_a_server_says_is_one_printable_line_without_secrets(
    answers: Answers, tmp_path: Path, body: bytes, expected: str
) -> None:
    api = Api(answers.kubeconfig(tmp_path, TOKEN))
    answers.status, answers.body = 500, body

    assert str(failing(api)) == f"GET {SLICES_PATH}: 500: {expected}"


@pytest.mark.parametrize(
    "body", [b"<html>proxy</html>", b"[]", b'"text"', b"null", b"\xff", b"", b"[" * 2000]
)
def test_what_is_no_object_is_a_failure_that_passes(
    answers: Answers, tmp_path: Path, body: bytes
) -> None:
    api = Api(answers.kubeconfig(tmp_path, TOKEN))
    answers.body = body

    with pytest.raises(RetryableError):
        api.call("GET", SLICES_PATH)


MALFORMED: list[Any] = [
    {},
    {"metadata": None},
    {"metadata": []},
    {"metadata": {"resourceVersion": "1"}, "items": [None]},
    {"metadata": {"resourceVersion": "1"}, "items": ["text"]},
    {"metadata": {"resourceVersion": "1"}, "items": [{"metadata": {"name": "a"}}]},
    {"metadata": {"resourceVersion": "1"}, "items": [{"metadata": {"name": "a"}, "spec": []}]},
    {"metadata": {"resourceVersion": "1"}, "items": 5},
]


@pytest.mark.parametrize("ended", ["by its socket", "by its last byte", "by who reads it"])
def test_a_watch_that_is_just_ending_can_be_cut(server: ApiServer, ended: str) -> None:
    pool = connection_from_url(server.url)
    response = pool.urlopen("GET", SLICES_PATH, preload_content=False)
    assert isinstance(response, HTTPResponse)
    assert isinstance(response.connection, HTTPConnection)
    assert response.connection.sock is not None
    stream = WatchStream(RESTResponse(response))
    match ended:
        case "by its socket":
            os.close(response.connection.sock.detach())
        case "by its last byte":
            response.drain_conn()
        case "by who reads it":
            response.close()

    stream.cut()

    pool.close()


@pytest.mark.parametrize("document", MALFORMED)
def test_malformed_lists_are_failures_that_pass(
    answers: Answers, tmp_path: Path, document: Any
) -> None:
    api = Api(answers.kubeconfig(tmp_path, TOKEN))
    resource_api = ResourceApi(api)
    answers.body = json.dumps({"versions": [{"version": "v1"}]}).encode()
    resource_api.version()
    answers.body = json.dumps(document).encode()
    following = SliceWatch(resource_api, selector="", on_change=nothing, on_return=nothing)
    thread = Thread(target=following.run)
    with capture_logs() as logs:
        thread.start()

        items = document.get("items")
        if items:
            with pytest.raises(RetryableError):
                Slices(resource_api, node_name="node-01").fetch()
        asked = len(answers.tokens)
        assert eventually(lambda: len(answers.tokens) > asked + 2)
        assert thread.is_alive()

        following.stop()
        thread.join(5)
    assert [line["event"] for line in logs] in ([], ["watch_retried"])
    assert not thread.is_alive()


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
        [],
    ],
)
def test_malformed_events_end_the_watch_and_not_the_process(line: Any) -> None:
    try:
        version = watch._version_of(line) if isinstance(line, dict) else ""
    except RetryableError:
        version = ""

    assert version == ""
