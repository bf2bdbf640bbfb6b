"""Fault injection."""

import http.client
import json
import time

import pytest

from dra_simulator.api.faults import (
    ANY,
    Cut,
    Delay,
    Expire,
    Forge,
    Garble,
    HalfOpen,
    Refuse,
)
from dra_simulator.apiserver import ApiServer
from tests.dra_simulator.api.client import CLAIMS, SLICES, Client
from tests.support.builders.documents import claim_document, slice_document
from tests.support.waiting import PATIENCE_SECONDS


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (401, "Unauthorized"),
        (403, "Forbidden"),
        (409, "Conflict"),
        (410, "Expired"),
        (429, "TooManyRequests"),
        (500, "InternalError"),
        (503, "ServiceUnavailable"),
    ],
)
def test_a_refused_request_is_not_carried_out(
    api: Client, server: ApiServer, code: int, reason: str
) -> None:
    server.faults.add("create", "resourceslices", Refuse(code), times=1)

    refused = api.post(SLICES, slice_document())

    assert (refused.code, refused.json["reason"], refused.json["code"]) == (code, reason, code)
    assert api.post(SLICES, slice_document()).code == 201


def test_a_refusal_can_set_retry_after(api: Client, server: ApiServer) -> None:
    server.faults.add(ANY, ANY, Refuse(429, retry_after_seconds=3), times=1)

    refused = api.get(SLICES)

    assert refused.headers["retry-after"] == ["3"]
    assert refused.json["details"] == {"retryAfterSeconds": 3}


def test_a_forged_answer_replaces_the_stored_object(api: Client, server: ApiServer) -> None:
    api.post(SLICES, slice_document("slice-a"))
    server.faults.add("get", "resourceslices", Forge(b'{"kind": 7}'), times=1)

    forged = api.get(f"{SLICES}/slice-a")

    assert (forged.code, forged.json) == (200, {"kind": 7})
    assert api.get(f"{SLICES}/slice-a").json["kind"] == "ResourceSlice"


def test_a_fault_affects_only_its_verb_resource_and_name(api: Client, server: ApiServer) -> None:
    for name in ("slice-a", "slice-b"):
        api.post(SLICES, slice_document(name))
    fault = server.faults.add("get", "resourceslices", Refuse(403), name="slice-b")

    codes = [api.get(path).code for path in (f"{SLICES}/slice-a", f"{SLICES}/slice-b", SLICES)]

    assert codes == [200, 403, 200]
    assert fault.hits == 1


def test_a_fault_ends_with_its_count_its_removal_or_its_block(
    api: Client, server: ApiServer
) -> None:
    server.faults.add("list", "resourceslices", Refuse(500), times=2)
    counted = [api.get(SLICES).code for _ in range(3)]
    removed = server.faults.add("list", "resourceslices", Refuse(500))
    until_removed = [api.get(SLICES).code for _ in range(3)]
    server.faults.remove(removed)
    with server.faults.during("list", "resourceslices", Refuse(500)) as fault:
        inside = api.get(SLICES).code
    server.faults.add("list", "resourceslices", Refuse(500))
    server.faults.clear()

    assert counted == [500, 500, 200]
    assert until_removed == [500, 500, 500]
    assert (inside, fault.hits) == (500, 1)
    assert api.get(SLICES).code == 200


def test_a_fault_can_affect_a_subresource(api: Client, server: ApiServer) -> None:
    api.post(CLAIMS, claim_document())
    server.faults.add("patch", "resourceclaims/status", Refuse(403))

    assert api.patch(f"{CLAIMS}/claim-a/status", {}).code == 403
    assert api.patch(f"{CLAIMS}/claim-a", {}).code == 200


def test_a_delayed_request_is_carried_out_later(api: Client, server: ApiServer) -> None:
    server.faults.add("create", "resourceslices", Delay(0.05), times=1)

    began = time.monotonic()
    code = api.post(SLICES, slice_document()).code

    assert code == 201
    assert time.monotonic() - began >= 0.05


@pytest.mark.parametrize("carried_out", [False, True])
def test_a_connection_can_be_cut_before_or_after_the_write(
    api: Client, server: ApiServer, carried_out: bool
) -> None:
    server.faults.add("create", "resourceslices", Cut(carried_out=carried_out), times=1)

    with pytest.raises(http.client.RemoteDisconnected):
        api.post(SLICES, slice_document())

    assert len(api.get(SLICES).json["items"]) == carried_out


def test_a_half_open_connection_never_answers_but_ends_with_the_server() -> None:
    server = ApiServer()
    server.start()
    server.faults.add("get", "resourceslices", HalfOpen())
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=0.1)
    connection.request("GET", f"{SLICES}/slice-a")

    with pytest.raises(TimeoutError):
        connection.getresponse()

    server.stop()
    connection.close()


def test_a_half_open_watch_sends_headers_and_then_nothing(server: ApiServer) -> None:
    server.faults.add("watch", "resourceslices", HalfOpen(), times=1)
    api = Client(server.url)
    connection = http.client.HTTPConnection(
        server.url.removeprefix("http://"), timeout=PATIENCE_SECONDS
    )
    connection.request("GET", f"{SLICES}?watch=true")
    answer = connection.getresponse()
    assert connection.sock is not None
    connection.sock.settimeout(0.1)
    api.post(SLICES, slice_document())

    with pytest.raises(TimeoutError):
        answer.readline()
    answer.close()
    connection.close()
    api.close()


def test_a_watch_can_expire_as_an_event_or_as_an_answer(api: Client, server: ApiServer) -> None:
    server.faults.add("watch", "resourceslices", Expire(), times=1)
    with api.watch(SLICES) as watch:
        events = list(watch)
    server.faults.add("watch", "resourceslices", Refuse(410), times=1)
    refused = api.get(f"{SLICES}?watch=true")

    assert watch.code == 200
    assert [(event["type"], event["object"]["code"]) for event in events] == [("ERROR", 410)]
    assert (refused.code, refused.json["reason"]) == (410, "Expired")


def test_a_watch_can_be_cut_within_an_event(api: Client, server: ApiServer) -> None:
    api.post(SLICES, slice_document())
    server.faults.add("watch", "resourceslices", Cut(carried_out=True), times=1)

    with api.watch(SLICES) as watch, pytest.raises((http.client.IncompleteRead, ValueError)):
        watch.next()


def test_a_watch_can_send_invalid_json(api: Client, server: ApiServer) -> None:
    server.faults.add("watch", "resourceslices", Garble(), times=1)

    with api.watch(SLICES) as watch, pytest.raises(json.JSONDecodeError):
        watch.next()
