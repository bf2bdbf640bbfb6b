"""Ways to log in to the API server, and the part of the client library that they load."""

import base64
import datetime
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from tensorfusion_dra.cluster import client_library, credentials, login
from tensorfusion_dra.cluster.api import Api
from tensorfusion_dra.core.errors import InputError, RetryableError
from tests.support.answers import SLICES_PATH, Answers, failing
from tests.support.raw_server import head, served
from tests.support.waiting import PATIENCE_SECONDS

HEAVY = ("jsonschema", "kubernetes", "oauthlib", "pydantic", "requests", "requests_oauthlib")


def kubeconfig(folder: Path, server: Answers, user: Any) -> Path:
    """Write a kubeconfig for the server with this user, and return its path."""
    return write(folder, f"http://127.0.0.1:{server.server_address[1]}", user)


def write(folder: Path, server: str, user: Any) -> Path:
    path = folder / "kubeconfig"
    document = {
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(json.dumps(document))
    return path


def test_user_without_credentials_sends_none(answers: Answers, tmp_path: Path) -> None:
    Api(kubeconfig(tmp_path, answers, {})).call("GET", SLICES_PATH)

    assert answers.tokens == [""]


def test_password(answers: Answers, tmp_path: Path) -> None:
    user = {"username": "admin", "password": "s3cr3t"}

    Api(kubeconfig(tmp_path, answers, user)).call("GET", SLICES_PATH)

    encoded = base64.b64encode(b"admin:s3cr3t").decode()
    assert answers.tokens == [f"Basic {encoded}"]


def test_token_file_may_end_with_a_line_break(answers: Answers, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("abc\n")

    Api(kubeconfig(tmp_path, answers, {"tokenFile": "token"})).call("GET", SLICES_PATH)

    assert answers.tokens == ["Bearer abc"]


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
    monkeypatch: pytest.MonkeyPatch,
    expires: str,
    tokens: list[str],
) -> None:
    monkeypatch.setattr(credentials, "_ASK_SECONDS", 0.0)
    user = plugin(tmp_path, expirationTimestamp=expires)
    api = Api(kubeconfig(tmp_path, answers, user))
    for _ in tokens:
        api.call("GET", SLICES_PATH)

    assert answers.tokens == tokens


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
        path = write(tmp_path, f"http://127.0.0.1:{server.server_address[1]}", plugin(tmp_path))
        api = Api(path)
        waiting = thread.submit(failing, api, PATIENCE_SECONDS)
        assert arrived.wait(PATIENCE_SECONDS)
        assert failing(api).status == 401
        api.call("GET", SLICES_PATH)

        late.set()
        assert waiting.result().status == 401
        api.call("GET", SLICES_PATH)

    assert (tmp_path / "runs").read_text().count("\n") == 2


@pytest.fixture
def pod(answers: Answers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Make this process look like a pod; return the library's variables for it."""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(answers.server_address[1]))
    (tmp_path / "token").write_text("first")
    (tmp_path / "ca.crt").write_text("any")
    library: Any = client_library.for_service_account()
    found: dict[str, Any] = library.load_service_account.__globals__
    monkeypatch.setitem(found, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setitem(found, "SERVICE_CERT_FILENAME", str(tmp_path / "ca.crt"))
    # The test's server has no TLS, which the API server of a pod always has.
    set_config = found["InClusterConfigLoader"]._set_config

    def without_tls(self: Any, settings: Any) -> None:
        self.host = self.host.replace("https://", "http://")
        set_config(self, settings)

    monkeypatch.setattr(found["InClusterConfigLoader"], "_set_config", without_tls)
    return found


def test_service_account_token_is_read_again_after_a_minute(
    pod: dict[str, Any], answers: Answers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [datetime.datetime(2026, 1, 1)]
    clock = SimpleNamespace(now=lambda: now[0])
    times = SimpleNamespace(timedelta=datetime.timedelta, datetime=clock)
    monkeypatch.setitem(pod, "datetime", times)
    monkeypatch.setattr(credentials, "_ASK_SECONDS", 0.0)
    api = Api(None)
    api.call("GET", SLICES_PATH)
    (tmp_path / "token").write_text("second")
    for seconds in (59, 1):
        now[0] += datetime.timedelta(seconds=seconds)
        api.call("GET", SLICES_PATH)

    assert [token.lower() for token in answers.tokens] == [
        "bearer first",
        "bearer first",
        "bearer second",
    ]


def test_service_account_token_that_is_gone_is_retryable(
    pod: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credentials, "_ASK_SECONDS", 0.0)
    times = SimpleNamespace(timedelta=lambda **_: datetime.timedelta(), datetime=datetime.datetime)
    monkeypatch.setitem(pod, "datetime", times)
    api = Api(None)
    api.call("GET", SLICES_PATH)
    (tmp_path / "token").write_text("")

    with pytest.raises(RetryableError, match=r"credentials: Token file exists but empty\."):
        api.call("GET", SLICES_PATH)


def loaded_by(code: str, *arguments: str) -> list[str]:
    """Run code in a new process; return which large packages it has loaded."""
    report = f"\nimport json, sys; print(json.dumps([n for n in {HEAVY} if n in sys.modules]))"
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", code + report, *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=True,
    )
    found: list[str] = json.loads(ended.stdout)
    return found


LOG_IN = """
import pathlib, sys
from tensorfusion_dra.cluster.api import Api
transport = Api(pathlib.Path(sys.argv[1])).connect()
assert transport._credentials.line(wait_seconds=1).startswith(b"Authorization: Bearer ")
"""
AFTERWARDS = """
import kubernetes.client.rest, kubernetes.config
from kubernetes import dynamic, watch
settings = kubernetes.client.Configuration()
kubernetes.config.load_kube_config(sys.argv[1], client_configuration=settings)
assert kubernetes.client.CoreV1Api(kubernetes.client.ApiClient(settings))
assert kubernetes.client.rest.RESTClientObject
"""


def test_login_loads_no_large_package(tmp_path: Path) -> None:
    path = write(tmp_path, "https://127.0.0.1:1", {"token": "abc"})

    assert loaded_by(LOG_IN, str(path)) == []


def test_all_of_the_library_can_be_loaded_after_a_login(tmp_path: Path) -> None:
    path = write(tmp_path, "https://127.0.0.1:1", {"token": "abc"})

    assert {"kubernetes", "requests_oauthlib"} <= set(loaded_by(LOG_IN + AFTERWARDS, str(path)))


def test_login_at_an_identity_provider_loads_all_it_may_need(tmp_path: Path) -> None:
    claims = base64.urlsafe_b64encode(b'{"exp": 32503680000}').decode().rstrip("=")
    provider = {"name": "oidc", "config": {"id-token": f"e30.{claims}.c2ln"}}
    path = write(tmp_path, "https://127.0.0.1:1", {"auth-provider": provider})

    assert {"kubernetes", "requests_oauthlib"} <= set(loaded_by(LOG_IN, str(path)))


def test_library_that_is_divided_differently_is_loaded_whole(tmp_path: Path) -> None:
    path = write(tmp_path, "https://127.0.0.1:1", {"token": "abc"})
    without_its_folder = """
import importlib.util
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name: None if name == "kubernetes" else find_spec(name)
"""

    assert "kubernetes" in loaded_by(without_its_folder + LOG_IN, str(path))


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
        ("a" * (4 * 2**20 + 1), "found more than 4194304 bytes, expected a kubeconfig"),
    ],
)
def test_kubeconfig_of_another_form_is_an_error_about_the_file(
    tmp_path: Path, text: str, error: str
) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(text)

    with pytest.raises(InputError) as found:
        login.transport_of(path, user_agent="test")

    assert str(found.value).startswith(f"kubeconfig {path}: ")
    assert error in str(found.value)


def test_device_is_no_kubeconfig() -> None:
    with pytest.raises(InputError, match=r"^kubeconfig /dev/null: found no regular file"):
        login.transport_of(Path("/dev/null"), user_agent="test")
