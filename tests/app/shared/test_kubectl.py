"""The kubeconfig and namespace that kubectl would use."""

import os
from pathlib import Path

import pytest
import yaml

from tensorfusion_dra.app.shared import kubectl
from tensorfusion_dra.core.errors import InputError


def written(path: Path, current: str, **namespaces: str) -> Path:
    """Write a kubeconfig with contexts of these namespaces."""
    contexts = [
        {"name": name, "context": {"namespace": ns, "cluster": "c", "user": "u"}}
        for name, ns in namespaces.items()
    ]
    document = {
        "current-context": current,
        "contexts": contexts,
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {}}],
    }
    path.write_text(yaml.safe_dump(document))
    return path


def test_namespace_is_that_of_the_current_context_in_all_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = written(tmp_path / "a", "two", two="team-b")
    second = written(tmp_path / "b", "two", one="team-a")
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join(["", str(first), str(second)]))

    assert kubectl.namespace(None, None) == "team-b"
    assert kubectl.namespace(None, "one") == "team-a"
    assert kubectl.namespace(None, "three") == "default"


def test_the_server_is_that_of_the_context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = str(written(tmp_path / "a", "gone", one="team-a"))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBECONFIG", "")
    monkeypatch.setenv("HOME", str(tmp_path))

    assert kubectl.api(file, "one").connect().port == 1
    with pytest.raises(InputError, match="gone"):
        kubectl.api(file, None).connect()
    # In a pod a context is never taken for that of the service account.
    with pytest.raises(InputError, match=r"^kubeconfig .*/\.kube/config"):
        kubectl.api(None, "one").connect()


@pytest.mark.parametrize("text", ["", "[1", "contexts: [5, {name: a}]\ncurrent-context: a", "- 1"])
def test_without_a_namespace_it_is_default(tmp_path: Path, text: str) -> None:
    file = tmp_path / "kubeconfig"
    file.write_text(text)

    assert kubectl.namespace(str(file), None) == "default"
    assert kubectl.namespace(str(tmp_path / "none"), None) == "default"


@pytest.mark.parametrize(
    ("flag", "variable", "has_default", "is_pod", "expected"),
    [
        ("flag", "", False, True, "kubeconfig {}/flag"),
        ("", "variable", False, True, "kubeconfig {}/variable"),
        ("", "", True, True, "kubeconfig {}/.kube/config"),
        ("", "", False, False, "kubeconfig {}/.kube/config"),
        ("", "", False, True, "in-cluster configuration"),
    ],
)
def test_service_account_is_used_in_a_pod_without_a_kubeconfig(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    flag: str,
    variable: str,
    expected: str,
    *,
    has_default: bool,
    is_pod: bool,
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KUBECONFIG", variable and str(tmp_path / variable))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    if is_pod:
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    if has_default:
        (tmp_path / ".kube").mkdir()
        (tmp_path / ".kube/config").touch()

    with pytest.raises(InputError) as caught:
        kubectl.api(str(tmp_path / flag) if flag else None, None).connect()

    assert str(caught.value).startswith(f"{expected.format(tmp_path)}: ")
