"""Discovery, versions, OpenAPI documents; restarts, faults and counts of requests."""

import http.client
from contextlib import closing
from typing import Final

import pytest

from dra_simulator.api.faults import (
    Cut,
    Refuse,
)
from dra_simulator.api.kinds import KINDS, Kind
from dra_simulator.apiserver import ApiServer
from tests.dra_simulator.api.client import (
    CLAIMS,
    GPUPOOLS,
    MERGE,
    NODES,
    RESOURCE,
    SLICES,
    STRATEGIC,
    Client,
    served,
)
from tests.support.builders.documents import claim_document, slice_document

GVK: Final = "x-kubernetes-group-version-kind"


def test_the_server_is_ready_and_reports_its_version(api: Client) -> None:
    assert [api.get(path).json["text"] for path in ("/readyz", "/livez")] == ["ok", "ok"]
    version = api.get("/version").json
    assert (version["major"], version["minor"]) == ("1", "37")


def test_discovery_names_groups_versions_and_resources(api: Client) -> None:
    resources = {item["name"]: item for item in api.get(RESOURCE).json["resources"]}
    core = {item["name"]: item for item in api.get("/api/v1").json["resources"]}
    groups = {item["name"]: item for item in api.get("/apis").json["groups"]}

    assert api.get("/api").json["versions"] == ["v1"]
    assert [*groups] == ["events.k8s.io", "admissionregistration.k8s.io", "resource.k8s.io"]
    group = api.get("/apis/resource.k8s.io").json
    assert group == group | groups["resource.k8s.io"]
    assert group["preferredVersion"] == {"groupVersion": "resource.k8s.io/v1", "version": "v1"}
    assert {name: item["namespaced"] for name, item in resources.items()} == {
        "deviceclasses": False,
        "devicetaintrules": False,
        "devicetaintrules/status": False,
        "resourceclaims": True,
        "resourceclaims/status": True,
        "resourceclaimtemplates": True,
        "resourceslices": False,
    }
    assert "deletecollection" in resources["resourceclaims"]["verbs"]
    assert {"pods/binding", "pods/status", "nodes"} <= core.keys()
    assert [name for name in core if "all" in core[name].get("categories", [])] == ["pods"]


def test_another_version_can_be_served_beside_v1() -> None:
    with served(resource_versions=("v1", "v1beta2")) as api:
        api.post(SLICES, slice_document())
        seen = api.get(f"{SLICES}/slice-a".replace("/v1/", "/v1beta2/")).json
        versions = api.get("/apis/resource.k8s.io").json["versions"]

    assert seen["apiVersion"] == "resource.k8s.io/v1beta2"
    assert [version["version"] for version in versions] == ["v1", "v1beta2"]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind.group}/{kind.plural}")
def test_patches_of_every_kind_take_field_validation(empty: Client, kind: Kind) -> None:
    index = empty.get("/openapi/v3").json["paths"]
    place = index[f"apis/{kind.group}/v1" if kind.group else "api/v1"]["serverRelativeURL"]
    patches = [each["patch"] for each in empty.get(place).json["paths"].values()]

    named = {"group": kind.group, "version": "v1", "kind": kind.kind}
    (patch,) = [patch for patch in patches if patch[GVK] == named]
    parameter = {"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}
    assert parameter in patch["parameters"]


def test_group_version_that_is_not_served_has_no_document(empty: Client) -> None:
    assert empty.get("/openapi/v3/apis/apps/v1").code == 404


def test_a_restarted_server_keeps_its_objects() -> None:
    server = ApiServer()
    with server:
        api = Client(server.url)
        made = api.post(SLICES, slice_document()).json
    with pytest.raises(ConnectionError):
        api.get(SLICES)

    with server, closing(api):
        assert api.get(f"{SLICES}/slice-a").json == made
        since = made["metadata"]["resourceVersion"]
        with api.watch(f"{SLICES}?resourceVersion={since}") as watch:
            api.delete(f"{SLICES}/slice-a")
            assert watch.next()[:2] == ("DELETED", "slice-a")


def test_custom_resources_are_patched_but_not_strategically() -> None:
    pool = {"apiVersion": "tensor-fusion.ai/v1", "kind": "GPUPool", "metadata": {"name": "p"}}
    with served(tensor_fusion=True) as api:
        api.post(GPUPOOLS, pool)
        merged = api.patch(f"{GPUPOOLS}/p", {"spec": {"a": 1}}, MERGE)
        refused = api.patch(f"{GPUPOOLS}/p", {"spec": {"a": 2}}, STRATEGIC)

    assert merged.json["spec"] == {"a": 1}
    assert (refused.code, refused.json["reason"]) == (415, "UnsupportedMediaType")
    assert refused.message.endswith(
        "media types include: application/json-patch+json, application/merge-patch+json,"
        " application/apply-patch+yaml"
    )


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
