"""Requests in the order in which kubectl sends them."""

from typing import Final
from urllib.parse import quote

import pytest

from dra_simulator.apiserver import ApiServer
from tests.dra_simulator.api.client import (
    EVENTS,
    MERGE,
    STRATEGIC,
    Client,
    Json,
)

GPUPOOLS: Final = "/apis/tensor-fusion.ai/v1/gpupools"


def test_custom_resources_are_patched_but_not_strategically() -> None:
    pool = {"apiVersion": "tensor-fusion.ai/v1", "kind": "GPUPool", "metadata": {"name": "p"}}
    with ApiServer(tensor_fusion=True) as server:
        api = Client(server.url)
        api.post(GPUPOOLS, pool)
        merged = api.patch(f"{GPUPOOLS}/p", {"spec": {"a": 1}}, MERGE)
        refused = api.patch(f"{GPUPOOLS}/p", {"spec": {"a": 2}}, STRATEGIC)
        api.close()

    assert merged.json["spec"] == {"a": 1}
    assert (refused.code, refused.json["reason"]) == (415, "UnsupportedMediaType")
    assert refused.message.endswith(
        "media types include: application/json-patch+json, application/merge-patch+json,"
        " application/apply-patch+yaml"
    )


def test_pods_are_in_the_category_that_get_all_lists(api: Client) -> None:
    resources = api.get("/api/v1").json["resources"]

    assert [item["name"] for item in resources if "all" in item.get("categories", [])] == ["pods"]


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
        ("source=kubelet", ["a"]),
        ("source=default-scheduler", ["b"]),
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
