"""Ways to log in to the API server, rereading of kubeconfigs, and errors of broken ones."""

import base64
import json
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from tensorfusion_dra.cluster import login
from tensorfusion_dra.cluster.api import Api
from tensorfusion_dra.cluster.login import Login
from tensorfusion_dra.core.errors import InputError, RetryableError
from tests.support.answers import SLICES_PATH, Answers, failing
from tests.support.raw_server import head, served
from tests.support.waiting import PATIENCE_SECONDS


@pytest.mark.parametrize(
    ("user", "header"),
    [
        ({}, ""),
        (
            {"username": "admin", "password": "s3cr3t"},
            f"Basic {base64.b64encode(b'admin:s3cr3t').decode()}",
        ),
        ({"tokenFile": "token"}, "Bearer abc"),
    ],
    ids=["no credentials", "password", "token file, which may end with a line break"],
)
def test_credentials_of_a_kubeconfigs_user_are_sent(
    answers: Answers, tmp_path: Path, user: dict[str, str], header: str
) -> None:
    (tmp_path / "token").write_text("abc\n")

    Api(answers.kubeconfig(tmp_path, user)).call("GET", SLICES_PATH)

    assert answers.tokens == [header]


def plugin(folder: Path, **status: str) -> dict[str, Any]:
    """Return a user whose tokens a plugin prints: ``token-1``, ``token-2`` and so on."""
    script = folder / "plugin"
    answer = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {"token": "token-N", **status},
    }
    script.write_text(
        f"#!/bin/sh\necho >>{folder}/runs\n"
        f"echo '{json.dumps(answer)}' | sed s/-N/-$(wc -l <{folder}/runs)/\n"
    )
    script.chmod(0o755)
    return {"exec": {"apiVersion": answer["apiVersion"], "command": str(script)}}


@pytest.mark.process
@pytest.mark.parametrize(
    ("expires", "tokens"),
    [
        ("2020-01-01T00:00:00Z", ["Bearer token-2", "Bearer token-3"]),
        ("2999-01-01T00:00:00Z", ["Bearer token-1", "Bearer token-1"]),
    ],
    ids=["expired", "lasting"],
)
def test_plugin_runs_again_only_when_its_token_has_expired(
    answers: Answers,
    tmp_path: Path,
    expires: str,
    tokens: list[str],
) -> None:
    user = plugin(tmp_path, expirationTimestamp=expires)
    api = Api(answers.kubeconfig(tmp_path, user))
    for _ in tokens:
        api.call("GET", SLICES_PATH)

    assert answers.tokens == tokens


@pytest.mark.process
def test_late_rejection_of_an_old_login_leaves_the_new_one(tmp_path: Path) -> None:
    arrived, late = Event(), Event()
    accepted = [head("Content-Length: 2"), b"{}"]
    rejected = [head("Content-Length: 2", status=401), b"{}"]
    outcomes: Iterator[Event | list[bytes]] = iter([late, rejected, accepted, accepted])

    def answer() -> Iterable[bytes]:
        outcome = next(outcomes)
        if isinstance(outcome, list):
            return outcome
        arrived.set()
        assert outcome.wait(PATIENCE_SECONDS)
        return rejected

    with served(answer) as server, ThreadPoolExecutor(1) as thread:
        api = Api(server.kubeconfig(tmp_path, plugin(tmp_path)))
        waiting = thread.submit(failing, api, PATIENCE_SECONDS)
        assert arrived.wait(PATIENCE_SECONDS)
        assert failing(api).status == 401
        api.call("GET", SLICES_PATH)

        late.set()
        assert waiting.result().status == 401
        api.call("GET", SLICES_PATH)

    assert (tmp_path / "runs").read_text().count("\n") == 2


@pytest.fixture
def pod(answers: Answers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Api:
    """A client in a process that looks like a pod; the test's server has no TLS."""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(answers.server_address[1]))
    (tmp_path / "token").write_text("first\n")
    (tmp_path / "ca.crt").write_text("any")
    log_in = partial(login.of_service_account, folder=tmp_path, scheme="http")
    monkeypatch.setattr(login, "of_service_account", log_in)
    return Api(None)


def test_service_account_token_is_read_for_each_request(
    pod: Api, answers: Answers, tmp_path: Path
) -> None:
    for token in ("first", "second"):
        (tmp_path / "token").write_text(token)
        pod.call("GET", SLICES_PATH)

    assert answers.tokens == ["Bearer first", "Bearer second"]


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        (partial(Path.write_text, data=""), r"credentials: found no token in .*/token"),
        (Path.unlink, "credentials: No such file or directory"),
    ],
)
def test_service_account_token_that_is_gone_is_retryable(
    pod: Api, tmp_path: Path, damage: Callable[[Path], object], error: str
) -> None:
    pod.call("GET", SLICES_PATH)
    damage(tmp_path / "token")

    with pytest.raises(RetryableError, match=error):
        pod.call("GET", SLICES_PATH)


def test_process_without_a_service_account_is_an_input_error(pod: Api, tmp_path: Path) -> None:
    (tmp_path / "ca.crt").unlink()

    with pytest.raises(InputError, match="in-cluster configuration: found no API server"):
        pod.connect()


@pytest.mark.process
def test_login_in_a_pod_loads_no_kubernetes_library(tmp_path: Path) -> None:
    code = """
import os, pathlib, sys
from tensorfusion_dra.cluster import login
os.environ |= {"KUBERNETES_SERVICE_HOST": "::1", "KUBERNETES_SERVICE_PORT": "1"}
folder = pathlib.Path(sys.argv[1])
assert login.of_service_account(folder=folder).header(wait_seconds=1)
assert not {"kubernetes", "pydantic", "requests", "urllib3", "yaml"} & set(sys.modules)
"""
    (tmp_path / "token").write_text("first\n")
    (tmp_path / "ca.crt").write_text("any")

    subprocess.run(
        [sys.executable, "-W", "error", "-c", code, str(tmp_path)],
        timeout=PATIENCE_SECONDS,
        check=True,
    )


def reading(read: Callable[[], str | None]) -> Login:
    """Return a login whose header is read in this way."""
    return Login("https://a", read, ssl.create_default_context)


def test_line_break_in_a_token_is_refused_without_the_token() -> None:
    found = reading(lambda: "Bearer s3cr3t\r\nX-Remote-User: root")

    with pytest.raises(ValueError, match="control character") as caught:
        found.header(wait_seconds=1)

    assert "s3cr3t" not in str(caught.value)


def test_latest_two_tokens_are_secrets() -> None:
    values = iter(["Bearer a", "Bearer b", "Bearer b", "Basic c"])
    found = reading(lambda: next(values))
    for _ in range(4):
        found.header(wait_seconds=1)

    assert found.secrets() == {"b", "c"}


def test_others_wait_for_a_renewal_within_their_time() -> None:
    asked, ready = Event(), Event()

    def read() -> str:
        asked.set()
        assert ready.wait(PATIENCE_SECONDS)
        return "Bearer a"

    found = reading(read)
    with ThreadPoolExecutor(1) as thread:
        renewal = thread.submit(found.header, wait_seconds=1)
        assert asked.wait(PATIENCE_SECONDS)
        with pytest.raises(TimeoutError):
            found.header(wait_seconds=0.01)
        ready.set()

        assert renewal.result() == {"Authorization": "Bearer a"}


USER = "users: [{name: u, user: %s}]"
CONTEXT = "contexts: [{name: x, context: {cluster: c, user: u}}]\ncurrent-context: x\n"
CLUSTER = "clusters: [{name: c, cluster: {server: %s}}]\n"
WRONG_FORM = "a field has the wrong type or form; compare the file with kubectl config view"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "file is empty"),
        ("[]", WRONG_FORM),
        ("5", WRONG_FORM),
        ("hello", WRONG_FORM),
        ("a: 1", "Expected key current-context"),
        (f"{CONTEXT}clusters: 5\nusers: 7", WRONG_FORM),
        (CONTEXT + CLUSTER % "5" + USER % "{}", WRONG_FORM),
        (CONTEXT + CLUSTER % "http://a" + USER % "5", WRONG_FORM),
        (CONTEXT + CLUSTER % "http://a" + USER % "{tokenFile: 5}", WRONG_FORM),
    ],
)
def test_kubeconfig_of_another_form_is_an_error_about_the_file(
    tmp_path: Path, text: str, error: str
) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(text)

    with pytest.raises(InputError, match=f"^kubeconfig {path}: .*{error}"):
        login.log_in(path)


@pytest.fixture
def rejected(answers: Answers, tmp_path: Path) -> Api:
    """A client whose token of a kubeconfig has been used once and then rejected."""
    api = Api(answers.kubeconfig(tmp_path, {"token": "first-token"}))
    api.call("GET", SLICES_PATH)
    answers.status = 401
    failing(api)
    answers.status = 200
    return api


def test_rejected_token_is_read_again(rejected: Api, answers: Answers, tmp_path: Path) -> None:
    answers.kubeconfig(tmp_path, {"token": "second-token"})

    rejected.call("GET", SLICES_PATH)

    assert answers.tokens == ["Bearer first-token", "Bearer first-token", "Bearer second-token"]


def test_kubeconfig_that_breaks_later_is_retryable(rejected: Api, tmp_path: Path) -> None:
    (tmp_path / "kubeconfig").write_text("{")

    with pytest.raises(RetryableError, match="kubeconfig"):
        rejected.call("GET", SLICES_PATH)
