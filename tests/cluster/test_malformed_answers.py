"""Malformed answers of an API server or a proxy are retried and logged without secrets."""

import json
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from structlog.testing import capture_logs

from tensorfusion_dra.cluster import watch
from tensorfusion_dra.cluster.api import Api, ResourceApi
from tensorfusion_dra.cluster.slices import Slices
from tensorfusion_dra.core.errors import RetryableError
from tests.support.answers import SLICES_PATH, Answers, failing, nothing
from tests.support.waiting import PATIENCE_SECONDS, eventually

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
    api = Api(answers.kubeconfig(tmp_path, TOKEN))
    answers.status, answers.body = 500, body

    assert str(failing(api)) == f"GET {SLICES_PATH}: 500: {expected}"


@pytest.mark.parametrize(
    "body", [b"<html>proxy</html>", b"[]", b'"text"', b"null", b"\xff", b"", b"[" * 2000]
)
def test_response_that_is_not_an_object_is_retryable(
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
    {"metadata": {"resourceVersion": "1"}, "items": 5},
]


@pytest.mark.parametrize("document", MALFORMED)
def test_malformed_lists_are_retried(
    answers: Answers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, document: Any
) -> None:
    monkeypatch.setattr(watch, "_FIRST_DELAY_SECONDS", 0.01)
    api = Api(answers.kubeconfig(tmp_path, TOKEN))
    resource_api = ResourceApi(api)
    answers.body = json.dumps({"versions": [{"version": "v1"}]}).encode()
    resource_api.version()
    answers.body = json.dumps(document).encode()
    following = Slices(resource_api, node_name="node-01").watch(
        on_change=nothing, on_return=nothing
    )
    thread = Thread(target=following.run)
    with capture_logs() as logs:
        thread.start()

        items = document.get("items")
        if items:
            with pytest.raises(RetryableError):
                Slices(resource_api, node_name="node-01").fetch()
        requested = len(answers.tokens)
        assert eventually(lambda: len(answers.tokens) > requested + 2)
        assert thread.is_alive()

        following.stop()
        thread.join(PATIENCE_SECONDS)
    assert {line["event"] for line in logs} <= {"watch_retried"}
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
def test_malformed_events_end_the_watch_but_not_the_process(line: Any) -> None:
    try:
        version = watch._version_of(line) if isinstance(line, dict) else ""
    except RetryableError:
        version = ""

    assert version == ""
