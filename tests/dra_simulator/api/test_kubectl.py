"""Requests in the order in which kubectl sends them."""

import json
from typing import Final
from urllib.parse import quote

import pytest

from dra_simulator.apiserver import ApiServer
from tests.dra_simulator.api.client import (
    CLAIMS,
    EVENTS,
    JSON_PATCH,
    MERGE,
    PODS,
    STRATEGIC,
    TEMPLATES,
    Client,
    Json,
)
from tests.support.builders.documents import claim_document, pod_with_claim, template_document

LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
CLIENT_SIDE: Final = "fieldManager=kubectl-client-side-apply&fieldValidation=Strict"
GPUPOOLS: Final = "/apis/tensor-fusion.ai/v1/gpupools"


def applied(document: Json) -> Json:
    """Return the document with the annotation of a client-side apply."""
    metadata = {**document["metadata"], "annotations": {LAST_APPLIED: json.dumps(document)}}
    return {**document, "metadata": metadata}


def test_apply_creates_then_patches_and_a_repeat_changes_nothing(api: Client) -> None:
    path, wanted = f"{TEMPLATES}/template-a", template_document()
    missing = api.get(path)
    created = api.post(f"{TEMPLATES}?{CLIENT_SIDE}", applied(wanted))
    changed = template_document()
    changed["metadata"]["labels"] = {"tier": "one"}

    patch = {"metadata": {**applied(changed)["metadata"]}}
    patched = api.patch(f"{path}?{CLIENT_SIDE}", patch, STRATEGIC)
    again = api.patch(f"{path}?{CLIENT_SIDE}", patch, STRATEGIC)

    assert (missing.code, missing.json["reason"], created.code) == (404, "NotFound", 201)
    assert patched.json["metadata"]["labels"] == {"tier": "one"}
    assert json.loads(patched.json["metadata"]["annotations"][LAST_APPLIED]) == changed
    assert again.json == patched.json


def test_apply_of_an_unknown_field_is_refused_and_stores_nothing(api: Client) -> None:
    wrong = claim_document(request=[])

    refused = api.post(f"{CLAIMS}?{CLIENT_SIDE}", applied(wrong))

    assert (refused.code, refused.json["reason"]) == (400, "BadRequest")
    assert refused.message == (
        'ResourceClaim in version "v1" cannot be handled as a ResourceClaim: strict decoding'
        ' error: unknown field "spec.devices.request"'
    )
    assert api.get(f"{CLAIMS}/claim-a").code == 404


@pytest.mark.parametrize(
    ("kind", "patch"),
    [
        (MERGE, {"spec": {"nodeSelektor": {"a": "b"}}}),
        (STRATEGIC, {"spec": {"nodeSelektor": {"a": "b"}}}),
        (JSON_PATCH, [{"op": "add", "path": "/spec/nodeSelektor", "value": {"a": "b"}}]),
    ],
)
def test_a_patch_with_an_unknown_field_is_refused_and_stores_nothing(
    api: Client, kind: str, patch: object
) -> None:
    before = api.post(PODS, pod_with_claim()).json

    query = "fieldManager=kubectl-patch&fieldValidation=Strict"
    refused = api.patch(f"{PODS}/pod-a?{query}", patch, kind)

    assert refused.code == 422
    assert 'unknown field "spec.nodeSelektor"' in refused.message
    assert api.get(f"{PODS}/pod-a").json == before


def test_a_dry_run_shows_what_would_be_stored_and_stores_nothing(api: Client) -> None:
    created = api.post(f"{TEMPLATES}?dryRun=All&{CLIENT_SIDE}", applied(template_document()))

    assert created.code == 201
    assert created.json["spec"]["spec"]["devices"]["requests"]
    assert api.get(f"{TEMPLATES}/template-a").code == 404


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
