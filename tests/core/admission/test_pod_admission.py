"""Admission of a pod that requests a share: what is added and removed."""

import copy
from dataclasses import replace

import pytest

from tensorfusion_dra.core.admission.pod_admission import Placement
from tensorfusion_dra.core.kubernetes import json_patch
from tests.core.admission.pod_cases import ASKED, PLACE, admitted_pod
from tests.support.admission import Json, patched
from tests.support.builders.pods import container_document, pod_annotations, pod_document


def users(found: Json) -> list[str]:
    """Return the names of the containers that use the claim."""
    spec = found["spec"]
    return [
        entry["name"]
        for entry in (*spec.get("initContainers", ()), *spec["containers"])
        if {"name": "tensor-fusion-gpu-claim"} in entry.get("resources", {}).get("claims", ())
    ]


def whole_gpu(kind: str = "limits") -> Json:
    return {"resources": {kind: {"nvidia.com/gpu": "1", "cpu": "2"}}}


def test_patch_of_the_quick_start_pod() -> None:
    quick_start = pod_document({**ASKED, **pod_annotations(gpu_count="1")})

    operations = json_patch.between(quick_start, admitted_pod(quick_start))

    assert operations == [
        {
            "op": "add",
            "path": "/metadata/annotations/tensor-fusion.ai~1inject-container",
            "value": "main",
        },
        {
            "op": "add",
            "path": "/spec/containers/0/resources",
            "value": {"claims": [{"name": "tensor-fusion-gpu-claim"}]},
        },
        {
            "op": "add",
            "path": "/spec/resourceClaims",
            "value": [
                {
                    "name": "tensor-fusion-gpu-claim",
                    "resourceClaimTemplateName": "tensor-fusion-gpu-template",
                }
            ],
        },
    ]


def test_annotations_are_rewritten_in_canonical_form() -> None:
    found = admitted_pod(
        pod_document(
            pod_annotations(
                tflops_request="0.5",
                vram_request="1024Mi",
                vram_limit="2048Mi",
                tflops_limit="0",
                qos="high",
            )
        )
    )

    assert found["metadata"]["annotations"] == pod_annotations(
        dra_enabled="true",
        gpu_count="1",
        gpupool="default",
        inject_container="main",
        tflops_request="500m",
        vram_request="1Gi",
        vram_limit="2Gi",
        tflops_limit="0",
        qos="high",
    )


SHAPES = {
    "one container": pod_document(ASKED),
    "whole GPUs": pod_document(
        ASKED,
        container_document(**whole_gpu()),
        container_document("side", **whole_gpu("requests")),
    ),
    "init containers": pod_document(
        ASKED, initContainers=[container_document("init", **whole_gpu())]
    ),
    "other claims": pod_document(
        ASKED,
        container_document(resources={"claims": [{"name": "nic"}]}),
        resourceClaims=[{"name": "nic", "resourceClaimName": "nic"}],
    ),
    "scheduler": pod_document(ASKED, schedulerName="tensor-fusion-scheduler"),
    "everything": pod_document(
        {**ASKED, **pod_annotations(gpu_count="2", qos="low", isolation="hard", vram_limit="32Gi")},
        container_document(),
        container_document("side"),
    ),
}


@pytest.mark.parametrize("found", SHAPES.values(), ids=SHAPES)
def test_admitted_pod_is_not_changed_again(found: Json) -> None:
    before = copy.deepcopy(found)
    once = patched(found, json_patch.between(found, admitted_pod(found)))

    assert json_patch.between(once, admitted_pod(once)) == []
    assert found == before


def test_every_container_gets_the_share_unless_some_are_named() -> None:
    several = [container_document(), container_document("side"), container_document("logs")]

    assert users(admitted_pod(pod_document(ASKED, *several))) == ["main", "side", "logs"]
    named = {**ASKED, **pod_annotations(inject_container="logs,main")}
    assert users(admitted_pod(pod_document(named, *several))) == ["main", "logs"]


def test_init_container_gets_the_share_if_it_requests_a_gpu_or_is_named() -> None:
    init = [container_document("fetch"), container_document("check", **whole_gpu())]

    assert users(admitted_pod(pod_document(ASKED, initContainers=init))) == ["check", "main"]
    named = {**ASKED, **pod_annotations(inject_container="fetch")}
    assert users(admitted_pod(pod_document(named, initContainers=init))) == ["fetch"]


def test_container_added_later_by_another_webhook_gets_no_share() -> None:
    first = admitted_pod(pod_document(ASKED))
    first["spec"]["containers"].append(container_document("istio-proxy"))

    assert users(admitted_pod(first)) == ["main"]


def test_only_whole_gpus_are_removed_from_every_container() -> None:
    found = admitted_pod(
        pod_document(
            {**ASKED, **pod_annotations(inject_container="main")},
            container_document(
                resources={"requests": {"nvidia.com/gpu": 1}, "limits": {"cpu": "2"}}
            ),
            container_document("side", **whole_gpu()),
        )
    )

    main, side = found["spec"]["containers"]
    assert main["resources"]["requests"] == {}
    assert main["resources"]["limits"] == {"cpu": "2"}
    assert side["resources"] == {"requests": {}, "limits": {"cpu": "2"}}


def test_pods_own_claim_is_kept() -> None:
    own = {"name": "tensor-fusion-gpu-claim", "resourceClaimTemplateName": "mine"}

    found = admitted_pod(pod_document(ASKED, resourceClaims=[own]))

    assert found["spec"]["resourceClaims"] == [own]


def test_container_that_uses_the_only_request_of_the_claim_is_kept() -> None:
    claims = [{"name": "tensor-fusion-gpu-claim", "request": "gpu-request"}]

    found = admitted_pod(pod_document(ASKED, container_document(resources={"claims": claims})))

    assert found["spec"]["containers"][0]["resources"]["claims"] == claims


@pytest.mark.parametrize(
    ("named", "setting", "expected"),
    [
        ("tensor-fusion-scheduler", "default-scheduler", "default-scheduler"),
        ("tensor-fusion-scheduler", "", "tensor-fusion-scheduler"),
        ("volcano", "default-scheduler", "volcano"),
    ],
)
def test_only_tensor_fusions_scheduler_is_replaced(named: str, setting: str, expected: str) -> None:
    placement = Placement(pool="", template="t", scheduler=setting)

    found = admitted_pod(pod_document(ASKED, schedulerName=named), placement)

    assert found["spec"]["schedulerName"] == expected


def test_containers_with_the_share_learn_their_names_for_tensor_fusions_limiter() -> None:
    own = {"name": "CONTAINER_NAME", "value": "own"}
    pod = pod_document(
        {**ASKED, **pod_annotations(inject_container="a,b")},
        container_document("a"),
        container_document("b", env=[own]),
        container_document("c"),
    )

    found = admitted_pod(pod, replace(PLACE, names_containers=True))

    assert [container.get("env") for container in found["spec"]["containers"]] == [
        [{"name": "CONTAINER_NAME", "value": "a"}],
        [own],
        None,
    ]
