"""Discovery, versions, OpenAPI documents and what else kubectl reads; restarts of a server."""

from contextlib import closing
from typing import Final

import pytest

from dra_simulator.api.kinds import KINDS, Kind
from dra_simulator.apiserver import ApiServer
from tests.dra_simulator.api.client import (
    GPUPOOLS,
    MERGE,
    RESOURCE,
    SLICES,
    STRATEGIC,
    Client,
    served,
)
from tests.support.builders.documents import slice_document

GVK: Final = "x-kubernetes-group-version-kind"


def test_the_server_is_ready_and_reports_its_version(api: Client) -> None:
    assert [api.get(path).json["text"] for path in ("/readyz", "/livez")] == ["ok", "ok"]
    version = api.get("/version").json
    assert (version["major"], version["minor"]) == ("1", "37")


def test_discovery_names_groups_versions_and_resources(api: Client) -> None:
    resources = {item["name"]: item for item in api.get(RESOURCE).json["resources"]}
    core = {item["name"]: item for item in api.get("/api/v1").json["resources"]}

    assert api.get("/api").json["versions"] == ["v1"]
    groups = {item["name"]: item["preferredVersion"] for item in api.get("/apis").json["groups"]}
    assert [*groups] == ["events.k8s.io", "admissionregistration.k8s.io", "resource.k8s.io"]
    preferred = {"groupVersion": "resource.k8s.io/v1", "version": "v1"}
    assert groups["resource.k8s.io"] == preferred
    assert api.get("/apis/resource.k8s.io").json["preferredVersion"] == preferred
    assert set(resources) == {
        "deviceclasses",
        "resourceclaims",
        "resourceclaims/status",
        "resourceclaimtemplates",
        "resourceslices",
    }
    assert resources["resourceslices"]["namespaced"] is False
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
