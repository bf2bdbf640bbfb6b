"""Fault injection, and the counts of requests beside it."""

import http.client

import pytest

from dra_simulator.api.faults import (
    Cut,
    Refuse,
)
from dra_simulator.apiserver import ApiServer
from tests.dra_simulator.api.client import CLAIMS, NODES, SLICES, Client
from tests.support.builders.documents import claim_document, slice_document


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
    def codes(count: int) -> list[int]:
        return [api.get(SLICES).code for _ in range(count)]

    server.faults.add("list", "resourceslices", Refuse(500), times=2)
    assert codes(3) == [500, 500, 200]
    removed = server.faults.add("list", "resourceslices", Refuse(500))
    assert codes(3) == [500, 500, 500]
    server.faults.remove(removed)
    with server.faults.during("list", "resourceslices", Refuse(500)) as fault:
        assert codes(1) == [500]
    server.faults.add("list", "resourceslices", Refuse(500))
    server.faults.clear()

    assert (codes(1), fault.hits) == ([200], 1)


@pytest.mark.parametrize("carried_out", [False, True])
def test_a_connection_can_be_cut_before_or_after_the_write(
    api: Client, server: ApiServer, carried_out: bool
) -> None:
    server.faults.add("create", "resourceslices", Cut(carried_out=carried_out), times=1)

    with pytest.raises(http.client.RemoteDisconnected):
        api.post(SLICES, slice_document())

    assert len(api.get(SLICES).json["items"]) == carried_out


def test_received_and_answered_requests_of_a_client_are_counted(
    api: Client, server: ApiServer
) -> None:
    server.faults.add("list", "nodes", Cut(), times=1)
    with pytest.raises(http.client.RemoteDisconnected):
        api.get(NODES)
    api.get(NODES)

    counts = server.requests
    assert (counts.received("tests/1"), counts.answered("tests/1")) == (2, 1)
    assert (counts.received("other"), counts.answered("other")) == (0, 0)


def test_requests_are_counted_by_verb_and_resource(api: Client, server: ApiServer) -> None:
    api.post(CLAIMS, claim_document())
    api.get(CLAIMS)
    api.patch(f"{CLAIMS}/claim-a/status", {"status": {}})
    api.delete(CLAIMS)

    assert server.requests.all() == {
        ("create", "resourceclaims"): 1,
        ("list", "resourceclaims"): 1,
        ("patch", "resourceclaims/status"): 1,
        ("deletecollection", "resourceclaims"): 1,
    }
    assert server.requests.count("list") == 1
    server.requests.reset()
    assert server.requests.count() == 0
