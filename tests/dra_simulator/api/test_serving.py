"""Discovery, versions and what kubectl reads, and counts of requests."""

from typing import Final
from urllib.parse import quote

import pytest

from dra_simulator.apiserver import ApiServer
from tests.dra_simulator.api.client import (
    EVENTS,
    MERGE,
    RESOURCE,
    SLICES,
    STRATEGIC,
    Client,
    Json,
    served,
)
from tests.support.builders.documents import (
    slice_document,
)


def test_the_server_is_ready_and_reports_its_version(api: Client) -> None:
    assert api.get("/readyz").json["text"] == "ok"
    assert api.get("/livez").code == 200
    version = api.get("/version").json
    assert (version["major"], version["minor"]) == ("1", "37")


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
    core = {item["name"]: item for item in api.get("/api/v1").json["resources"]}
    assert {"pods/binding", "pods/status", "nodes"} <= core.keys()
    assert [name for name in core if "all" in core[name].get("categories", [])] == ["pods"]


def test_another_version_can_be_served_beside_v1() -> None:
    with served(resource_versions=("v1", "v1beta2")) as api:
        api.post(SLICES, slice_document())
        seen = api.get(f"{SLICES}/slice-a".replace("/v1/", "/v1beta2/")).json
        versions = api.get("/apis/resource.k8s.io").json["versions"]

    assert seen["apiVersion"] == "resource.k8s.io/v1beta2"
    assert [version["version"] for version in versions] == ["v1", "v1beta2"]


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


GPUPOOLS: Final = "/apis/tensor-fusion.ai/v1/gpupools"


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


def event(name: str, *, pod: str, **fields: object) -> Json:
    about = {"kind": "Pod", "name": pod, "namespace": "default", "uid": f"uid-of-{pod}"}
    return {
        "metadata": {"name": name},
        "involvedObject": {**about, "apiVersion": "v1"},
        "reason": "Failed",
        "type": "Warning",
        **fields,
    }


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        # kubectl describe pod
        (
            "involvedObject.name=pod-a,involvedObject.namespace=default,involvedObject.kind=Pod,"
            "involvedObject.uid=uid-of-pod-a",
            ["a", "b"],
        ),
        # kubectl events --for pod/pod-b
        ("involvedObject.kind=Pod,involvedObject.name=pod-b,involvedObject.apiVersion=v1", ["c"]),
        # kubectl get events --field-selector
        ("type!=Normal", ["a", "b"]),
        ("reportingComponent=default-scheduler,reason=Failed", ["b"]),
        ("involvedObject.fieldPath=spec.a", ["c"]),
    ],
)
def test_events_are_found_by_the_fields_that_kubectl_selects(
    api: Client, selector: str, names: list[str]
) -> None:
    api.post(EVENTS, event("a", pod="pod-a", source={"component": "kubelet"}))
    api.post(EVENTS, event("b", pod="pod-a", reportingComponent="default-scheduler"))
    of_other = event("c", pod="pod-b", type="Normal")
    of_other["involvedObject"]["fieldPath"] = "spec.a"
    api.post(EVENTS, of_other)

    found = api.get(f"{EVENTS}?fieldSelector={quote(selector)}&limit=500").json["items"]

    assert [item["metadata"]["name"] for item in found] == names
