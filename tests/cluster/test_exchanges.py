"""What an observer of the requests to the API server learns."""

from pathlib import Path

import pytest

from dra_simulator.apiserver import ApiServer
from tensorfusion_dra.cluster.api import Api
from tensorfusion_dra.core.errors import RetryableError
from tests.support import canned_api, raw_server
from tests.support.raw_server import HANG_UP, head
from tests.support.waiting import PATIENCE_SECONDS

SLICES = "/apis/resource.k8s.io/v1/resourceslices"


class Exchanges:
    """Observer that keeps what it learns."""

    def __init__(self) -> None:
        self.noted: list[tuple[str, int, str]] = []
        self.paths: list[str] = []
        self.events = 0

    def answered(self, method: str, status: int, error: str, *, path: str) -> None:
        self.noted.append((method, status, error))
        self.paths.append(path)

    def unanswered(self, method: str, error: str, *, path: str) -> None:
        self.noted.append((method, 0, error))
        self.paths.append(path)

    def heard(self) -> None:
        self.events += 1


def test_answers_are_noted_with_their_status_and_error(tmp_path: Path) -> None:
    exchanges = Exchanges()
    with canned_api.served({"GET /a": {"kind": "A"}, "GET /b": (503, "busy")}) as server:
        api = Api(server.kubeconfig(tmp_path / "kubeconfig"), exchanges=(exchanges,))
        api.call("GET", "/a")
        with pytest.raises(RetryableError):
            api.call("GET", "/b")

    assert exchanges.noted == [("GET", 200, ""), ("GET", 503, "GET /b: 503: busy")]
    assert exchanges.paths == ["/a", "/b"]


def test_request_without_an_answer_is_noted(tmp_path: Path) -> None:
    exchanges = Exchanges()
    with canned_api.served({}) as server:
        kubeconfig = server.kubeconfig(tmp_path / "kubeconfig")
    with pytest.raises(RetryableError) as raised:
        Api(kubeconfig, exchanges=(exchanges,)).call("GET", "/a")

    assert exchanges.noted == [("GET", 0, str(raised.value))]


def test_request_whose_body_does_not_arrive_is_noted_once(tmp_path: Path) -> None:
    exchanges = Exchanges()
    with raw_server.served(lambda: [head("Content-Length: 3"), b"{", HANG_UP]) as server:
        api = Api(server.kubeconfig(tmp_path), exchanges=(exchanges,))
        with pytest.raises(RetryableError):
            api.call("GET", "/a", wait_seconds=PATIENCE_SECONDS)

    assert [(method, status) for method, status, _ in exchanges.noted] == [("GET", 0)]


def test_watch_and_each_of_its_events_are_noted(server: ApiServer, tmp_path: Path) -> None:
    exchanges = Exchanges()
    api = Api(server.kubeconfig(tmp_path / "kubeconfig"), exchanges=(exchanges,))
    query = {"allowWatchBookmarks": "true", "resourceVersion": "0"}

    with api.watch(SLICES, query=query, silent_seconds=30) as stream:
        next(iter(stream))

    assert exchanges.noted == [("WATCH", 200, "")]
    assert exchanges.events == 1
