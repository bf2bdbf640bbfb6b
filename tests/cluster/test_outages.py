"""Faults of the API server and the network: errors, retries and the load they cause."""

from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from dra_simulator.api.faults import HalfOpen, Refuse
from dra_simulator.apiserver import ApiServer
from tensorfusion_dra.cluster import api as cluster_api
from tensorfusion_dra.cluster import watch
from tensorfusion_dra.cluster.api import Api, ResourceApi, WatchStream
from tensorfusion_dra.cluster.claims import Claims
from tensorfusion_dra.cluster.slices import Slices
from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.errors import ClaimError, RetryableError
from tensorfusion_dra.driver.ports.cluster import MissingRightError, UnreadableError
from tests.support.answers import SLICES_PATH, Answers, failing, nothing
from tests.support.virtual_time import VirtualClock, VirtualTime

REF = ClaimRef(namespace="default", name="a", uid="uid-a")


def test_silent_server_costs_one_timeout(server: ApiServer, api: Api) -> None:
    server.faults.add("list", "resourceslices", HalfOpen())

    with pytest.raises(RetryableError, match=rf"^GET {SLICES_PATH}: no answer within the time$"):
        api.call("GET", SLICES_PATH, wait_seconds=1)

    assert server.requests.count("list", "resourceslices") == 1


def test_refused_connection_is_reported_briefly(server: ApiServer, api: Api) -> None:
    server.stop()

    with pytest.raises(RetryableError, match=rf"^GET {SLICES_PATH}: Connection refused$"):
        api.call("GET", SLICES_PATH)

    server.start()


@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_is_passed_to_the_caller(server: ApiServer, api: Api, status: int) -> None:
    server.faults.add("list", "resourceslices", Refuse(status, "slow down", 7))

    error = failing(api)

    assert error.status == status
    assert error.after_seconds == 7


def test_retry_after_of_a_day_is_capped(server: ApiServer, api: Api) -> None:
    server.faults.add("list", "resourceslices", Refuse(429, "", 86400))

    assert failing(api).after_seconds == 120


def test_claim_read_honours_retry_after(
    server: ApiServer, resource_api: ResourceApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.faults.add("get", "resourceclaims", Refuse(429, "", 1))
    monkeypatch.setattr(cluster_api, "time", VirtualClock())

    with pytest.raises(RetryableError, match=r"claim default/a: .*429"):
        Claims(resource_api).fetch(REF, wait_seconds=3.5)

    assert 3 <= server.requests.count("get", "resourceclaims") <= 4


def test_missing_right_is_not_retried(server: ApiServer, resource_api: ResourceApi) -> None:
    server.faults.add("get", "resourceclaims", Refuse(403, "no right"))

    with pytest.raises(RetryableError, match=r"claim default/a: .*403"):
        Claims(resource_api).fetch(REF, wait_seconds=10)

    assert server.requests.count("get", "resourceclaims") == 1


def test_claim_is_read_on_a_new_connection_if_the_old_one_is_dead(
    server: ApiServer, resource_api: ResourceApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_api, "_TRY_SECONDS", 0.5)
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


def test_unreadable_claim_fails_long_before_the_kubelet_deadline(
    server: ApiServer, resource_api: ResourceApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_api, "time", VirtualClock())
    monkeypatch.setattr(cluster_api, "_TRY_SECONDS", 0.1)
    server.faults.add("get", "resourceclaims", HalfOpen())

    with pytest.raises(RetryableError, match="no answer within the time"):
        Claims(resource_api).fetch(REF, wait_seconds=44)

    # Within 15 s: the first four pauses take at least 1.5 s, and each later one takes a second.
    assert server.requests.count("get", "resourceclaims") <= 19


@pytest.mark.parametrize("body", [b'{"metadata": {', b"<html>", b"[" * 2000, b"[]"])
def test_malformed_claim_is_requested_once(answers: Answers, tmp_path: Path, body: bytes) -> None:
    resource_api = ResourceApi(Api(answers.kubeconfig(tmp_path, "token")))
    answers.body = b'{"versions": [{"version": "v1"}]}'
    resource_api.version()
    answers.body = body
    requested = len(answers.tokens)

    with pytest.raises(UnreadableError, match=r"^claim default/a: GET .*/resourceclaims/a: found "):
        Claims(resource_api).fetch(REF, wait_seconds=30)

    assert len(answers.tokens) == requested + 1


def test_claim_requests_respect_the_remaining_time(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    granted: list[float] = []
    call = api.call

    def recorded(method: str, path: str, *, wait_seconds: float = 30) -> Any:
        granted.append(wait_seconds)
        return call(method, path, wait_seconds=wait_seconds)

    monkeypatch.setattr(api, "call", recorded)

    with pytest.raises((ClaimError, RetryableError)):
        Claims(ResourceApi(api)).fetch(REF, wait_seconds=1.25)

    assert granted
    assert max(granted) <= 1.25


def test_call_without_remaining_time_sends_no_request(server: ApiServer, api: Api) -> None:
    with pytest.raises(RetryableError, match="no answer within the time"):
        api.call("GET", SLICES_PATH, wait_seconds=-0.1)

    assert server.requests.count("list", "resourceslices") == 0


def test_missing_right_on_slices_is_named(server: ApiServer, resource_api: ResourceApi) -> None:
    server.faults.add("list", "resourceslices", Refuse(403, "forbidden"))

    with pytest.raises(MissingRightError) as caught:
        Slices(resource_api, node_name="node-01").fetch()

    assert "resourceslices" in caught.value.right


@pytest.mark.parametrize("fault", [Refuse(500), Refuse(403, "no right"), Refuse(429, "", 60)])
def test_server_failing_for_six_hours_gets_a_request_every_15_seconds_at_most(
    server: ApiServer, resource_api: ResourceApi, monkeypatch: pytest.MonkeyPatch, fault: Refuse
) -> None:
    virtual = VirtualTime(hours=6)
    monkeypatch.setattr(watch, "Event", virtual.event)
    server.faults.add("list", "resourceslices", fault)
    following = Slices(resource_api, node_name="node-01").watch(
        on_change=nothing, on_return=nothing
    )

    with capture_logs() as logs:
        following.run()

    least = fault.retry_after_seconds or {500: 15, 403: 60}[fault.code]
    assert server.requests.count("list", "resourceslices") <= 6 * 3600 / least + 10
    assert len(logs) == 1


@pytest.mark.parametrize("ended", ["by its last byte", "by its reader"])
def test_watch_that_is_just_ending_can_be_cut(server: ApiServer, api: Api, ended: str) -> None:
    answer = api.connect().send(
        "GET", SLICES_PATH, query=None, content=None, headers={}, seconds=10
    )
    stream = WatchStream(answer, subject="WATCH", silent_seconds=10, on_event=nothing)
    if ended == "by its last byte":
        assert b"".join(answer.pieces())
    else:
        answer.close()

    stream.cut()

    answer.close()
    assert api.call("GET", SLICES_PATH)["items"] == []
