"""Admission of a pod that requests a share: what is added and removed, and what is refused."""

import copy
from dataclasses import replace
from typing import Any

import pytest

from tensorfusion_dra.core import names
from tensorfusion_dra.core.admission import pod_admission, pod_request
from tensorfusion_dra.core.admission.pod_admission import Placement
from tensorfusion_dra.core.admission.pod_request import PodRequest
from tensorfusion_dra.core.kubernetes import json_patch
from tests.support.admission import Json, patched
from tests.support.builders.pods import container_document, pod_annotations, pod_document

PLACE = Placement(
    pool="default", template="tensor-fusion-gpu-template", scheduler="default-scheduler"
)
ASKED = pod_annotations(
    dra_enabled="true", tflops_request="100", vram_request="16Gi", gpupool="default"
)


def parsed_request(found: Json) -> PodRequest:
    return pod_request.parse(found["metadata"]["annotations"], [])


def admitted_pod(found: Json, placement: Placement = PLACE) -> Json:
    return pod_admission.admitted(found, parsed_request(found), placement)


def refused(found: Json, *, takes_hard: bool = False) -> list[str]:
    errors = pod_admission.errors(found, parsed_request(found), takes_hard=takes_hard)
    return [str(error) for error in errors]


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


def test_container_that_would_get_only_one_of_several_gpus_is_refused() -> None:
    claims = [{"name": "tensor-fusion-gpu-claim", "request": "gpu-request"}]
    found = pod_document(
        {**ASKED, **pod_annotations(gpu_count="4")},
        container_document(resources={"claims": claims}),
    )

    (error,) = refused(found)

    assert error.startswith("spec.containers[0].resources.claims[0].request: ")
    assert "found 'gpu-request', expected none: each of the 4 GPUs has its own request" in error


@pytest.mark.parametrize(
    ("annotation", "meant"),
    [
        ("tensor-fusion.ai/tflop-request", "tensor-fusion.ai/tflops-request"),
        ("tensor-fusion.ai/tfolps-request", "tensor-fusion.ai/tflops-request"),
        ("tensor-fusion.ai/vram-requests", "tensor-fusion.ai/vram-request"),
        ("tensor-fusion.ai/vram_request", "tensor-fusion.ai/vram-request"),
        ("tensorfusion.ai/vram-request", "tensor-fusion.ai/vram-request"),
        ("tensor-fusion.ai/vram-limits", "tensor-fusion.ai/vram-limit"),
        ("tensor-fusion.ai/gpu-cuont", "tensor-fusion.ai/gpu-count"),
        ("tensor-fusion.ai/compute-percents-limit", "tensor-fusion.ai/compute-percent-limit"),
        ("tensor-fusion.ai/memory-request", ""),
        ("tensor-fusion.ai/gpu-modle", ""),
        ("tensor-fusion.ai/vram", ""),
        ("example.com/vram-request", ""),
    ],
)
def test_amount_that_is_misspelled_by_two_letters_is_refused(annotation: str, meant: str) -> None:
    found = refused(pod_document({**ASKED, annotation: "1"}))

    text = f"found an unknown annotation; did you mean {meant}?"
    assert found == ([f"metadata.annotations[{annotation}]: {text}"] if meant else [])


def test_no_annotation_with_a_meaning_resembles_an_amount() -> None:
    others = {*names.SHARE_ANNOTATIONS, *pod_request.REQUESTING_ANNOTATIONS}
    others |= {
        f"{names.ANNOTATION_PREFIX}{name}"
        for name in (*pod_admission.OTHERS, *pod_admission.WITHOUT_EFFECT)
    }
    annotations = dict.fromkeys(others, "1")

    errors = pod_admission.errors(pod_document(annotations), PodRequest(), takes_hard=True)

    assert [str(error) for error in errors if "did you mean" in str(error)] == []


@pytest.mark.parametrize("switch", sorted(pod_admission.REFUSED_ENV))
def test_variable_that_bypasses_the_limiter_is_refused(switch: str) -> None:
    env = [{"name": "A", "value": "b"}, {"name": switch, "value": "1"}]

    (error,) = refused(
        pod_document(ASKED, container_document(), container_document("side", env=env))
    )

    assert error == (
        f"spec.containers[1].env[1].name: found {switch}, "
        "expected no switch that turns the limiter off"
    )


def test_test_mode_is_refused_even_if_empty_or_from_a_field() -> None:
    empty = {"name": "TF_SHM_FILE", "value": ""}
    elsewhere = {"name": "TF_SHM_FILE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}

    assert (
        len(
            refused(
                pod_document(
                    ASKED, container_document(env=[empty]), container_document("b", env=[elsewhere])
                )
            )
        )
        == 2
    )


def test_variables_of_containers_without_a_share_are_not_checked() -> None:
    env = [{"name": "TF_SHM_FILE", "value": "x"}]
    annotations = {**ASKED, **pod_annotations(inject_container="main")}

    assert (
        refused(
            pod_document(annotations, container_document(), container_document("side", env=env))
        )
        == []
    )


def test_every_named_container_must_exist() -> None:
    errors = refused(pod_document({**ASKED, **pod_annotations(inject_container="main,gone,lost")}))

    assert errors == [
        "metadata.annotations[tensor-fusion.ai/inject-container]: "
        f"found '{name}', expected one of main"
        for name in ("gone", "lost")
    ]


@pytest.mark.parametrize(
    "spec",
    [
        {"containers": None},
        {"containers": [None, 1, {"name": 3}], "initContainers": {}},
        {"containers": [{"name": "a", "resources": None, "env": [None, {}]}]},
        {"containers": [{"resources": {"limits": None, "claims": None}}], "resourceClaims": None},
    ],
)
def test_pod_that_the_api_server_will_refuse_raises_no_exception(spec: dict[str, Any]) -> None:
    found = {**pod_document(ASKED), "spec": spec}

    assert refused(found) == []
    assert admitted_pod(found)["spec"]["resourceClaims"]


def test_hard_isolation_is_refused_if_no_enforcer_brings_a_limiter_for_it() -> None:
    found = pod_document({**ASKED, **pod_annotations(isolation="hard")})

    (error,) = refused(found)

    where = "metadata.annotations[tensor-fusion.ai/isolation]"
    assert error.startswith(f"{where}: found hard, expected an enforcer that brings one")
    assert refused(found, takes_hard=True) == []


def test_pod_of_tensor_fusions_own_webhook_is_refused_with_a_remedy() -> None:
    found = pod_document(ASKED)
    found["metadata"]["labels"] = {"tensor-fusion.ai/enabled": "true"}

    (error,) = refused(found)

    assert error.startswith("metadata.labels[tensor-fusion.ai/enabled]: found true, so Tensor")
    assert error.endswith("remove the label, or set tensor-fusion.ai/dra-enabled to false")


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        (
            pod_annotations(tflops_limit="50"),
            "tflops-limit]: found 50, expected at least the request of 100",
        ),
        (
            pod_annotations(vram_limit="8Gi"),
            "vram-limit]: found 8Gi, expected at least the request of 16Gi",
        ),
        (
            pod_annotations(
                tflops_request="0", compute_percent_request="50", compute_percent_limit="25"
            ),
            "compute-percent-limit]: found 25, expected at least the request of 50",
        ),
    ],
)
def test_limit_below_its_request_is_refused(annotations: dict[str, str], expected: str) -> None:
    (error,) = refused(pod_document({**ASKED, **annotations}))

    assert error == f"metadata.annotations[tensor-fusion.ai/{expected}"
