"""Discovery, versions and the common client libraries."""

import http.client
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client as kubernetes_client
from kubernetes import config
from kubernetes.client.exceptions import ApiException
from kubernetes.watch import Watch

from dra_simulator.apiserver import ApiServer
from tests.dra_simulator.api.client import APPLY, NODES, RESOURCE, SLICES, Client
from tests.support.builders.documents import (
    allocation_document,
    claim_document,
    device_document,
    device_status,
    pod_with_claim,
    slice_document,
)


def test_the_server_is_ready_and_reports_its_version(api: Client) -> None:
    assert api.get("/readyz").json["text"] == "ok"
    assert api.get("/livez").code == 200
    version = api.get("/version").json
    assert (version["major"], version["minor"]) == ("1", "36")


def test_discovery_names_groups_versions_and_resources(api: Client) -> None:
    group = api.get("/apis/resource.k8s.io").json
    resources = {item["name"]: item for item in api.get(RESOURCE).json["resources"]}

    assert api.get("/api").json["versions"] == ["v1"]
    assert [item["name"] for item in api.get("/apis").json["groups"]] == [
        "events.k8s.io",
        "admissionregistration.k8s.io",
        "resource.k8s.io",
    ]
    assert group["preferredVersion"] == {"groupVersion": "resource.k8s.io/v1", "version": "v1"}
    assert set(resources) == {
        "deviceclasses",
        "resourceclaims",
        "resourceclaims/status",
        "resourceclaimtemplates",
        "resourceslices",
    }
    assert resources["resourceslices"]["namespaced"] is False
    assert "deletecollection" in resources["resourceclaims"]["verbs"]
    assert {"pods/binding", "pods/status", "nodes"} <= {
        item["name"] for item in api.get("/api/v1").json["resources"]
    }


def test_another_version_can_be_served_instead_of_v1_or_beside_it() -> None:
    old = SLICES.replace("/v1/", "/v1beta2/")
    older = {**slice_document(), "apiVersion": "resource.k8s.io/v1beta2"}
    with ApiServer(resource_versions=("v1beta2",)) as server:
        api = Client(server.url)
        refused = api.post(SLICES, slice_document())
        made = api.post(old, older)
        versions = api.get("/apis/resource.k8s.io").json["versions"]
        api.close()
    with ApiServer(resource_versions=("v1", "v1beta2")) as server:
        both = Client(server.url)
        both.post(SLICES, slice_document())
        seen = both.get(f"{old}/slice-a").json
        both.close()

    assert (refused.code, refused.json["text"]) == (404, "404 page not found\n")
    assert made.json["apiVersion"] == "resource.k8s.io/v1beta2"
    assert [version["version"] for version in versions] == ["v1beta2"]
    assert seen["apiVersion"] == "resource.k8s.io/v1beta2"


def test_a_restarted_server_keeps_its_objects() -> None:
    server = ApiServer()
    server.start()
    api = Client(server.url)
    made = api.post(SLICES, slice_document()).json
    server.stop()
    with pytest.raises(ConnectionError):
        api.get(SLICES)

    server.start()
    found = api.get(f"{SLICES}/slice-a").json
    with api.watch(f"{SLICES}?resourceVersion={made['metadata']['resourceVersion']}") as watch:
        api.delete(f"{SLICES}/slice-a")
        event = watch.next()[:2]
    server.stop()
    api.close()

    assert found == made
    assert event == ("DELETED", "slice-a")


def test_one_connection_serves_many_requests_and_watches(server: ApiServer) -> None:
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"))
    codes = []
    for path in (SLICES, f"{SLICES}?watch=true&timeoutSeconds=0", "/nothing", NODES):
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
        codes.append(answer.status)
    local = connection.sock
    connection.close()

    assert codes == [200, 200, 404, 200]
    assert local is not None


# Any, because the kubernetes client's own types demand models although dicts work as well.
@pytest.fixture
def library(server: ApiServer, tmp_path: Path) -> Any:
    path = str(server.kubeconfig(tmp_path / "kubeconfig"))
    return config.new_client_from_config(path)  # type: ignore[no-untyped-call]


@pytest.fixture
def custom(library: Any) -> Any:
    return kubernetes_client.CustomObjectsApi(library)


SLICE_ARGS = ("resource.k8s.io", "v1", "resourceslices")
CLAIM_ARGS = ("resource.k8s.io", "v1", "default", "resourceclaims")


def test_the_kubernetes_client_creates_lists_replaces_and_deletes(
    custom: Any,
) -> None:
    made = custom.create_cluster_custom_object(
        *SLICE_ARGS, slice_document(), field_validation="Strict"
    )
    made["spec"]["devices"].append(device_document("gpu-1"))
    replaced = custom.replace_cluster_custom_object(*SLICE_ARGS, "slice-a", made)
    found = custom.list_cluster_custom_object(*SLICE_ARGS, field_selector="spec.nodeName=node-a")
    with pytest.raises(ApiException) as stale:
        custom.replace_cluster_custom_object(*SLICE_ARGS, "slice-a", made)
    body = {"preconditions": {"uid": made["metadata"]["uid"]}}
    custom.delete_cluster_custom_object(*SLICE_ARGS, "slice-a", body=body)

    assert replaced["metadata"]["generation"] == 2
    assert found["items"][0]["metadata"]["name"] == "slice-a"
    assert stale.value.status == 409
    with pytest.raises(ApiException, match=r"slice-a.*not found"):
        custom.get_cluster_custom_object(*SLICE_ARGS, "slice-a")


def test_the_kubernetes_client_applies_a_status(custom: Any) -> None:
    custom.create_namespaced_custom_object(*CLAIM_ARGS, claim_document())
    custom.patch_namespaced_custom_object_status(
        *CLAIM_ARGS, "claim-a", {"status": {"allocation": allocation_document()}}
    )

    applied = custom.patch_namespaced_custom_object_status(
        *CLAIM_ARGS,
        "claim-a",
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": "claim-a"},
            "status": {"devices": [device_status()]},
        },
        field_manager="driver",
        force=True,
        _content_type=APPLY,
    )

    assert applied["status"]["devices"][0]["device"] == "gpu-0"


def test_the_kubernetes_client_watches(custom: Any) -> None:
    custom.create_cluster_custom_object(*SLICE_ARGS, slice_document())

    watch: Any = Watch()  # type: ignore[no-untyped-call]
    events = [
        (event["type"], event["object"]["metadata"]["name"])
        for event in watch.stream(custom.list_cluster_custom_object, *SLICE_ARGS, timeout_seconds=0)
    ]

    assert events == [("ADDED", "slice-a")]


def test_the_typed_clients_work_as_well(library: Any) -> None:
    core: Any = kubernetes_client.CoreV1Api(library)
    resource: Any = kubernetes_client.ResourceV1Api(library)

    core.create_node({"metadata": {"name": "node-a"}})
    core.create_namespaced_pod("default", pod_with_claim())
    core.patch_namespaced_pod("pod-a", "default", {"metadata": {"labels": {"a": "b"}}})
    resource.create_resource_slice(slice_document())

    assert core.read_node("node-a").metadata.uid
    assert core.read_namespaced_pod("pod-a", "default").metadata.labels == {"a": "b"}
    listed = resource.list_resource_slice(field_selector="spec.driver=tensor-fusion.ai.dra-driver")
    assert listed.items[0].spec.devices[0].allow_multiple_allocations is True
